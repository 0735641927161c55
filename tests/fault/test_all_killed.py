#!/usr/bin/python3
"""All nodes at once: killed with -9, or their power cut (unsynced writes dropped or torn), under load; and one node paused.

RUNS=n power cuts (3; the acceptance of the first cluster asks for 50), PAUSE_S=n (5; 30 there).
"""
import os, signal, subprocess, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from warren import *

RUNS = int(os.environ.get("RUNS", "3"))
PAUSE_S = float(os.environ.get("PAUSE_S", "5"))
t = Tap()
NODES = ("n1", "n2", "n3")


def drain_all(c, queue, confirmed, published, name="p"):
    consumer = Consumer(c, "n2", queue)
    consumer.start()
    arrived = consumer.wait_for(confirmed, timeout=30, name=name)
    time.sleep(0.2)
    wrong = check_deliveries(consumer.got, confirmed, published, name)
    if not arrived: wrong.append(f"{len(set(confirmed) - {n for _, n, _ in consumer.got})} of {len(confirmed)} confirmed did not arrive in 30 s")
    consumer.stop()
    return wrong


def load(c, queue, seconds=1.0, consume=True):
    """Publishes through n1 while something consumes (without acks on n3), until the caller breaks everything."""
    c.declare("n1", queue)
    p = Publisher(c, "n1", queue, window=2000, size=500)
    p.start()
    assert p.ready.wait(10)
    time.sleep(seconds)
    return p


def restart(c):
    for n in NODES: c.do("start", n)
    for n in NODES: c.do("await", n)


def killed(c):
    p = load(c, "all-killed")
    pids = [c.pid(n) for n in NODES]
    for pid in pids: os.kill(pid, signal.SIGKILL)
    p.ended.wait(10)
    for n in NODES: c.do("kill", n)
    confirmed, published = list(p.confirmed), p.next
    restart(c)
    wrong = drain_all(c, "all-killed", confirmed, published)
    if len(confirmed) < 500: wrong.append(f"only {len(confirmed)} were confirmed before the kill")
    return wrong


def paused(c):
    queue = "paused"
    c.declare("n1", queue)
    c.lead(queue, "n2")
    idle = {n: c.memory(n) for n in NODES}
    consumer = Consumer(c, "n3", queue)
    consumer.start()
    p = Publisher(c, "n2", queue, window=2000, size=1000)
    p.start()
    assert p.ready.wait(10) and consumer.ready.wait(10)
    time.sleep(0.5)
    c.do("pause", "n1")
    before = len(p.confirmed)
    most = {"n2": 0, "n3": 0}
    end = time.monotonic() + PAUSE_S
    while time.monotonic() < end:
        for n in most: most[n] = max(most[n], c.memory(n) - idle[n])
        time.sleep(0.2)
    during = len(p.confirmed) - before
    c.do("resume", "n1")
    time.sleep(1.5)
    wrong = []
    if not p.drain(): wrong.append(f"{len(p.by_tag)} publishes were not confirmed after the node was resumed")
    if not consumer.wait_for(p.confirmed): wrong.append("not everything confirmed arrived")
    wrong += check_deliveries(consumer.got, p.confirmed, p.next)
    if during < 100: wrong.append(f"only {during} confirms while one node of three was paused")
    for n, m in most.items():
        if m > 128 << 20 and "WARREN_SANITIZED" not in os.environ: wrong.append(f"{n} grew by {m >> 20} MiB while a follower was paused")
    if p.error or consumer.error: wrong.append(f"a client was disturbed: {p.error} {consumer.error}")
    p.stop(); consumer.stop()
    print(f"# {during} confirms in {PAUSE_S:.0f} s with one node paused; memory above idle at most " + ", ".join(f"{n} {m >> 20} MiB" for n, m in most.items()))
    return wrong


with Cluster(3) as c:
    t.run("all three nodes killed with -9 at one moment under load: nothing confirmed is missing", killed, c)
    t.run("one node paused and resumed: nothing confirmed is missing, the others' memory stays bounded", paused, c)

if "WARREN_SANITIZED" in os.environ:
    t.skip("power cuts", "a preloaded library and a sanitizer's do not mix")
    t.end()

# ---- power cuts --------------------------------------------------------------------------------------------------

shim = os.path.join(build, "powercut.so")
subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", shim, os.path.join(top, "tests/fault/powercut.c"), "-ldl", "-lpthread"], check=True)
root = os.path.join(build, "local-cluster")


class CutCluster(Cluster):
    def do(self, *args, **more):
        if args[0] in ("up", "start"):
            # Each node's data directory is its own disk.
            env = dict(more.pop("env", None) or {}, WARREN_WRAP=os.path.join(top, "tests/fault/with-powercut") + " " + shim + " " + root)
            return super().do(*args, env=env, **more)
        return super().do(*args, **more)


state = {"confirmed": [], "published": 0}


def cut(c, run):
    queue, name = "cut", f"r{run}"
    c.declare("n1", queue)
    p = Publisher(c, "n1", queue, window=1000, size=[100, 3000, 100][run % 3], name=name)
    p.start()
    assert p.ready.wait(10)
    time.sleep(0.3 + 0.1 * (run % 5))
    pids = [c.pid(n) for n in NODES]
    for pid in pids: os.kill(pid, signal.SIGUSR2)
    p.ended.wait(20)
    for n in NODES: c.do("kill", n)
    confirmed, published = list(p.confirmed), p.next
    restart(c)
    wrong = drain_all(c, queue, confirmed, published, name)
    if not confirmed: wrong.append("nothing was confirmed before the cut")
    return wrong


with CutCluster(3) as c:
    for run in range(RUNS):
        t.run(f"power cut {run + 1}: with unsynced writes dropped or torn on all nodes nothing confirmed is missing", cut, c, run)
t.end()
