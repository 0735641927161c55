#!/usr/bin/python3
"""One message that is never acknowledged does not keep what lies behind it on disk: a backlog is retired to segments, drained, and
within seconds all but that message is gone, without any further traffic. COMPACTION_MESSAGES=n is the length of the backlog
(150,000; 1,000,000 for the acceptance run). Afterwards a node is killed and started again: the message is still there."""
import os, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from load import *
from warren import *

MESSAGES = int(os.environ.get("COMPACTION_MESSAGES", "150000"))
NODES = ("n1", "n2", "n3")
WITHIN_S = 10
OUTSIDE_WAL = 9 * MB  # RabbitMQ 4.3.6: 8.9 MB.
WAL_FILES = 4
t = Tap()


def outside_wal(node):
    size = 0
    for directory, _, files in os.walk(os.path.join(build, "local-cluster", node)):
        for name in files if not directory.endswith("/wal") else []:
            try:
                size += os.stat(os.path.join(directory, name)).st_blocks * 512
            except FileNotFoundError:
                pass  # Deleted meanwhile: what this is about.
    return size


def sizes():
    return ", ".join(f"{n} {outside_wal(n) / MB:.1f} MB" for n in NODES)


def ready(c):
    return next((q["messages_ready"] for q in c.json("n1", "list_queues", "name", "messages_ready") if q["name"] == "held"), None)


def one_is_held(c, idle, holder):
    channel = holder.channel()
    channel.basic_publish("", "held", b"the first" * 100, pika.BasicProperties(delivery_mode=2))
    if not until(lambda: channel.basic_get("held")[0], 10):
        return ["the first message did not come"]
    with Watch(c, idle) as w:
        r = Load(queue="held", consumers=0, count=MESSAGES - 1, seconds=300, drain=30).result()
        before = sizes()
        begun = time.monotonic()
        drain = Load(queue="held", producers=0, seconds=600, prefetch=2000, drain=0)
        is_drained = until(lambda: holder.process_data_events(0) or ready(c) == 0, 300, 0.1)
        took = time.monotonic() - begun
        is_gone = until(lambda: holder.process_data_events(0) or all(outside_wal(n) <= OUTSIDE_WAL for n in NODES), WITHIN_S, 0.05)
        within = time.monotonic() - begun - took
        drained = drain.stop()
    print(f"# {MESSAGES} messages of 1 kB, one held: {r['confirm_per_s']:.0f} confirmed and {drained['consumed'] / took:.0f} consumed per second; "
          f"outside the WAL {before} before the drain, {sizes()} {within:.1f} s after it", flush=True)
    wrong = wrong_with(r) + wrong_with(drained) + w.wrong(float("inf"), wal_files=WAL_FILES)
    wrong += [] if is_drained and drained["consumed"] == MESSAGES - 1 else [f"{drained['consumed']} of {MESSAGES - 1} consumed"]
    return wrong + ([] if is_gone else [f"after {WITHIN_S} s: {sizes()}"])


def still_there(c, holder):
    for n in NODES:
        restart_s(c, n)
    c.ctl("n1", "-q", "await_online_nodes", "3")
    with c.connect("n2") as again:
        channel = again.channel()
        got = until(lambda: (lambda m, p, body: body)(*channel.basic_get("held", auto_ack=True)), 20, 0.1)
        rest = channel.queue_declare("held", passive=True).method.message_count
    return ([] if got == b"the first" * 100 else [f"it came back as {got!r}"]) + ([] if rest == 0 else [f"{rest} more messages"])


with Cluster(3) as c:
    c.declare("n1", "held")
    c.lead("held", "n1")
    idle = idle_of(c)
    holder = c.connect("n1")
    t.run(f"one of {MESSAGES} messages held: all but {OUTSIDE_WAL // MB} MB outside the WAL is gone {WITHIN_S} s after the drain", one_is_held, c, idle, holder)
    t.run("the message that was held is still there after every node was killed, and it alone", still_there, c, holder)
t.end()
