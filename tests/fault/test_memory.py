#!/usr/bin/python3
"""Memory, WAL files and data directories under full rate: with a consumer that keeps up, without one, with clients that do not
read, with a follower that stands still; restarts afterwards. MEMORY_SECONDS=n is the length of each load (6 s; 300 for the
acceptance run, PAUSE_SECONDS=60 with it)."""
import os, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from load import *
from warren import *

SECONDS = float(os.environ.get("MEMORY_SECONDS", "6"))
PAUSE_SECONDS = float(os.environ.get("PAUSE_SECONDS", SECONDS))
NODES = ("n1", "n2", "n3")
KEEPING_UP = 96 * MB   # Above idle.
AT_WORST = 128 * MB
t = Tap()


def keeps_up(c, idle):
    """Also: a message that is held all the time pins neither WAL files nor segments."""
    c.declare("n1", "up"); c.lead("up", "n2")
    held = Load(queue="held", size=1000, count=100, hold=1, drain=10 * SECONDS + 30)
    with Watch(c, idle) as w:
        r = Load(queue="up", publish_port=5672, consume_port=5674, seconds=SECONDS, drain=20).result()
    held.stop()
    print(f"# {r['confirm_per_s']:.0f} confirmed and {r['consume_per_s']:.0f} consumed per second, {r['published'] / 1e6:.2f} GB", flush=True)
    # Four WAL files, as much again in segments that are not compacted yet, and the metadata.
    return wrong_with(r) + w.wrong(KEEPING_UP, wal_files=4, data=640 * MB)


def restarts(c, limit_s):
    took = {n: restart_s(c, n, how) for n, how in zip(NODES, ("kill", "stop", "kill"))}
    print("# restarts: " + ", ".join(f"{n} {s * 1000:.0f} ms" for n, s in took.items()), flush=True)
    c.ctl("n1", "-q", "await_online_nodes", "3")
    return [f"{n} took {s:.1f} s" for n, s in took.items() if s > limit_s]


def no_consumer(c, idle):
    with Watch(c, idle) as w:
        r = Load(queue="backlog", publish_port=5672, consumers=0, seconds=SECONDS, drain=20).result()
    wrong = wrong_with(r) + w.wrong(AT_WORST)
    print(f"# {r['confirmed']} messages wait", flush=True)
    wrong += restarts(c, 2.0)
    there = until(lambda: [q["messages"] for q in c.json("n1", "list_queues", "name", "messages") if q["name"] == "backlog"] == [r["confirmed"]], 20)
    return wrong + ([] if there else [f"{c.json('n1', 'list_queues', 'name', 'messages')}, expected {r['confirmed']}"])


def backlog_is_read(c, idle):
    """What lies on disk comes back through the cold path, within the same bounds."""
    with Watch(c, idle) as w:
        r = Load(queue="backlog", consume_port=5673, producers=0, seconds=SECONDS, drain=0).result()
    print(f"# {r['consume_per_s']:.0f} consumed per second from disk", flush=True)
    return w.wrong(AT_WORST) + ([] if r["consumed"] > 1000 else [f"only {r['consumed']} consumed"])


def deaf_consumers(c, idle):
    with Watch(c, idle) as w:
        loads = [Load(queue=f"deaf{i}", publish_port=5672, consume_port=port, deaf_consumers_after=5000, prefetch=0, seconds=SECONDS, drain=0)
                 for i, port in enumerate((5672, 5674))]
        results = [l.result() for l in loads]
    return w.wrong(AT_WORST) + [f"only {r['consumed']} consumed" for r in results if r["consumed"] < 5000]


def deaf_publishers(c, idle):
    """Small messages, so that the confirms are most of what is sent."""
    with Watch(c, idle) as w:
        r = Load(queue="quiet", consumers=0, producers=4, size=24, deaf_producers=True, seconds=SECONDS, drain=0).result()
    print(f"# {r['published']} published without reading a confirm", flush=True)
    return w.wrong(AT_WORST) + ([] if r["failed"] == 0 else [r["error"]])


def follower_stopped(c, idle):
    c.declare("n1", "stopped"); c.lead("stopped", "n1")
    with Watch(c, idle) as w:
        load = Load(queue="stopped", publish_port=5672, consume_port=5672, seconds=PAUSE_SECONDS + 4, drain=20)
        time.sleep(1)
        c.do("pause", "n3")
        time.sleep(PAUSE_SECONDS)
        c.do("resume", "n3")
        r = load.result()
    wrong = wrong_with(r) + w.wrong(AT_WORST)
    # It catches up: with n2 gone it is needed for every confirm.
    c.do("kill", "n2")
    r = Load(queue="stopped", seconds=1, drain=30).result()
    c.do("start", "n2"); c.do("await", "n2")
    return wrong + wrong_with(r) + ([] if r["confirmed"] == r["published"] else [f"{r['confirmed']} of {r['published']} confirmed"])


with Cluster(3) as c:
    idle = idle_of(c)
    print("# idle: " + ", ".join(f"{n} {m / MB:.1f} MB" for n, m in idle.items()), flush=True)
    t.run("full rate with a consumer that keeps up: four WAL files, memory within 96 MB, data bounded", keeps_up, c, idle)
    t.run("a node restarts within 2 s afterwards", restarts, c, 2.0)
    t.run("clients that stop reading their deliveries leave memory within 128 MB", deaf_consumers, c, idle)
    t.run("publishers that never read confirms leave memory within 128 MB", deaf_publishers, c, idle)
    t.run("full rate with a follower stopped: memory within 128 MB, and it catches up", follower_stopped, c, idle)
    t.run("full rate without a consumer: memory within 128 MB, restarts within 2 s with the backlog there", no_consumer, c, idle)
    t.run("a backlog is read back within 128 MB", backlog_is_read, c, idle)
t.end()
