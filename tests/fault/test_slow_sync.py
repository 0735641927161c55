#!/usr/bin/python3
"""fdatasync takes 150 ms longer on two nodes of three (strace injection): no confirm comes in less (law 1)."""
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


with Cluster(3) as c:
    t.run("with two slow disks of three no confirm comes in less than their delay", slow, c)
    t.run("one slow disk of three slows no confirm", one_slow, c)
t.end()
