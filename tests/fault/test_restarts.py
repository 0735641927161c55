#!/usr/bin/python3
"""Restarts: all orders (CR-17), crashes while booting (CR-08), rolling without waiting (CL-17), foreign files (CR-11), a second
process on one directory (CR-20). ROUNDS=n (5 rounds of crashes and rolls; the cases ask for 200 and 20),
GAP_S=n (0.2 s until the second node is started; the case asks for 60 and 600 too)."""
import itertools, os, random, shutil, subprocess, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from warren import *

ROUNDS = int(os.environ.get("ROUNDS", "5"))
GAP_S = float(os.environ.get("GAP_S", "0.2"))
NODES = ("n1", "n2", "n3")
t = Tap()
random.seed(7)
written = {"count": 0}


def write(c, n=20, node="n1"):
    c.declare(node, "restart")
    p = Publisher(c, node, "restart", start=written["count"], limit=written["count"] + n, size=300); p.start()
    assert until(lambda: len(p.confirmed) == n, 20), f"{len(p.confirmed)} of {n} confirmed"
    p.stop()
    written["count"] += n


def all_there(c, node="n1"):
    return until(lambda: [q["messages"] for q in c.json(node, "list_queues", "name", "messages") if q["name"] == "restart"] == [written["count"]], 20)


def orders(c):
    wrong = []
    for how in ("stop", "kill"):
        for order in itertools.permutations(NODES):
            write(c)
            for n in NODES: c.do(how, n)
            c.do("start", order[0])
            time.sleep(GAP_S)
            s = until(lambda: c.ctl(order[0], "status", "--formatter", "json", check=False).stdout, 10)
            if '"waiting_for":""' in s: wrong.append(f"{order[0]} alone says it is up")
            c.do("start", order[1])
            start = time.monotonic()
            c.do("await", order[0]); c.do("await", order[1])
            if not all_there(c, order[1]): wrong.append(f"{how} {order}: not everything is there with two nodes")
            c.do("start", order[2]); c.do("await", order[2])
            c.ctl("n1", "-q", "await_online_nodes", "3")
    return wrong


def founding_crashes(c):
    """Nodes killed at any moment while the cluster is being founded: one cluster comes of it, never two."""
    wrong = []
    for round in range(ROUNDS * 2):
        for n in NODES: c.do("wipe", n)
        for n in NODES: c.do("start", n)
        end = time.monotonic() + 0.6
        while time.monotonic() < end:
            n = random.choice(NODES)
            time.sleep(random.random() * 0.15)
            c.do("kill", n); c.do("start", n)
        try:
            for n in NODES: c.do("await", n, 30)
            for n in NODES: c.ctl(n, "-q", "await_online_nodes", "3", "--timeout", "20")
        except Exception as e:
            wrong.append(f"round {round}: {e}")
            for n in NODES: wrong += [f"{n}: {l[:300]}" for l in c.do("logs", n).stdout.splitlines()[-4:]]
            break
        founded = sum(c.do("logs", n).stdout.count("founding a new cluster") for n in NODES)
        views = {tuple(c.json(n, "cluster_status")["disk_nodes"]) for n in NODES}
        if len(views) != 1: wrong.append(f"round {round}: {views}")
        c.declare("n2", f"round-{round}")
    written["count"] = 0
    return wrong


def boot_crashes(c):
    write(c)
    for i in range(ROUNDS):
        c.do("kill", "n2"); c.do("start", "n2")
        time.sleep(random.random() * [0.02, 0.3, 1.0][i % 3])
    c.do("kill", "n2"); c.do("start", "n2"); c.do("await", "n2")
    c.ctl("n2", "-q", "await_online_nodes", "3")
    c.do("kill", "n1")  # n2 is needed now.
    ok = all_there(c, "n2")
    c.do("start", "n1"); c.do("await", "n1")
    return [] if ok else [f"not everything is there: {c.json('n2', 'list_queues', 'name', 'messages')} of {written['count']}"]


def rolling(c):
    """Each node in turn, 1 s after the one before was started; clients are at a node that stays."""
    wrong = []

    def publisher(node):
        p = Publisher(c, node, "restart", start=written["count"], rate=500); p.start()
        p.ready.wait(5)
        return p

    def end(p):
        if not p.drain(30): wrong.append(f"round {i}: {len(p.by_tag)} not confirmed 30 s after the last start")
        if p.error: wrong.append(f"round {i}: {p.error}")
        written["count"] += len(p.confirmed)
        p.stop()

    for i in range(ROUNDS):
        p = publisher("n1")
        for n in ("n3", "n2"):
            c.do("kill", n); c.do("start", n); time.sleep(1)
        end(p)
        c.do("await", "n3")
        p = publisher("n3")
        c.do("kill", "n1"); c.do("start", "n1"); time.sleep(1)
        end(p)
        for n in NODES: c.do("await", n)
    if not all_there(c): wrong.append(f"{c.json('n1', 'list_queues', 'name', 'messages')}, expected {written['count']}")
    return wrong


