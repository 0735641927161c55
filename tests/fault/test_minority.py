#!/usr/bin/python3
"""One node of three alive: no false success, lists still answer, work goes on within 2 s of a second node; wiped nodes
found no second cluster (decisions 6, 16, 18; cases CL-02, CL-08)."""
import os, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from warren import *
from pika.exceptions import ConnectionClosedByBroker, ChannelClosedByBroker

t = Tap()


def refused(fn, limit=12):
    """Runs fn, which must end with connection error 541 within the limit."""
    start = time.monotonic()
    try:
        fn()
        return ["a false success"]
    except ConnectionClosedByBroker as e:
        took = time.monotonic() - start
        wrong = [] if e.reply_code == 541 else [f"{e.reply_code} {e.reply_text}"]
        if took > limit: wrong.append(f"after {took:.1f} s")
        return wrong


def minority(c):
    c.declare("n1", "left")
    k = c.connect("n1"); ch = k.channel(); ch.confirm_delivery()
    for i in range(5): ch.basic_publish("", "left", b"p:%d:" % i)
    wrong = []
    standing = c.connect("n1")  # A connection that is there when the majority goes.
    c.do("kill", "n2"); c.do("kill", "n3")
    start = time.monotonic()
    p = Publisher(c, "n1", "left", limit=10, start=5)
    p.start()
    assert p.ready.wait(10), "a new connection opens in a minority"
    wrong += [f"declare: {w}" for w in refused(lambda: c.connect("n1").channel().queue_declare("never", durable=True, arguments=QUORUM))]
    wrong += [f"bind: {w}" for w in refused(lambda: standing.channel().queue_bind("left", "amq.direct", "k"))]
    if p.confirmed: wrong.append(f"{len(p.confirmed)} confirmed without a majority")
    begin = time.monotonic()
    rows = c.json("n1", "list_queues", "name", "messages")
    if [r["name"] for r in rows] != ["left"]: wrong.append(f"list_queues: {rows}")
    if time.monotonic() - begin > 5: wrong.append(f"list_queues took {time.monotonic() - begin:.1f} s")
    r = c.ctl("n1", "add_user", "u", "p", check=False)
    if r.returncode != 75: wrong.append(f"add_user: exit {r.returncode}: {r.stderr.strip()}")
    if time.monotonic() - start < 3: time.sleep(1)
    if p.confirmed: wrong.append(f"{len(p.confirmed)} confirmed without a majority")
    c.do("start", "n2"); c.do("await", "n2")
    back = time.monotonic()
    if not until(lambda: len(p.confirmed) == 5, 5): wrong.append(f"after a second node is back {len(p.confirmed)} of 5 are confirmed")
    took = time.monotonic() - back
    if took > 2: wrong.append(f"work went on only {took:.1f} s after the second node")
    names = [r["name"] for r in c.json("n2", "list_queues", "name")]
    if names != ["left"]: wrong.append(f"after the minority there is {names}")
    p.stop()
    c.do("start", "n3"); c.do("await", "n3")
    consumer = Consumer(c, "n3", "left"); consumer.start()
    if not consumer.wait_for(range(10)): wrong.append(f"{sorted(n for _, n, _ in consumer.got)} of 0..9 arrived")
    wrong += check_deliveries(consumer.got, range(10), 10)
    consumer.stop()
    return wrong


def asleep(c):
    """A replica that nobody needed since its node's start has not read its state yet: alone it says what it holds all the same."""
    c.declare("n2", "asleep")
    c.lead("asleep", "n2")
    ch = c.connect("n2").channel()
    ch.confirm_delivery()
    for i in range(7): ch.basic_publish("", "asleep", b"%d" % i)
    c.do("stop", "n1"); c.do("start", "n1"); c.do("await", "n1")
    c.ctl("n1", "-q", "await_online_nodes", "3")
    wrong = [] if c.json("n1", "status")["warren"]["asleep"] > 0 else ["nothing sleeps on n1, so this shows nothing"]
    for n in ("n2", "n3"): c.do("pause", n)  # The leader is known for a while yet, and does not answer.
    rows = {r["name"]: r["messages"] for r in c.json("n1", "list_queues", "name", "messages")}
    if rows.get("asleep") != 7: wrong.append(f"list_queues: {rows}")
    for n in ("n2", "n3"): c.do("resume", n)
    c.ctl("n1", "-q", "await_online_nodes", "3")
    return wrong


def two_wiped(c):
    """Two of three wiped and started: the third keeps the data; no second cluster is founded; the wiped are refused."""
    c.declare("n1", "kept")
    k = c.connect("n1"); ch = k.channel(); ch.confirm_delivery()
    for i in range(10): ch.basic_publish("", "kept", b"p:%d:" % i)
    k.close()
    c.do("wipe", "n2"); c.do("wipe", "n3")
    c.do("start", "n2"); c.do("start", "n3")
    time.sleep(3)
    wrong = []
    for n in ("n2", "n3"):
        s = c.json(n, "status")
        if not s["waiting_for"]: wrong.append(f"{n} is up: it founded or joined something")
        print(f"# {n} says: {s['waiting_for']}")
        log = c.do("logs", n).stdout
        if "founding a new cluster" in log.split("starting node")[-1]: wrong.append(f"{n} founded a cluster")
    return wrong


def wiped_and_cut(c):
    """CL-02: confirmed data is on n1 and n3 only; n3 is wiped, n1 cut off: n2 and the empty n3 must not go on without n1."""
    c.do("down"); c.do("up", 3)
    c.declare("n1", "cl02")
    c.do("pause", "n2")
    p = Publisher(c, "n1", "cl02", limit=50); p.start()
    wrong = []
    if not until(lambda: len(p.confirmed) == 50, 10): wrong.append("n1 and n3 do not confirm by themselves")
    p.stop()
    c.do("wipe", "n3")
    n1 = c.pid("n1")
    c.do("pause", "n1")
    c.do("resume", "n2")
    c.do("start", "n3")
    time.sleep(4)
    r = c.ctl("n2", "quorum_status", "cl02", "--formatter", "json", check=False, timeout=20)
    if '"leader"' in r.stdout: wrong.append(f"a leader without the confirmed data: {r.stdout}")
    c.do("resume", "n1")
    consumer = Consumer(c, "n1", "cl02"); consumer.start()
    if not consumer.wait_for(range(50), 20): wrong.append(f"{len(consumer.got)} of 50 after n1 is back")
    wrong += check_deliveries(consumer.got, range(50), 50)
    consumer.stop()
    return wrong


with Cluster(3) as c:
    t.run("with one node of three nothing succeeds falsely, lists answer, and a second node is enough to go on", minority, c)
    t.run("a replica that sleeps says what it holds when it is alone", asleep, c)
    t.run("two wiped nodes found no second cluster", two_wiped, c)
    t.run("CL-02: a lagging node and a wiped one do not make a majority", wiped_and_cut, c)
t.end()
