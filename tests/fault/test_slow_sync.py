#!/usr/bin/python3
"""fdatasync takes 150 ms longer on two nodes of three (strace injection): no confirm comes in less (law 1); elections go on."""
import os, shutil, subprocess, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from warren import *

t = Tap()
if not shutil.which("strace"):
    t.skip("no confirm comes before a majority has synced", "strace is not installed")
    t.end()


def slow(c):
    c.declare("n1", "slow"); c.lead("slow", "n1")
    tracers = [subprocess.Popen(["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync", "-e", "inject=fdatasync,fsync:delay_enter=150000", "-p", str(c.pid(n))],
                                stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) for n in ("n2", "n3")]
    time.sleep(1.0)
    assert all(p.poll() is None for p in tracers), [p.stderr.read() for p in tracers]
    k = c.connect("n1"); ch = k.channel(); ch.confirm_delivery()
    took = []
    for i in range(20):
        start = time.monotonic()
        ch.basic_publish("", "slow", b"m")
        took.append(time.monotonic() - start)
    k.close()
    for p in tracers: p.terminate()
    for p in tracers: p.wait()
    print(f"# confirms took {min(took) * 1000:.0f} to {max(took) * 1000:.0f} ms with two slow disks of three")
    return [] if min(took) >= 0.150 else [f"a confirm after {min(took) * 1000:.0f} ms"]


def one_slow(c):
    """One slow disk of three slows nobody down."""
    tracer = subprocess.Popen(["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync", "-e", "inject=fdatasync,fsync:delay_enter=150000", "-p", str(c.pid("n3"))],
                              stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(1.0)
    k = c.connect("n1"); ch = k.channel(); ch.confirm_delivery()
    took = []
    for i in range(50):
        start = time.monotonic()
        ch.basic_publish("", "slow", b"m")
        took.append(time.monotonic() - start)
    k.close(); tracer.terminate(); tracer.wait()
    took.sort()
    print(f"# median confirm with one slow disk of three: {took[25] * 1000:.1f} ms")
    return [] if took[25] < 0.1 else [f"median {took[25] * 1000:.0f} ms"]


def elects(c):
    """A vote passes through two disks; one that takes longer than a retry of the election still counts."""
    queues = [f"elect-{i}" for i in range(4)]
    for q in queues: c.declare("n1", q); c.lead(q, "n1")
    tracers = [subprocess.Popen(["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync", "-e", "inject=fdatasync,fsync:delay_enter=250000", "-p", str(c.pid(n))],
                                stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for n in ("n2", "n3")]
    time.sleep(1.0)
    c.do("kill", "n1")
    start = time.monotonic()
    publishers = [Publisher(c, "n2", q, limit=1) for q in queues]
    for p in publishers: p.start()
    good = until(lambda: all(p.confirmed == [0] for p in publishers), 15)
    print(f"# confirms {time.monotonic() - start:.1f} s after the leaders' node was killed, with disks that take 250 ms")
    for p in publishers: p.stop()
    for p in tracers: p.terminate(); p.wait()
    c.do("start", "n1"); c.do("await", "n1")
    return [] if good else ["no leader after 15 s"]


with Cluster(3) as c:
    t.run("with two slow disks of three no confirm comes in less than their delay", slow, c)
    t.run("one slow disk of three slows no confirm", one_slow, c)
    t.run("disks slower than a retry of an election elect", elects, c)
t.end()
