#!/usr/bin/python3
"""Writes and syncs that fail with EIO (AL-07), in each of the threads that write. The first failure ends the node's part: it
acknowledges nothing more and its process ends; others lead; nothing confirmed is lost; started again the node is filled again."""
import glob, os, shutil, subprocess, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from warren import *

t = Tap()


def thread_of(pid, name):
    for path in glob.glob(f"/proc/{pid}/task/*/comm"):
        with open(path) as f:
            if f.read().strip() == name: return path.split("/")[4]
    raise RuntimeError(f"no thread {name}")


def is_gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as f: return f.read().rsplit(")", 1)[1].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def fails(c, node, thread, calls, queue, provoke=None):
    """`node` leads the queue and the calls fail in its thread."""
    wrong = []
    others = [n for n in ("n1", "n2", "n3") if n != node]
    c.declare("n1", queue)
    c.lead(queue, node)
    p = Publisher(c, others[0], queue, size=5000, rate=500, window=200)
    p.start()
    if not until(lambda: len(p.confirmed) > 100, 20): wrong.append("nothing is confirmed before")
    pid = c.pid(node)
    tracer = subprocess.Popen(["strace", "-qq", "-o", "/dev/null", "-e", f"trace={calls}", "-e", f"inject={calls}:error=EIO", "-p", thread_of(pid, thread)],
                              stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if provoke: provoke(others)
    if not until(lambda: is_gone(pid), 30):
        wrong.append(f"{node} goes on with a disk that failed; {len(p.confirmed)} confirmed")
        print(*("# " + l for l in c.do("logs", node).stdout.splitlines()[-12:]), sep="\n")
    tracer.terminate()
    tracer.wait()
    before = len(p.confirmed)
    if not until(lambda: len(p.confirmed) > before + 100 or p.error, 15): wrong.append("the others do not go on")
    if c.leader(others[0], queue) == node: wrong.append(f"{node} leads")
    c.do("start", node)
    c.do("await", node, 30)
    c.ctl(node, "-q", "await_online_nodes", "3")
    if not p.drain(20): wrong.append(f"{len(p.by_tag)} publishes were never confirmed")
    c.lead(queue, node, 20)  # It is a full member again, and has everything.
    k = Consumer(c, others[1], queue)
    k.start()
    if not k.wait_for(p.confirmed, 20): wrong.append("not everything arrived")
    wrong += check_deliveries(k.got, p.confirmed, p.next)
    wrong += [str(x.error) for x in (p, k) if x.error]
    p.stop(); k.stop()
    return wrong


CASES = [("n1", "wal", "fdatasync,fsync", None), ("n2", "wal", "pwritev,pwritev2,pwrite64", None), ("n3", "cold", "fdatasync,fsync", None),
         ("n1", "meta", "fdatasync,fsync", lambda c, others: [c.declare(others[0], f"made{i}") for i in range(3)])]
TEXT = "AL-07: {} of the {} thread of {} fail with EIO: the node ends, others lead, nothing confirmed is lost, it comes back"
if not shutil.which("strace"):
    for node, thread, calls, _ in CASES: t.skip(TEXT.format(calls, thread, node), "strace is not installed")
    t.end()
with Cluster(3, conf="warren.wal_file_bytes = 2MiB\nwarren.memtable_bytes = 8MiB\n") as c:
    for i, (node, thread, calls, provoke) in enumerate(CASES):
        t.run(TEXT.format(calls, thread, node), fails, c, node, thread, calls, f"q{i}", provoke and (lambda others: provoke(c, others)))
t.end()
