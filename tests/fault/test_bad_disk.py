#!/usr/bin/python3
"""A node whose disk failed in an earlier process (store.failed), and one whose disk stalls while it leads (decision 7)."""
import os, shutil, subprocess, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from warren import *

t = Tap()


def publish(c, node, queue, limit_s):
    """True if one message is confirmed in time."""
    p = Publisher(c, node, queue, limit=1)
    p.start()
    good = until(lambda: p.confirmed == [0], limit_s)
    p.stop()
    return bool(good)


def mark(c, node):
    c.do("stop", node)
    with open(os.path.join(build, f"local-cluster/{node}/store.failed"), "w") as f:
        f.write("fdatasync: Input/output error")


def failed_store(c):
    """Without a majority of the others it only waits, with all its data."""
    wrong = []
    c.declare("n1", "failed")
    c.lead("failed", "n1")
    mark(c, "n3")
    c.do("kill", "n2")
    c.do("start", "n3")
    if not until(lambda: "waiting_for" in c.ctl("n3", "status", check=False).stdout and "majority" in c.json("n3", "status")["waiting_for"], 10):
        wrong.append(f"n3 does not say for whom it waits: {c.json('n3', 'status')['waiting_for']}")
    if publish(c, "n1", "failed", 3):
        wrong.append("a confirm with the help of the node whose disk failed")
    if not os.path.exists(os.path.join(build, "local-cluster/n3/store.failed")):
        wrong.append("the data was given up before anybody had agreed")
    return wrong


def healed(c):
    # As if killed as soon as it remembers that it heals, before the note that begins it.
    c.do("kill", "n3")
    with open(os.path.join(build, "local-cluster/n3/healed"), "w") as f:
        f.write(f"{int(time.time())}\n")
    c.do("start", "n3")
    c.do("start", "n2")
    c.do("await", "n2")
    wrong = [] if publish(c, "n1", "failed", 20) else ["the two good nodes do not confirm"]
    c.do("await", "n3")
    c.ctl("n3", "-q", "await_online_nodes", "3")
    if os.path.exists(os.path.join(build, "local-cluster/n3/store.failed")) or os.path.exists(os.path.join(build, "local-cluster/n3/rejoin")):
        wrong.append("the mark or the note is left")
    c.declare("n3", "cured")
    return wrong + ([] if publish(c, "n3", "cured", 10) else ["a queue on all three takes nothing"])


def again(c):
    """A disk that fails at once again is not filled for ever."""
    mark(c, "n3")
    c.do("start", "n3")
    if not until(lambda: "has failed again" in c.do("logs", "n3").stdout, 10):
        return ["n3 does not say that this is the second time"]
    os.remove(os.path.join(build, "local-cluster/n3/healed"))
    c.do("stop", "n3")
    c.do("start", "n3")
    c.do("await", "n3")
    c.ctl("n3", "-q", "await_online_nodes", "3")
    return []


def stall(c):
    wrong = []
    c.declare("n1", "stall")
    c.lead("stall", "n1")
    p = Publisher(c, "n2", "stall", rate=200)
    p.start()
    p.ready.wait(10)
    tracer = subprocess.Popen(["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync", "-e", "inject=fdatasync,fsync:delay_enter=4000000",
                               "-p", str(c.pid("n1"))], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if not until(lambda: c.leader("n2", "stall") in ("n2", "n3"), 20):
        wrong.append("n1 leads still")
    tracer.terminate()
    tracer.wait()
    if c.do("logs", "n1").stdout.count("giving up the lead") != 1:
        wrong.append("n1's log does not say once that it gave up")
    if not p.drain(20):
        wrong.append(f"{len(p.by_tag)} publishes were never confirmed")
    p.stop()
    return wrong + ([str(p.error)] if p.error else [])


with Cluster(3) as c:
    t.run("a node whose store is marked as failed neither votes nor acknowledges while the others have no majority, and keeps its data", failed_store, c)
    t.run("once they have, it is replaced and comes back as a good member by itself", healed, c)
    t.run("not a second time at once", again, c)
    if shutil.which("strace"):
        t.run("a leader whose disk stalls hands over if the others' disks do not", stall, c)
    else:
        t.skip("a leader whose disk stalls hands over if the others' disks do not", "strace is not installed")
t.end()