def deleted_while_away(c):
    """A node whose store and records still have queues that were deleted meanwhile comes up without them."""
    names = [f"away-{i}" for i in range(40)]
    k = c.connect("n1"); ch = k.channel(); ch.confirm_delivery()
    for q in names:
        ch.queue_declare(q, durable=True, arguments=QUORUM)
        ch.basic_publish("", q, b"m")
    assert until(lambda: len(c.json("n3", "list_queues", "name")) >= len(names), 10)
    time.sleep(0.2)  # The metadata is written every 50 ms: n3 has the records on its disk.
    c.do("kill", "n3")
    for q in names: ch.queue_delete(q)
    k.close()
    c.do("start", "n3"); c.do("await", "n3")
    c.ctl("n3", "-q", "await_online_nodes", "3")
    return [f"n3 lists {q['name']}" for q in c.json("n3", "list_queues", "name") if q["name"] in names]


def foreign(c):
    c.do("stop", "n3")
    d = os.path.join(build, "local-cluster", "n3")
    for sub in [d] + [os.path.join(d, s) for s in os.listdir(d) if os.path.isdir(os.path.join(d, s))]:
        for name in (".DS_Store", ".nfs000", "00000.segment.bak", "seg-x", "wal-"):
            with open(os.path.join(sub, name), "wb") as f: f.write(b"not ours")
        os.makedirs(os.path.join(sub, "lost+found"), exist_ok=True)
        if not os.path.exists(os.path.join(sub, "pipe")): os.mkfifo(os.path.join(sub, "pipe"))
    c.do("start", "n3"); c.do("await", "n3")
    return [] if all_there(c, "n3") else ["not everything is there"]


def second_process(c):
    p = subprocess.run([os.path.join(build, "warren"), "--config", os.path.join(build, "local-cluster", "n1.conf")], capture_output=True, text=True, timeout=20)
    wrong = [] if p.returncode == 69 and "in use by another process" in p.stderr else [f"exit {p.returncode}: {p.stderr[-300:]}"]
    # A copy of the directory under the same name: the first stays, the copy is refused.
    copy = os.path.join(build, "local-cluster", "copy")
    shutil.copytree(os.path.join(build, "local-cluster", "n3"), copy, ignore=lambda d, names: [n for n in names if n in ("control.sock", "pipe")])
    with open(os.path.join(build, "local-cluster", "n3.conf")) as f: conf = f.read()
    conf = conf.replace("/local-cluster/n3", "/local-cluster/copy").replace("127.0.0.1:25674\nwarren.cluster_secret", "127.0.0.1:25699\nwarren.cluster_secret").replace("127.0.0.1:5674", "127.0.0.1:5699")
    path = os.path.join(build, "local-cluster", "copy.conf")
    with open(path, "w") as f: f.write(conf)
    q = subprocess.Popen([os.path.join(build, "warren"), "--config", path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    time.sleep(3)
    s = subprocess.run([os.path.join(build, "warrenctl"), "--socket", os.path.join(copy, "control.sock"), "status", "--formatter", "json"], capture_output=True, text=True)
    if q.poll() is None and '"waiting_for":""' in s.stdout: wrong.append("a copy of a running node's directory came up")
    q.kill()
    out = q.communicate()[0]
    print("# the copy says: " + (out.splitlines() or [""])[-1][:200])
    write(c)
    if not all_there(c): wrong.append("the cluster does not go on")
    return wrong


with Cluster(3) as c:
    t.run("crashes while a cluster is being founded: one comes of it", founding_crashes, c)
    t.run("CR-17: all nodes stopped or killed and started in all six orders: two are enough, one waits and says so", orders, c)
    t.run("CR-08: crashes while booting lose nothing", boot_crashes, c)
    t.run("CL-17: rolling restarts without waiting lose nothing", rolling, c)
    t.run("queues deleted while a node was away are gone when it is back", deleted_while_away, c)
    t.run("CR-11: foreign files in the data directories are ignored", foreign, c)
    t.run("CR-20: a second process on one directory, or on a copy of it, is refused", second_process, c)


def alone(c):
    wrong = []
    written["count"] = 0
    for how in ("kill", "stop"):
        write(c)
        start = time.monotonic()
        c.do(how, "n1"); c.do("start", "n1"); c.do("await", "n1")
        if not all_there(c): wrong.append(f"after {how}: {c.json('n1', 'list_queues', 'name', 'messages')} of {written['count']}")
    return wrong


with Cluster(1) as c:
    t.run("a node alone comes back with its data", alone, c)
t.end()
