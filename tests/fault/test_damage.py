#!/usr/bin/python3
"""Damaged files: metadata (CR-05) and log. A damaged node never deletes, never guesses, never votes on what it lost."""
import glob, os, random, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from warren import *

t = Tap()
rng = random.Random(5)
root = os.path.join(build, "local-cluster")


def flip(path, count, start=0, end=None):
    size = end or os.path.getsize(path)
    with open(path, "r+b") as f:
        for _ in range(count):
            at = rng.randrange(start, size)
            f.seek(at); b = f.read(1); f.seek(at); f.write(bytes([b[0] ^ (1 << rng.randrange(8))]))


def metadata_of(node):
    files = [f for f in glob.glob(f"{root}/{node}/meta/**/data.mdb", recursive=True)]
    assert files, "no LMDB file found"
    return max(files, key=os.path.getmtime)


def fill(c, n=20):
    for i in range(n):
        c.declare("n1", f"q{i}")
    k = c.connect("n1"); ch = k.channel(); ch.confirm_delivery()
    for i in range(n): ch.basic_publish("", f"q{i}", b"kept")
    k.close()
    time.sleep(0.3)


def complete(c, node, n=20):
    return until(lambda: [q["messages"] for q in c.json(node, "list_queues", "name", "messages")] == [1] * n, 20)


def metadata_of_one(c):
    fill(c)
    wrong = []
    for round in range(4):
        c.do("stop" if round % 2 else "kill", "n3")
        flip(metadata_of("n3"), 200)
        c.do("start", "n3")
        c.do("await", "n3")
        if not complete(c, "n3"): wrong.append(f"round {round}: n3 shows {len(c.json('n3', 'list_queues', 'name'))} queues")
        if "was deleted while this node was away" in c.do("logs", "n3").stdout: wrong.append(f"round {round}: n3 took queues for deleted")
    # n3's replicas still hold the data: with n3 and n1 alone everything is served.
    c.do("kill", "n2")
    k = c.connect("n3"); ch = k.channel()
    for i in range(20):
        got = until(lambda: ch.basic_get(f"q{i}", auto_ack=False)[2], 10)
        if got != b"kept": wrong.append(f"q{i}: {got}")
    k.close()
    c.do("start", "n2"); c.do("await", "n2")
    c.ctl("n2", "-q", "await_online_nodes", "3")
    return wrong


def metadata_of_two(c):
    wrong = []
    for n in ("n2", "n3"):
        c.do("kill", n)
        flip(metadata_of(n), 200)
    for n in ("n2", "n3"): c.do("start", n)
    for n in ("n2", "n3"):
        try:
            c.do("await", n, 20)
        except Exception:  # Refusing to serve is right; guessing is not.
            print(f"# {n} refuses: {c.json(n, 'status')['waiting_for']}")
            continue
        if not complete(c, n): wrong.append(f"{n} serves {len(c.json(n, 'list_queues', 'name'))} of 20 queues")
    if not complete(c, "n1"): wrong.append("n1 lost queues")
    for n in ("n2", "n3"):
        if "was deleted while this node was away" in c.do("logs", n).stdout: wrong.append(f"{n} took queues for deleted")
    return wrong


def log_of_one(c):
    """Synced log data of one node is damaged: it neither votes nor acknowledges, and nothing confirmed is lost."""
    c.do("down"); c.do("up", 3)
    c.declare("n1", "log")
    p = Publisher(c, "n1", "log", limit=3000, size=1000); p.start()
    assert until(lambda: len(p.confirmed) == 3000, 20)
    p.stop()
    c.do("kill", "n3")
    files = sorted(glob.glob(f"{root}/n3/wal/wal-*"), key=os.path.getmtime)
    flip(files[-1], 3, 64 << 10, 2 << 20)
    c.do("kill", "n2")  # So that nobody can replace what n3 lost.
    c.do("start", "n3")
    time.sleep(2)
    wrong = []
    log = c.do("logs", "n3").stdout.split("starting node")[-1]
    print("# n3 says: " + next((l for l in log.splitlines() if "DAMAGED" in l or "damaged" in l or "amnesiac" in l), "nothing of damage")[:220])
    q = Publisher(c, "n1", "log", start=3000, limit=3010); q.start()
    time.sleep(3)
    # n1 and the damaged n3: no majority for this group, so no confirm.
    if q.confirmed: wrong.append(f"{len(q.confirmed)} confirmed with the help of a replica that lost its log")
    c.do("start", "n2"); c.do("await", "n2")
    if not until(lambda: len(q.confirmed) == 10, 10): wrong.append(f"{len(q.confirmed)} of 10 confirmed after n2 is back")
    consumer = Consumer(c, "n2", "log"); consumer.start()
    if not consumer.wait_for(range(3010), 20): wrong.append(f"{len(set(n for _, n, _ in consumer.got))} of 3010 arrived")
    wrong += check_deliveries(consumer.got, range(3010), 3010)
    q.stop(); consumer.stop()
    return wrong


