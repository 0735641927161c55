#!/usr/bin/python3
"""What must not disturb a cluster: thousands of clients that vanish at once (CL-20), a wall clock that jumps (CL-23); and what two
nodes can and cannot do (CL-26).

MASS=20000 tests/fault/test_disturbances.py runs the first at the size of the case.
"""
import mmap, os, resource, struct, subprocess, sys, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from load import Load
from warren import *

tap = Tap()
MASS = int(os.environ.get("MASS", "2000"))
NODES = ("n1", "n2", "n3")


def elections(c, nodes=NODES):
    return {n: c.json(n, "status")["warren"]["elections"] for n in nodes}


def verdicts(c, nodes=NODES):
    """Lines in which a node says that another is not well."""
    return [l for n in nodes for l in c.do("logs", n).stdout.splitlines() if " is suspect (" in l or " is dead (" in l]


def row(c, node, queue):
    return next((q for q in c.json(node, "list_queues", "name", "messages_ready", "messages_unacknowledged", "consumers") if q["name"] == queue), {})


def mass_disconnect(c):
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    wrong = []
    c.declare("n1", "mass")
    c.declare("n1", "steady")
    c.lead("mass", "n1")
    c.lead("steady", "n2")
    total = MASS * 5
    Load(queue="mass", no_declare=True, publish_port=c.port("n1"), producers=4, consumers=0, count=total // 4, size=100).result()
    loads = [Load(queue="mass", no_declare=True, consume_port=f"{c.port('n2')},{c.port('n3')}", producers=0, consumers=250, prefetch=5, hold=5,
                  seconds=300) for _ in range(MASS // 250)]
    if not until(lambda: row(c, "n1", "mass").get("consumers") == MASS and row(c, "n1", "mass")["messages_unacknowledged"] == total, 60, 0.1):
        return [f"not all consumers came: {row(c, 'n1', 'mass')}"]
    p = Publisher(c, "n2", "steady", rate=300)
    p.start()
    p.ready.wait(10)
    before, heard = elections(c), verdicts(c)
    until(lambda: len(p.times) > 50)
    at = time.monotonic()
    for load in loads:
        load.process.kill()
    for load in loads:
        load.process.wait()
    if not until(lambda: row(c, "n1", "mass") == {"name": "mass", "messages_ready": total, "messages_unacknowledged": 0, "consumers": 0}, 20, 0.1):
        wrong.append(f"20 s later the queue has {row(c, 'n1', 'mass')}, not {total} ready messages and nobody else")
    took = time.monotonic() - at
    if elections(c) != before:
        wrong.append(f"there were elections: {before} before, {elections(c)} after")
    if verdicts(c) != heard:
        wrong += verdicts(c)[len(heard):]
    if not p.drain() or p.error:
        wrong.append(f"the publisher beside it: {p.error}, {len(p.by_tag)} not confirmed")
    print(f"# {MASS} connections gone, all they held is back after {took:.1f} s; a publisher beside them waited {p.longest_gap(at) * 1000:.0f} ms at most")
    p.stop()
    return wrong


def clock_jumps(c):
    wrong = []
    shim, path = os.path.join(build, "clockjump.so"), os.path.join(build, "clockjump")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", shim, os.path.join(top, "tests/fault/clockjump.c"), "-ldl"], check=True)
    with open(path, "wb") as f:
        f.write(struct.pack("<q", 0))
    with open(path, "r+b") as f:
        offset = mmap.mmap(f.fileno(), 8)

        def step(seconds):
            offset[:] = struct.pack("<q", int(seconds * 1000))

        env = dict(os.environ, LD_PRELOAD=shim, CLOCKJUMP_FILE=path)
        step(86400)
        told = int(subprocess.run(["date", "+%s"], env=env, capture_output=True, text=True).stdout)
        if abs(told - time.time() - 86400) > 5:
            return ["the library does not change what a process sees"]
        step(0)
        c.do("stop", "n1")
        c.do("start", "n1", env={"WARREN_WRAP": f"env LD_PRELOAD={shim} CLOCKJUMP_FILE={path}"})
        c.do("await", "n1")
        c.ctl("n1", "-q", "await_online_nodes", "3")
        if "clockjump" not in open(f"/proc/{c.pid('n1')}/maps").read():
            return ["n1 runs without the library"]
        clients = []
        for queue, leader in (("clock-leads", "n1"), ("clock-follows", "n2")):
            c.declare("n1", queue)
            c.lead(queue, leader)
            consumer = Consumer(c, "n1", queue)  # With heartbeats of 2 s, as the publisher.
            publisher = Publisher(c, "n1", queue, rate=200)
            for s in (consumer, publisher):
                s.cluster = Heartbeats(c)
                s.start()
                s.ready.wait(10)
            clients.append((queue, publisher, consumer))
        before, heard = elections(c), verdicts(c)
        for seconds in (3600, -3600, 86400, -86400, 0, *(0.3 * i for i in range(1, 8)), *(-0.3 * i for i in range(1, 8)), 0):
            step(seconds)
            time.sleep(0.8 if abs(seconds) >= 3600 else 0.15)  # Long enough for beats, heartbeats and timers to see it.
        if elections(c) != before:
            wrong.append(f"there were elections: {before} before, {elections(c)} after")
        if verdicts(c) != heard:
            wrong += verdicts(c)[len(heard):]
        for queue, publisher, consumer in clients:
            if not publisher.drain() or publisher.error or consumer.error:
                wrong.append(f"{queue}: publisher {publisher.error}, consumer {consumer.error}, {len(publisher.by_tag)} not confirmed")
            consumer.wait_for(publisher.confirmed)
            wrong += [f"{queue}: {w}" for w in check_deliveries(consumer.got, publisher.confirmed, publisher.next)]
            if publisher.longest_gap() > 1:
                wrong.append(f"{queue}: no confirm for {publisher.longest_gap():.1f} s")
            publisher.stop()
            consumer.stop()
    return wrong


class Heartbeats:
    """A cluster whose clients ask for heartbeats every 2 s."""

    def __init__(self, cluster):
        self.cluster = cluster

    def parameters(self, node):
        return self.cluster.parameters(node, heartbeat=2)


def publish(c, node, queue, limit_s):
    p = Publisher(c, node, queue, limit=1)
    p.start()
    good = until(lambda: p.confirmed == [0], limit_s)
    p.stop()
    return bool(good)


def two_nodes(c):
    wrong = []
    c.declare("n1", "two")
    if not publish(c, "n2", "two", 10):
        wrong.append("with both nodes nothing is confirmed")
    p = c.ctl("n1", "check_if_node_is_quorum_critical", check=False)
    if p.returncode != 69 or "two in virtual host" not in p.stderr or "metadata store" not in p.stderr:
        wrong.append(f"the health check of a node whose stop ends the majority does not warn: exit {p.returncode}, {p.stderr}")
    for other, alone in (("n2", "n1"), ("n1", "n2")):
        c.do("stop", other)
        if publish(c, alone, "two", 2):
            wrong.append(f"{alone} alone confirms")
        p = c.ctl(alone, "add_user", "by-one", "x", check=False) if alone == "n1" else None  # Takes 10 s to say no.
        if p and p.returncode != 75:
            wrong.append(f"{alone} alone: add_user ends with {p.returncode}, not with 75 (no majority): {p.stderr}")
        c.do("start", other)
        c.do("await", other)
        if not publish(c, other, "two", 20):
            wrong.append(f"after {other} is back nothing is confirmed")
    # One process after the other, nobody ever alone in charge.
    for n in ("n1", "n2"):
        c.do("kill", n)
    c.do("start", "n2")
    if publish_refused(c):
        wrong.append("n2 alone takes clients after a start without the other")
    c.do("start", "n1")
    for n in ("n1", "n2"):
        c.do("await", n)
    if not publish(c, "n1", "two", 20):
        wrong.append("after both are back nothing is confirmed")
    # A wiped half cannot come back by itself, nor does it take over: one of two is no majority (law 2).
    c.do("wipe", "n2")
    c.do("start", "n2")
    if not until(lambda: "majority" in (c.json("n2", "status")["waiting_for"] if c.ctl("n2", "status", check=False).returncode == 0 else ""), 10):
        wrong.append(f"the wiped node does not say what it waits for: {c.json('n2', 'status')['waiting_for']}")
    if publish(c, "n1", "two", 2):
        wrong.append("the other half confirms alone, or with the wiped one")
    return wrong


def publish_refused(c):
    """n2 takes no clients: it has not proven what it knows."""
    try:
        c.connect("n2", connection_attempts=1).close()
        return True
    except pika.exceptions.AMQPConnectionError:
        return False


with Cluster() as c:
    tap.run(f"CL-20: {MASS} consumers that vanish at once cause no election, and all that they held is back", mass_disconnect, c)
    text = "CL-23: a wall clock that jumps and creeps on the node that leads and follows disturbs nobody"
    if "WARREN_SANITIZED" in os.environ:
        tap.skip(text, "a preloaded library and a sanitizer's do not mix")
    else:
        tap.run(text, clock_jumps, c)
with Cluster(nodes=2) as c:
    tap.run("CL-26: two nodes: either is needed, the health check says so, and nothing is confirmed by one", two_nodes, c)
tap.end()
