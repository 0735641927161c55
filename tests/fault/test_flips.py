#!/usr/bin/python3
"""Wrong bits in every kind of file of one stopped node of three (law 2: damage is amnesia, never a silent cut). Whatever is flipped:
nothing confirmed is lost, no queue vanishes, and the node heals, or its log says what to do.

  FLIPS_SEED=n FLIPS_ROUNDS=n tests/fault/test_flips.py      rounds per kind of file (1)"""
import glob, os, random, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from warren import *

t = Tap()
SEED = int(os.environ.get("FLIPS_SEED", time.time_ns() % 1000000))
ROUNDS = int(os.environ.get("FLIPS_ROUNDS", "1"))
rng = random.Random(SEED)
root = os.path.join(build, "local-cluster")
QUEUES = ["flips0", "flips1", "flips2"]
KINDS = {"log": "wal/wal-*", "segment": "seg/seg-*[0-9a-f]", "checkpoint": "seg/groups-*[0-9a-f]", "metadata": "meta/**/data.mdb",
         "name of the metadata": "meta/CURRENT", "identity": "identity"}
published = dict.fromkeys(QUEUES, 0)
confirmed = {q: [] for q in QUEUES}


def publish(c, node, count):
    wrong = []
    for q in QUEUES:
        p = Publisher(c, node, q, size=3000, start=published[q], limit=published[q] + count)
        p.start()
        if not until(lambda: len(p.confirmed) == count or p.error, 20): wrong.append(f"{q}: {len(p.confirmed)} of {count} confirmed")
        published[q] += count
        confirmed[q] += p.confirmed
        p.stop()
    return wrong


def flip(files):
    """Some bits of some of the files, within what they hold."""
    said = []
    for path in rng.sample(files, min(len(files), rng.choice([1, 1, 2]))):
        size = os.path.getsize(path)
        with open(path, "rb") as f: held = max(len(f.read().rstrip(b"\0")), 1)
        with open(path, "r+b") as f:
            for _ in range(rng.choice([1, 3, 20])):
                at, bit = rng.randrange(min(held, size)), rng.randrange(8)
                f.seek(at); b = f.read(1)[0]; f.seek(at); f.write(bytes([b ^ 1 << bit]))
                said.append(f"{os.path.basename(path)}+{at}.{bit}")
    return said


def says_what_to_do(log):
    return any(word in log for word in ("forget_cluster_node", "delete the data directory", "Delete its data directory"))


def is_whole(c, node):
    """Up, and each queue has three members that vote and are level."""
    if c.ctl(node, "-q", "await_startup", "--timeout", "1", check=False).returncode: return False
    for q in QUEUES:
        p = c.ctl("n1", "quorum_status", q, "--formatter", "json", check=False)
        rows = json.loads(p.stdout) if p.returncode == 0 else []
        if len(rows) != 3 or len({r["Last Applied"] for r in rows}) != 1 or any(r["Raft State"] not in ("leader", "follower") for r in rows): return False
        if any(r["Membership"] != "voter" for r in rows): return False
    return True


def round_of(c, kind):
    wrong = publish(c, "n1", 250)
    c.do(rng.choice(["stop", "kill"]), "n3")
    files = sorted(glob.glob(f"{root}/n3/{KINDS[kind]}", recursive=True))
    if not files: return [f"n3 has no such file: {os.listdir(f'{root}/n3')}"]
    said = flip(files)
    started = len(c.do("logs", "n3").stdout)
    c.do("start", "n3")
    until(lambda: is_whole(c, "n3") or c.do("pid", "n3", check=False).returncode, 20, 0.1)  # Or it has ended.
    healed = is_whole(c, "n3")
    log = c.do("logs", "n3").stdout[started:]
    if not healed and not says_what_to_do(log): wrong.append("n3 is not whole, and does not say what to do: " + " | ".join(log.splitlines()[-4:]))
    if "was deleted while this node was away" in log: wrong.append("n3 took queues for deleted")
    if not healed:  # What it says to do: forget it, and let it come back empty.
        print(f"# {kind}: healed by hand; it said: {log.splitlines()[-1][:200] if log else ''}")
        c.do("wipe", "n3")
        until(lambda: "n3@localhost" not in c.json("n1", "cluster_status")["running_nodes"])
        c.ctl("n1", "forget_cluster_node", "n3@localhost", check=False)
        c.do("start", "n3")
        if not until(lambda: is_whole(c, "n3"), 30, 0.1): wrong.append("n3 is not whole after it came back empty")
    elif os.path.exists(f"{root}/n3/healed"):
        os.remove(f"{root}/n3/healed")  # Not the same disk twice, as far as the next round is concerned.
    return wrong + ([f"flipped: {said[:6]}"] if wrong else [])


def all_there(c):
    """n3 and one other have everything."""
    wrong = []
    c.do("kill", "n1")
    for q in QUEUES:
        if not until(lambda: c.leader("n3", q) in ("n2", "n3"), 15): wrong.append(f"{q} has no leader")
        k = Consumer(c, "n3", q)
        k.start()
        if not k.wait_for(confirmed[q], 20): wrong.append(f"{q}: not everything arrived")
        wrong += check_deliveries(k.got, confirmed[q], published[q])
        k.stop()
    return wrong


print(f"# FLIPS_SEED={SEED}")
with Cluster(3, conf="warren.wal_file_bytes = 1MiB\nwarren.memtable_bytes = 4MiB\n") as c:
    for q in QUEUES: c.declare("n1", q)
    wrong = publish(c, "n1", 700)
    t.ok(not wrong, "there are segments, checkpoints and a log to damage", *wrong)
    for kind in KINDS:
        for i in range(ROUNDS):
            t.run(f"bits of its {kind} are flipped while a node is down: it heals or says what to do", round_of, c, kind)
    t.run("everything confirmed is on the node that was damaged and one other", all_there, c)
t.end()