def log_gone(c):
    """The log directory of the founding node is empty: what it had promised is lost. It must not begin anew."""
    c.do("down"); c.do("up", 3)
    fill(c)
    c.declare("n1", "gone")
    p = Publisher(c, "n1", "gone", limit=100, size=100); p.start()
    assert until(lambda: len(p.confirmed) == 100, 20)
    p.stop()
    c.do("kill", "n1")
    for f in glob.glob(f"{root}/n1/wal/*"): os.remove(f)
    c.do("kill", "n3")
    wrong = []
    for start in ("first", "second"):  # Damaged at the next start, too.
        c.do("start", "n1")
        time.sleep(2)
        try:
            c.connect("n1", connection_attempts=1).close()
            wrong.append(f"{start} start: n1 takes connections although nobody can have replaced it")
        except pika.exceptions.AMQPError:  # Refusing is right.
            pass
        if start == "first": c.do("kill", "n1")
    log = c.do("logs", "n1").stdout.split("starting node")[-1]
    print("# n1 says: " + next((l for l in log.splitlines() if "not known" in l), "nothing of a loss")[:220])
    q = Publisher(c, "n2", "gone", start=100, limit=110); q.start()
    time.sleep(2)
    if q.confirmed: wrong.append(f"{len(q.confirmed)} confirmed with the help of a node that lost its log")
    c.do("start", "n3"); c.do("await", "n3")
    if not until(lambda: len(q.confirmed) == 10, 20): wrong.append(f"{len(q.confirmed)} of 10 confirmed after n3 is back")
    # With a majority of the others the node is replaced, gives its data up, and comes back.
    c.do("await", "n1"); c.ctl("n1", "-q", "await_online_nodes", "3")
    served = len(c.json("n1", "list_queues", "name"))
    if served != 21: wrong.append(f"n1 is back and knows {served} of 21 queues")
    if "was deleted while this node was away" in c.do("logs", "n1").stdout: wrong.append("n1 took queues for deleted")
    consumer = Consumer(c, "n2", "gone"); consumer.start()
    if not consumer.wait_for(range(110), 20): wrong.append(f"{len(set(n for _, n, _ in consumer.got))} of 110 arrived")
    wrong += check_deliveries(consumer.got, range(110), 110)
    q.stop(); consumer.stop()
    return wrong


def first_batch_of_newest_group(path):
    """Where the batch begins that holds the first record of the group met last (consensus/wal/README.md, "Format")."""
    data = open(path, "rb").read()
    at, first = 4096, {}
    while data[at:at + 4] == b"BTCH":
        total = int.from_bytes(data[at + 4:at + 8], "little")
        r = at + 32
        while r < at + total:
            length, group = int.from_bytes(data[r + 4:r + 8], "little"), int.from_bytes(data[r + 8:r + 16], "little")
            first.setdefault(group, at)
            r += (40 + length + 7) // 8 * 8
        at += (total + 4095) // 4096 * 4096
    return max(first.values())


def beginning_gone(c):
    """The part of one node's log is damaged in which a queue began: nothing is left of its replica, which is not new for that."""
    c.do("down"); c.do("up", 3)
    c.declare("n1", "other"); c.declare("n1", "late")
    p = Publisher(c, "n1", "late", limit=100, size=100); p.start()
    assert until(lambda: len(p.confirmed) == 100, 20)
    p.stop()
    time.sleep(0.5)  # The metadata store of n3 commits its knowledge of the queue.
    c.do("kill", "n3")
    path = sorted(glob.glob(f"{root}/n3/wal/wal-*"))[-1]
    at = first_batch_of_newest_group(path)
    with open(path, "r+b") as f:
        f.seek(at); f.write(b"\0")
    wrong = []
    c.do("kill", "n1")  # A new leader has to be elected, one that does not remember what n3 had; and nobody can replace that.
    c.do("start", "n3")
    time.sleep(1)
    log = c.do("logs", "n3").stdout.split("starting node")[-1]
    print("# n3 says: " + next((l for l in log.splitlines() if "nothing is left" in l), "nothing of a loss")[:220])
    q = Publisher(c, "n2", "late", start=100, limit=110); q.start()
    time.sleep(3)
    if q.confirmed: wrong.append(f"{len(q.confirmed)} confirmed with the help of a replica that lost its memory")
    c.do("start", "n1"); c.do("await", "n1")
    if not until(lambda: len(q.confirmed) == 10, 20): wrong.append(f"{len(q.confirmed)} of 10 confirmed after n1 is back")
    consumer = Consumer(c, "n2", "late"); consumer.start()
    if not consumer.wait_for(range(110), 20): wrong.append(f"{len(set(n for _, n, _ in consumer.got))} of 110 arrived")
    wrong += check_deliveries(consumer.got, range(110), 110)
    q.stop(); consumer.stop()
    return wrong


