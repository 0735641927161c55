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


def failed_store(c):
    wrong = []
    c.declare("n1", "failed")
    c.do("stop", "n3")
    with open(os.path.join(build, "local-cluster/n3/store.failed"), "w") as f:
        f.write("fdatasync: Input/output error")
    c.do("start", "n3")
    if not until(lambda: "warrenctl forget_cluster_node n3@localhost" in c.do("logs", "n3").stdout, 10):
        wrong.append("n3's log does not say what to do")
    c.lead("failed", "n1")
    if not publish(c, "n1", "failed", 10):
        wrong.append("the other two do not confirm")
    c.do("kill", "n2")
    if publish(c, "n1", "failed", 4):
        wrong.append("a confirm with the help of the node whose disk failed")
    c.do("start", "n2")
    c.do("await", "n2")
    if not publish(c, "n1", "failed", 20):
        wrong.append("the two good nodes do not confirm any more")
    return wrong


def cure(c):
    c.do("wipe", "n3")
    until(lambda: "n3@localhost" not in c.json("n1", "cluster_status")["running_nodes"])
    c.ctl("n1", "forget_cluster_node", "n3@localhost")
    c.do("start", "n3")
    c.do("await", "n3")
    c.declare("n3", "cured")
    return [] if publish(c, "n3", "cured", 10) else ["a queue on all three takes nothing"]


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
    t.run("a node whose store is marked as failed neither votes nor acknowledges, and says what to do", failed_store, c)
    t.run("forgotten, wiped and started it is a good member again", cure, c)
    if shutil.which("strace"):
        t.run("a leader whose disk stalls hands over if the others' disks do not", stall, c)
    else:
        t.skip("a leader whose disk stalls hands over if the others' disks do not", "strace is not installed")
t.end()
