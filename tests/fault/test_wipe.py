#!/usr/bin/python3
"""Lost disks (law 2, CL-02, CL-05): a node whose data is gone comes back by itself, as a new one, and is filled again; a majority of
lost disks founds nothing, confirms nothing, and waits.

ROUNDS=30 tests/fault/test_wipe.py wipes more often.
"""
import os, random, sys, threading, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from warren import *

tap = Tap()
ROUNDS = int(os.environ.get("ROUNDS", "3"))
NODES = ("n1", "n2", "n3")


def members(c, asked, queue):
    """Node -> row of quorum_status."""
    p = c.ctl(asked, "quorum_status", queue, "--formatter", "json", check=False)
    return {r["Node Name"].split("@")[0]: r for r in json.loads(p.stdout)} if p.returncode == 0 else {}


def is_whole(c, asked, queue, nodes=NODES):
    """Exactly these nodes have a replica, each votes, and all are level."""
    rows = members(c, asked, queue)
    return (set(rows) == set(nodes) and all(r["Membership"] == "voter" and r["Raft State"] in ("leader", "follower") for r in rows.values())
            and len({r["Last Applied"] for r in rows.values()}) == 1)


def wipe_under_load(c):
    """Each node in turn, with publishers and a consumer at work; between the wipes only what makes the queue whole again is waited for."""
    wrong = []
    rng = random.Random(11)
    c.declare("n1", "wiped")
    for i in range(20):
        c.declare(NODES[i % 3], f"idle-{i}")
    p = Publisher(c, "n1", "wiped", rate=300, size=500)
    p.start()
    p.ready.wait(10)
    at = "n1"
    for i in range(ROUNDS):
        node = rng.choice(["n2", "n3"])
        if i % 2 == 0:
            c.lead("wiped", node)  # The leader's disk, every other time.
        done = len(p.confirmed)
        until(lambda: len(p.confirmed) > done + 100)
        began = time.monotonic()
        c.do("wipe", node)
        c.do("start", node)
        c.do("await", node)
        up = time.monotonic() - began
        p.paused = True  # Else nothing is ever level.
        if not until(lambda: is_whole(c, at, "wiped"), 20, 0.05):
            wrong.append(f"round {i}: {node} was wiped, and 20 s later the queue is {members(c, at, 'wiped')}")
        whole = time.monotonic() - began
        bad = [q for q in (f"idle-{k}" for k in range(20)) if not until(lambda q=q: is_whole(c, at, q), 10, 0.05)]
        if bad:
            wrong.append(f"round {i}: not whole: {bad[0]} {members(c, at, bad[0])} and {len(bad) - 1} others")
        p.paused = False
        print(f"# {node} wiped: up after {up:.2f} s, the queue in use whole after {whole:.2f} s, 20 others after {time.monotonic() - began:.2f} s; "
              f"no confirm for {p.longest_gap(began):.2f} s at most")
    if not p.drain() or p.error or p.nacked:
        wrong.append(f"publisher: {p.error}, {len(p.by_tag)} not confirmed, {len(p.nacked)} refused")
    p.stop()
    # The node wiped last has all of it: with it and one other everything is there.
    other = next(n for n in NODES if n not in (at, node))
    c.do("kill", other)
    consumer = Consumer(c, node, "wiped")
    consumer.start()
    consumer.wait_for(p.confirmed, 30)
    wrong += check_deliveries(consumer.got, p.confirmed, p.next)
    consumer.stop()
    c.do("start", other)
    c.do("await", other)
    return wrong


def wipe_while_one_lags(c):
    """CL-02. Confirmed on two nodes, of which one loses its disk while the third lags behind: the two that are left of them cannot decide."""
    wrong = []
    c.declare("n1", "cl02")
    c.lead("cl02", "n1")
    until(lambda: is_whole(c, "n1", "cl02"), 20)
    c.do("kill", "n2")
    p = Publisher(c, "n1", "cl02", limit=200)
    p.start()
    until(lambda: len(p.confirmed) == 200)
    p.stop()
    c.do("wipe", "n3")
    c.do("kill", "n1")
    c.do("start", "n2")
    c.do("start", "n3")
    if not until(lambda: "majority" in waiting_for(c, "n3") or "reached" in waiting_for(c, "n3"), 10):
        wrong.append(f"n3 does not say what it waits for: {waiting_for(c, 'n3')}")
    time.sleep(1)
    for n in ("n2", "n3"):
        if takes_clients(c, n):
            wrong.append(f"{n} takes clients although the one node that knows what was confirmed is away")
    c.do("start", "n1")
    for n in NODES:
        c.do("await", n)
    if not until(lambda: is_whole(c, "n3", "cl02"), 20, 0.05):
        wrong.append(f"the queue is not whole again: {members(c, 'n3', 'cl02')}")
    consumer = Consumer(c, "n3", "cl02")
    consumer.start()
    consumer.wait_for(p.confirmed)
    wrong += check_deliveries(consumer.got, p.confirmed, p.next)
    consumer.stop()
    return wrong