def a_record_of_newest_group(path):
    """(offset, length) of a record in the middle of the ones of the group met last."""
    data = open(path, "rb").read()
    at, records = 4096, {}
    while data[at:at + 4] == b"BTCH":
        total = int.from_bytes(data[at + 4:at + 8], "little")
        r = at + 32
        while r < at + total:
            length, group = int.from_bytes(data[r + 4:r + 8], "little"), int.from_bytes(data[r + 8:r + 16], "little")
            records.setdefault(group, []).append((r, 40 + length))
            r += (40 + length + 7) // 8 * 8
        at += (total + 4095) // 4096 * 4096
    mine = records[max(records)]
    return mine[len(mine) // 2]


def whole(c, node, queue):
    p = c.ctl(node, "quorum_status", queue, "--formatter", "json", check=False)
    rows = json.loads(p.stdout) if p.returncode == 0 else []
    return (len(rows) == 3 and all(r["Membership"] == "voter" and r["Raft State"] in ("leader", "follower") for r in rows)
            and len({r["Last Applied"] for r in rows}) == 1)


def one_queue(c):
    """One record of one queue is damaged on one node: that replica is made anew under another id, the node and its other queues stay."""
    c.do("down"); c.do("up", 3)
    c.declare("n1", "beside"); c.declare("n1", "hit")
    p = Publisher(c, "n1", "hit", limit=200, size=300); p.start()
    assert until(lambda: len(p.confirmed) == 200, 20)
    p.stop()
    assert until(lambda: whole(c, "n1", "hit"))
    c.do("kill", "n3")
    path = sorted(glob.glob(f"{root}/n3/wal/wal-*"))[-1]
    at, length = a_record_of_newest_group(path)
    with open(path, "r+b") as f:
        f.seek(at + 40); b = f.read(1); f.seek(at + 40); f.write(bytes([b[0] ^ 4]))
    # Without n2 there is no majority beside the damaged replica: it is not replaced, nothing is confirmed.
    c.do("kill", "n2")
    c.do("start", "n3"); c.do("await", "n3")
    q = Publisher(c, "n1", "hit", start=200, limit=210); q.start()
    time.sleep(2)
    wrong = []
    if q.confirmed: wrong.append(f"{len(q.confirmed)} confirmed with the help of a replica that lost its memory")
    log = c.do("logs", "n3").stdout.split("starting node")[-1]
    if "has lost its memory" not in log or "asks its cluster to be replaced" in log:
        wrong.append("n3 does not say that one replica, and only that one, has lost its memory: " + log[-600:])
    c.do("start", "n2"); c.do("await", "n2")
    if not until(lambda: len(q.confirmed) == 10, 20): wrong.append(f"{len(q.confirmed)} of 10 confirmed after n2 is back")
    if not until(lambda: whole(c, "n1", "hit"), 20): wrong.append(f"the queue is not whole again: {c.ctl('n1', 'quorum_status', 'hit').stdout}")
    # What was made anew counts: with it and one other all is there and goes on.
    c.do("kill", "n1")
    k = Publisher(c, "n3", "hit", start=210, limit=220); k.start()
    if not until(lambda: len(k.confirmed) == 10, 20): wrong.append(f"{len(k.confirmed)} of 10 confirmed by n2 and the new replica of n3")
    consumer = Consumer(c, "n3", "hit"); consumer.start()
    if not consumer.wait_for(range(220), 20): wrong.append(f"{len(set(n for _, n, _ in consumer.got))} of 220 arrived")
    wrong += check_deliveries(consumer.got, range(220), 220)
    for s in (q, k, consumer): s.stop()
    # It lives on under its new id, over a restart, too.
    c.do("start", "n1"); c.do("await", "n1")
    c.do("kill", "n3"); c.do("start", "n3"); c.do("await", "n3")
    if not until(lambda: whole(c, "n3", "hit"), 20): wrong.append(f"not whole after a restart: {c.ctl('n3', 'quorum_status', 'hit').stdout}")
    return wrong


with Cluster(3) as c:
    t.run("CR-05: damaged metadata of one node is fetched again, nothing is deleted", metadata_of_one, c)
    t.run("CR-05: with two damaged of three nobody guesses", metadata_of_two, c)
    t.run("a damaged log takes part in no majority, and nothing confirmed is lost", log_of_one, c)
    t.run("a node whose log directory is empty does not begin anew, and is replaced when a majority of the others is there", log_gone, c)
    t.run("a replica whose log is damaged is made anew by itself when the others are a majority without it", one_queue, c)
    t.run("a replica of which a damaged log holds nothing is not a new one", beginning_gone, c)
t.end()
