#!/usr/bin/python3
"""Messages of 16 MiB beside small ones, and of 128 MiB with the limit raised. LARGE_SECONDS=n (8 s) is the length of the
mixed load; LARGE_RATE (0.5/s) how often a large one comes. The small ones' latency is
printed and not judged (no test measures speed): 20 ms at the 99th percentile is what is wanted."""
import os, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from load import *
from warren import *

SECONDS = float(os.environ.get("LARGE_SECONDS", "8"))
RATE = float(os.environ.get("LARGE_RATE", "0.5"))
HUGE = 128 * MIB
t = Tap()


def small(c, seconds):
    return Load(queue="small", publish_port=5672, consume_port=5674, rate=5000, window=5000, seconds=seconds, drain=10)


def mixed(c, idle):
    c.declare("n1", "small"); c.lead("small", "n2")
    c.declare("n1", "large"); c.lead("large", "n2")
    alone = small(c, 3).result()
    with Watch(c, idle) as w:
        big = Load(queue="large", publish_port=5672, consume_port=5674, size=16 * MIB, rate=RATE, window=2, prefetch=2, seconds=SECONDS + 1, drain=20)
        beside = small(c, SECONDS).result()
        big = big.result()
    print(f"# small alone: p99 {alone['delivery_ms']['p99']} ms, beside {big['published']} of 16 MiB: p50 {beside['delivery_ms']['p50']}, p99 {beside['delivery_ms']['p99']}, "
          f"max {beside['delivery_ms']['max']} ms; the large: p50 {big['delivery_ms']['p50']} ms", flush=True)
    wrong = wrong_with(alone) + wrong_with(beside) + wrong_with(big) + w.wrong(128 * MB)
    if big["consumed"] != big["published"]:
        wrong.append(f"{big['consumed']} of {big['published']} large ones came")
    return wrong


def huge(c, idle, leader, publish, consume):
    """Every node has the message once; but a node that publishes and follows has it twice for a moment: as its session's open
    command, which it may have to send again, and on its way back as the log's."""
    queue = f"huge-{leader}-{publish}"
    c.declare("n1", queue); c.lead(queue, leader)
    ports = {f"n{i}": 5671 + i for i in (1, 2, 3)}
    with Watch(c, idle) as w:
        r = Load(queue=queue, publish_port=ports[publish], consume_port=ports[consume], size=HUGE, count=1, window=1, prefetch=1, drain=60).result()
    print(f"# published in {r['confirm_ms']['max']:.0f} ms, delivered after {r['delivery_ms']['max']:.0f} ms", flush=True)
    if publish != leader:
        w.above[publish] -= HUGE
    return wrong_with(r) + w.wrong(128 * MB + HUGE) + ([] if r["consumed"] == 1 else [f"it came {r['consumed']} times, redelivered {r['redelivered']}"])


with Cluster(3, conf=f"max_message_size = {HUGE}\n") as c:
    idle = idle_of(c)
    t.run("16 MiB messages beside 5,000 small ones a second: all come, memory within 128 MB", mixed, c, idle)
    t.run("128 MiB through three nodes, all on one node: within the memory budget and the message", huge, c, idle, "n1", "n1", "n1")
    t.run("128 MiB through three nodes, publisher, leader and consumer apart", huge, c, idle, "n2", "n1", "n3")
t.end()