def wipe_two(c):
    """No cluster comes out of it, nobody confirms, and what is left stays as it is."""
    wrong = []
    for first, second in (("n1", "n2"), ("n3", "n1")):
        left = next(n for n in NODES if n not in (first, second))
        c.do("down")
        c.do("up", 3)
        c.declare(left, "two")
        p = Publisher(c, left, "two", limit=50)
        p.start()
        until(lambda: len(p.confirmed) == 50)
        p.stop()
        c.do("wipe", first)
        c.do("wipe", second)
        q = Publisher(c, left, "two", start=50, limit=60)
        q.start()
        c.do("start", first)
        c.do("start", second)
        for n in (first, second):
            if not until(lambda n=n: "majority" in waiting_for(c, n), 10):
                wrong.append(f"{n} does not say what it waits for: {waiting_for(c, n)}")
        time.sleep(1)
        if q.confirmed:
            wrong.append(f"{first}, {second} wiped: {len(q.confirmed)} publishes confirmed")
        for n in (first, second):
            if takes_clients(c, n):
                wrong.append(f"{n} was wiped and takes clients")
            if "founding a new cluster" in c.do("logs", n).stdout.split("starting node")[-1]:
                wrong.append(f"{n} founded a cluster")
        q.stopping = True
        q.stop()
    return wrong


def forget_under_load(c):
    """CL-05. A node is lost for good: forgotten from two members at once and again, while another takes its replicas and clients work."""
    wrong = []
    for i in range(10):
        c.declare("n1", f"busy-{i}", dict(QUORUM, **{"x-quorum-initial-group-size": 4}))
    for i in range(10):
        until(lambda i=i: is_whole(c, "n1", f"busy-{i}", ("n1", "n2", "n3", "n4")), 20)
    c.lead("busy-0", "n4")  # The leader is lost with it.
    p = Publisher(c, "n1", "busy-0", rate=300)
    p.start()
    p.ready.wait(10)
    until(lambda: len(p.confirmed) > 100)
    if c.ctl("n1", "forget_cluster_node", "n4@localhost", check=False).returncode != 69:
        wrong.append("a running node is forgotten")
    c.do("wipe", "n4")
    until(lambda: all("n4@localhost" not in c.json(n, "cluster_status")["running_nodes"] for n in ("n1", "n2")))
    codes = []
    asks = [threading.Thread(target=lambda n=n: codes.append((n, c.ctl(n, "forget_cluster_node", "n4@localhost", check=False)))) for n in ("n1", "n2", "n1", "n2")]
    for a in asks: a.start()
    for a in asks: a.join()
    wrong += [f"{n}: exit {r.returncode}: {r.stderr.strip()}" for n, r in codes if r.returncode not in (0, 69) or (r.returncode == 69 and "not a node of" not in r.stderr)]
    if not any(r.returncode == 0 for _, r in codes):
        wrong.append("nobody says that it was forgotten")
    p.paused = True
    for i in range(10):
        if not until(lambda i=i: is_whole(c, "n2", f"busy-{i}"), 20, 0.05):
            wrong.append(f"busy-{i} has {members(c, 'n2', f'busy-{i}')}")
    p.paused = False
    # It comes back as a new one, and the places that it left are for it.
    c.do("start", "n4")
    c.do("await", "n4")
    until(lambda: len(p.confirmed) > 200)
    p.paused = True
    for i in range(10):
        if not until(lambda i=i: is_whole(c, "n2", f"busy-{i}", ("n1", "n2", "n3", "n4")), 20, 0.05):
            wrong.append(f"with n4 back busy-{i} has {members(c, 'n2', f'busy-{i}')}")
    p.paused = False
    if not p.drain() or p.error or p.nacked:
        wrong.append(f"publisher: {p.error}, {len(p.by_tag)} not confirmed, {len(p.nacked)} refused")
    p.stop()
    consumer = Consumer(c, "n4", "busy-0")
    consumer.start()
    consumer.wait_for(p.confirmed)
    wrong += check_deliveries(consumer.got, p.confirmed, p.next)
    consumer.stop()
    return wrong


def waiting_for(c, node):
    p = c.ctl(node, "status", "--formatter", "json", check=False)
    return json.loads(p.stdout).get("waiting_for", "") if p.returncode == 0 else ""


def takes_clients(c, node):
    try:
        c.connect(node, connection_attempts=1).close()
        return True
    except pika.exceptions.AMQPError:
        return False


with Cluster() as c:
    tap.run("a wiped node comes back by itself under load, every queue has three level members again, nothing confirmed is lost", wipe_under_load, c)
    tap.run("a wiped node and one that lags make no majority of what a third one knows (CL-02)", wipe_while_one_lags, c)
    tap.run("two wiped of three found nothing and confirm nothing", wipe_two, c)
with Cluster(nodes=4) as c:
    tap.run("a lost node is forgotten under load, by two members at once; every queue has exactly the wanted members (CL-05)", forget_under_load, c)
tap.end()
