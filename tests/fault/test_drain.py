#!/usr/bin/python3
"""Maintenance mode: rabbitmq-upgrade drain and revive (operator-plane §5.6; RabbitMQ 4.3's texts and order of things)."""
import os, sys, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from warren import *
from load import Load

tap = Tap()
SLOW = 10 if "WARREN_SANITIZED" in os.environ else 1
QUEUES = [f"drain-{i}" for i in range(12)]


def refused(cluster, node):
    try:
        cluster.connect(node, connection_attempts=1).close()
        return False
    except pika.exceptions.AMQPConnectionError:
        return True


def told(connection):
    """What the server said when it closed the connection."""
    until_s = time.monotonic() + 5
    try:
        while time.monotonic() < until_s:
            connection.process_data_events(0.2)
    except pika.exceptions.ConnectionClosedByBroker as e:
        return e.reply_code, e.reply_text
    return None


def maintenance(cluster, asked, node):
    return cluster.json(asked, "cluster_status")["maintenance_status"].get(f"{node}@localhost")


def leaders(cluster, asked):
    return {q["name"]: q["leader"].split("@")[0] for q in cluster.json(asked, "list_queues", "name", "leader")}


with Cluster() as c:
    for i, q in enumerate(QUEUES):
        c.declare(f"n{i % 3 + 1}", q)
    c.lead(QUEUES[0], "n1")
    watcher = c.connect("n1")
    watcher.channel()
    p = Publisher(c, "n2", QUEUES[0], rate=500)
    p.start()
    p.ready.wait(10)
    until(lambda: len(p.confirmed) > 100)
    began = time.monotonic()
    r = c.ctl("n1", "drain", check=False)
    took = time.monotonic() - began
    tap.ok(r.returncode == 0 and took < 8, f"drain ends with exit code 0, within its bound ({took:.2f} s)", r)
    tap.ok(told(watcher) == (320, "CONNECTION_FORCED - Node was put into maintenance mode"), "clients of the node are told 320 and why")
    tap.ok(refused(c, "n1"), "the node takes no connections any more")
    tap.ok(until(lambda: "n1" not in leaders(c, "n2").values()), "it leads no queue any more", leaders(c, "n2"))
    tap.ok(c.json("n2", "cluster_status")["metadata_leader"] != "n1@localhost", "nor the metadata")
    tap.ok(all(until(lambda n=n: maintenance(c, n, "n1") == "marked for maintenance" and maintenance(c, n, "n2") == "not under maintenance")
               for n in ("n1", "n2", "n3")), "every node's cluster_status shows it")
    tap.ok(c.json("n1", "status")["is_under_maintenance"] is True and c.json("n2", "status")["is_under_maintenance"] is False,
           "status shows it at the node itself and not at others")
    tap.ok(c.ctl("n1", "drain", check=False).returncode == 0, "drain again does nothing and says so")
    until(lambda: p.longest_gap(began) and p.times[-1] > began + took)
    gap = p.longest_gap(began)
    tap.ok(gap < 0.5 and not p.error, f"a publisher at another node waited {gap * 1000:.0f} ms at most (less than 500 ms)", p.error)

    # Its replicas go on: with a third of the nodes gone it is needed for the majority.
    c.do("kill", "n3")
    done = len(p.confirmed)
    tap.ok(until(lambda: len(p.confirmed) > done + 200), "the node in maintenance still acknowledges: with one other node gone publishes are confirmed")
    tap.ok(until(lambda: set(leaders(c, "n2").values()) == {"n2"}, 10), "the node that is left leads everything", leaders(c, "n2"))
    c.do("start", "n3")
    c.do("await", "n3")

    r = c.ctl("n1", "revive", check=False)
    tap.ok(r.returncode == 0 and not refused(c, "n1"), "revive: clients may connect again", r)
    tap.ok(until(lambda: maintenance(c, "n3", "n1") == "not under maintenance") and c.json("n1", "status")["is_under_maintenance"] is False,
           "and nobody shows it as under maintenance")
    c.lead(QUEUES[0], "n1")
    tap.ok(c.leader("n1", QUEUES[0]) == "n1", "it may lead again")

    # From another node, and not over a restart.
    r = c.ctl("n2", "-n", "n1@localhost", "drain", check=False)
    tap.ok(r.returncode == 0 and refused(c, "n1"), "another node's command does the same", r)
    c.do("stop", "n1")
    c.do("start", "n1")
    c.do("await", "n1")
    tap.ok(until(lambda: maintenance(c, "n2", "n1") == "not under maintenance") and not refused(c, "n1"), "a restart ends maintenance mode")

    tap.ok(p.drain() and not p.nacked, "every publish is confirmed")
    p.stop()
    k = Consumer(c, "n1", QUEUES[0])
    k.start()
    k.wait_for(p.confirmed)
    k.stop()
    wrong = check_deliveries(k.got, p.confirmed, p.next)
    tap.ok(not wrong, "and is there, in order", *wrong)

# A follower that is filled again is no successor yet: publishing would stop until it is level.
with Cluster() as c:
    names = [f"far-{i}" for i in range(6)]  # Each of the two others is the first choice for some.
    for q in names:
        c.declare("n1", q)
        c.lead(q, "n1")
    c.do("kill", "n3")
    for q in names:
        Load(publish_port=c.port("n1"), queue=q, size=100000, consumers=0, count=1000, no_declare=True).result()
    publishers = [Publisher(c, "n2", q, rate=100) for q in names]
    for p in publishers:
        p.start()
    for p in publishers:
        p.ready.wait(10)
    until(lambda: all(len(p.confirmed) > 50 for p in publishers))
    c.do("start", "n3")
    until(lambda: "n3@localhost" in c.json("n1", "cluster_status")["running_nodes"])
    began = time.monotonic()
    r = c.ctl("n1", "drain", check=False)
    took = time.monotonic() - began
    led = leaders(c, "n2")
    done = [len(p.confirmed) for p in publishers]
    until(lambda: all(len(p.confirmed) > n + 10 for p, n in zip(publishers, done)))
    gaps = [p.longest_gap(began) for p in publishers]
    tap.ok(r.returncode == 0 and took < 1.5 * SLOW and "n1" not in led.values() and max(gaps) < 0.25 * SLOW and not any(p.error for p in publishers),
           f"while a third node is filled again, the other one gets the leads at once: drained in {took:.2f} s, publishers waited {max(gaps) * 1000:.0f} ms at most",
           led, gaps)
    for p in publishers:
        p.stop()

with Cluster(nodes=1) as c:
    c.declare("n1", "alone")
    r = c.ctl("n1", "drain", check=False)
    tap.ok(r.returncode == 0 and refused(c, "n1"), "a single node can be drained: there is nobody to hand anything to", r)
    r = c.ctl("n1", "revive", check=False)
    tap.ok(r.returncode == 0 and not refused(c, "n1"), "and revived", r)

tap.end()
