#!/usr/bin/python3
"""Versions side by side (CL-32), as far as there is one version today: what a node says to one that speaks others, and what it does
with files that a later version has written. A level that the cluster raises together comes with the first change that needs one.

OLD_BUILD=DIR also rolls a cluster of the build in DIR to this one node by node under load, and one node back half-way.
"""
import glob, hashlib, hmac, os, shutil, socket, struct, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from warren import *

t = Tap()
SECRET = b"local-cluster"
HELLO, CHALLENGE, PROOF, BEAT = 1, 2, 3, 4
ROOT = os.path.join(build, "local-cluster")


def crc32c(data):
    if not TABLE:
        for n in range(256):
            for _ in range(8): n = n >> 1 ^ (0x82f63b78 if n & 1 else 0)
            TABLE.append(n)
    crc = 0xffffffff
    for byte in data: crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xffffffff


TABLE = []


# ---- a node of another version ---------------------------------------------------------------------------------------

def varint(n):
    out = b""
    while n > 127: out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def field(number, value):
    """A protobuf field: bytes, or a number as varint."""
    return varint(number << 3) + varint(value) if isinstance(value, int) else varint(number << 3 | 2) + varint(len(value)) + value


def fields(data):
    """Number -> last value of each field of a message."""
    out, at = {}, 0

    def number():
        nonlocal at
        n = shift = 0
        while True:
            n |= (data[at] & 127) << shift
            shift += 7
            at += 1
            if data[at - 1] < 128: return n

    while at < len(data):
        key = number()
        if key & 7 == 0: out[key >> 3] = number()
        elif key & 7 == 2:
            size = number()
            out[key >> 3] = data[at:at + size]
            at += size
        else:
            size = {1: 8, 5: 4}[key & 7]
            out[key >> 3] = int.from_bytes(data[at:at + size], "little")
            at += size
    return out


class Identity:
    """What a node's directory says of it."""

    def __init__(self, node):
        with open(f"{ROOT}/{node}/identity", "rb") as f: data = f.read()
        self.store_id, self.cluster_id, (self.node_id, _, self.incarnation) = data[8:24], data[24:40], struct.unpack_from("<IQQ", data, 40)


class Stranger:
    """A connection to a node by one that shares its secret: the greeting on the control lane, whoever dialled, and frames."""

    def __init__(self, sock, name, low, high, identity, more=b""):
        self.socket = sock
        self.said = varint(1 << 3 | 5) + struct.pack("<I", 0x504e5257) + field(2, low) + field(3, high) + field(4, identity.cluster_id) + field(5, name.encode()) \
            + field(6, identity.node_id) + field(7, identity.store_id) + field(8, identity.incarnation) + field(14, b"127.0.0.1:1") + field(15, os.urandom(32)) + more

    def dial(self):
        """Afterwards refusal and text are what the node answered."""
        self.send(HELLO, self.said)
        challenge = self.expect(CHALLENGE)
        self.hello = fields(fields(challenge)[1])
        self.transcript = b"".join(struct.pack("<I", len(x)) + x for x in (self.said, challenge))
        self.send(PROOF, field(1, self.mac(b"warren dial")))
        answer = fields(self.expect(PROOF))
        self.is_proven = answer.get(1) == self.mac(b"warren accept")
        self.refusal, self.text = answer.get(2, 0), answer.get(3, b"").decode()
        return self

    def listen(self, node):
        """False if it is another node, or another lane than the control lane, that dialled."""
        hello = self.expect(HELLO)
        self.hello = fields(hello)
        if self.hello[5].decode() != f"{node}@localhost" or self.hello.get(9, 0) != 0: return False
        challenge = field(1, self.said)
        self.send(CHALLENGE, challenge)
        self.transcript = b"".join(struct.pack("<I", len(x)) + x for x in (hello, challenge))
        proof = fields(self.expect(PROOF))
        self.is_proven = proof.get(1) == self.mac(b"warren dial")
        self.refusal, self.text = proof.get(2, 0), proof.get(3, b"").decode()
        self.send(PROOF, field(1, self.mac(b"warren accept")))
        return True

    def mac(self, role): return hmac.new(SECRET, struct.pack("<H", len(role)) + role + self.transcript, hashlib.sha256).digest()

    def send(self, kind, envelope):
        head = struct.pack("<IHHI", 16 + len(envelope), kind, 0, len(envelope))
        self.socket.sendall(head + struct.pack("<I", crc32c(head + envelope)) + envelope)

    def take(self, n):
        data = b""
        while len(data) < n:
            more = self.socket.recv(n - len(data))
            if not more: raise EOFError("the node has closed the connection")
            data += more
        return data

    def receive(self):
        total, kind, _, envelope = struct.unpack("<IHHI", self.take(16)[:12])
        return kind, self.take(total - 16)[:envelope]

    def expect(self, kind):
        got, envelope = self.receive()
        assert got == kind, f"a frame of type {got} in place of {kind}"
        return envelope


def dialled(node, *hello): return Stranger(socket.create_connection(("127.0.0.1", port_of(node)), 10), *hello).dial()
def port_of(node): return 25671 + int(node[1:])


class Nobody:
    store_id, cluster_id, node_id, incarnation = b"a later version.", bytes(16), 0, 1


def refused(c):
    """Cannot be understood: refused with a proof, and both are told which versions there are."""
    wrong = []
    s = dialled("n1", "later@localhost", 2, 3, Nobody, field(10, 1))
    if (s.hello[2], s.hello[3]) != (1, 1): wrong.append(f"n1 speaks {s.hello[2]} to {s.hello[3]}")
    text = "later@localhost speaks versions 2 to 3 of the protocol between nodes, n1@localhost 1 to 1"
    if (s.refusal, s.text, s.is_proven) != (2, text, True): wrong.append(f"refusal {s.refusal}, {s.text!r}, proven {s.is_proven}")
    if not until(lambda: text in c.do("logs", "n1").stdout, 5): wrong.append("n1's log does not say so")
    s.socket.close()
    return wrong


def heard(c):
    """Speaks our version too, and says things that nobody here knows: it is taken for what it is in what is common."""
    wrong = []
    c.do("stop", "n3")
    me = Identity("n3")
    machine = field(13, field(1, b"quorum_queue") + field(2, 900)) + field(13, field(1, b"a_new_machine") + field(2, 1))
    hello = "n3@localhost", 1, 9, me, field(12, 77) + machine + field(99, b"unheard of") + field(100, 5)
    s = dialled("n1", *hello)
    if s.refusal or not s.is_proven: wrong.append(f"refused when dialling: {s.refusal} {s.text}")
    with socket.create_server(("127.0.0.1", port_of("n3"))) as server:
        server.settimeout(10)
        back = None
        while back is None:
            candidate = Stranger(server.accept()[0], *hello)
            candidate.socket.settimeout(5)
            if candidate.listen("n1"): back = candidate
            else: candidate.socket.close()
        if back.refusal or not back.is_proven: wrong.append(f"refused when dialled: {back.refusal} {back.text}")
        kinds = [back.receive()[0] for _ in range(3)]
        if BEAT not in kinds: wrong.append(f"no beat came, but frames {kinds}")
    back.socket.close()
    s.socket.close()
    c.do("start", "n3")
    c.do("await", "n3")
    c.ctl("n1", "-q", "await_online_nodes", "3")
    return wrong + goes_on(c)


# ---- files of another version ----------------------------------------------------------------------------------------



def with_sum(data, at, begin=0, end=None):
    return data[:at] + struct.pack("<I", crc32c(data[begin:end if end is not None else at])) + data[at + 4:]


def of_identity(data): return with_sum(data[:4] + struct.pack("<H", 999) + data[6:], len(data) - 4)
def of_wal(data): return with_sum(data[:8] + struct.pack("<I", 999) + data[12:], 92)
def of_segment(data): return with_sum(data[:8] + struct.pack("<I", 999) + data[12:-100] + b"nothing we know"[:10] * 10, 36)
def of_checkpoint(data): return with_sum(data[:16] + struct.pack("<I", 999) + data[20:], 0, 4, 4096)


FILES = [("identity", "identity", of_identity), ("a file of the log", "wal/wal-*", of_wal), ("a segment", "seg/seg-*", of_segment), ("a checkpoint", "seg/groups-*", of_checkpoint)]


def sums(node):
    """Of every file but what each start writes: the identity's incarnation, the lock, the socket."""
    out = {}
    for directory, _, names in os.walk(f"{ROOT}/{node}"):
        for name in names:
            path = os.path.join(directory, name)
            if name in ("identity", "pid", "control.sock", "lock", "data.mdb", "lock.mdb") or not os.path.isfile(path): continue
            with open(path, "rb") as f: out[os.path.relpath(path, f"{ROOT}/{node}")] = hashlib.md5(f.read()).hexdigest()
    return out


def files(pattern):
    """n3's, the newest last. A name with .tmp is no file yet: a start removes it unread, and writes what belongs there anew."""
    return [p for p in sorted(glob.glob(f"{ROOT}/n3/{pattern}")) if not p.endswith(".tmp")]


def stopped_in_order(c, node):
    """Stops it so that nothing is half-way: a slow one is killed by then, and its next start would finish or undo what it was at,
    the file that was chosen to be altered included."""
    for _ in range(5):
        log = len(c.do("logs", node).stdout)
        c.do("stop", node)
        if f"node {node}@localhost has stopped" in c.do("logs", node).stdout[log:]: return
        c.do("start", node)
        c.do("await", node)
        c.ctl(node, "-q", "await_online_nodes", "3")
    raise AssertionError(f"{node} does not stop in good order")


def untouched(c, what, pattern, change):
    """A program that does not know a file's version leaves all as it is and says so: the way back to the program that wrote it is open."""
    wrong = []
    stopped_in_order(c, "n3")
    path = files(pattern)[-1]
    with open(path, "rb") as f: before = f.read()
    with open(path, "wb") as f: f.write(change(before))
    there, log = sums("n3"), len(c.do("logs", "n3").stdout)
    c.do("start", "n3")
    p = c.do("await", "n3", 20, check=False)
    said = c.do("logs", "n3").stdout[log:]
    if p.returncode == 0 or "is not running" not in p.stderr: wrong.append(f"n3 came up, or waits: {p.returncode} {p.stderr.strip()[-300:]}")
    if "by a later version" not in said: wrong.append("it does not say why: " + said.strip()[-300:])
    now = sums("n3")
    there = {k: v for k, v in there.items() if k in now or not k.endswith(".tmp")}
    if now != there: wrong.append(f"changed: {sorted(k for k in set(there) | set(now) if there.get(k) != now.get(k))}")
    c.do("stop", "n3", check=False)
    with open(path, "wb") as f: f.write(before)
    c.do("start", "n3")
    c.do("await", "n3")
    c.ctl("n1", "-q", "await_online_nodes", "3")
    return wrong + goes_on(c)


# ---- the cluster beside it -------------------------------------------------------------------------------------------

def goes_on(c):
    """n3 counts: with n2 away it is needed for every confirm; and nothing is lost."""
    c.do("kill", "n2")
    p = Publisher(c, "n1", "versions", limit=state["next"] + 20, start=state["next"], size=1000)
    p.start()
    good = until(lambda: len(p.confirmed) == 20, 20)
    p.stop()
    state["next"] += 20
    c.do("start", "n2")
    c.do("await", "n2")
    c.ctl("n1", "-q", "await_online_nodes", "3")
    there = until(lambda: [q["messages"] for q in c.json("n3", "list_queues", "name", "messages") if q["name"] == "versions"] == [state["next"]], 10)
    return ([] if good else [f"{len(p.confirmed)} of 20 confirmed"]) + ([] if there else [f"{c.json('n3', 'list_queues', 'name', 'messages')}, not {state['next']}"])


# ---- from an older build to this one ---------------------------------------------------------------------------------

def other_build(c, node, directory, limit_s=60):
    """Restarts the node with the programs of a build. Returns what it said, None if it came up."""
    log = len(c.do("logs", node).stdout)
    c.do("stop", node, check=False)
    c.do("start", node, env={"WARREN_BUILD": directory})
    if c.do("await", node, limit_s, check=False).returncode: return c.do("logs", node).stdout[log:]
    c.ctl(node, "-q", "await_online_nodes", "3", "--timeout", "30")
    return None


def is_whole(c, node):
    """Every queue has three members that vote."""
    return all([r["Membership"] for r in c.json(node, "quorum_status", q["name"])] == ["voter"] * 3 for q in c.json(node, "list_queues", "name"))


def changed_under_load(c, node, what):
    """Something is done to a node while clients of the other two publish and consume."""
    others = [n for n in ("n1", "n2", "n3") if n != node]
    queue = f"rolled-{state['queues']}"
    state["queues"] += 1
    c.declare(others[0], queue)
    p, k = Publisher(c, others[0], queue, rate=500, size=1000), Consumer(c, others[1], queue)
    for s in (p, k): s.start(); s.ready.wait(10)
    wrong = what() or []
    if not until(lambda: is_whole(c, others[0]), 30, 0.2): wrong.append(f"{node}: not every queue is whole again")
    c.lead(queue, node, 20)  # It leads, and gives it back, in the mix.
    before = len(p.confirmed)
    until(lambda: len(p.confirmed) > before + 300 or p.error, 20)
    c.lead(queue, others[0], 20)
    if not p.drain(30) or p.error or k.error: wrong.append(f"{node}: {len(p.by_tag)} not confirmed, publisher {p.error}, consumer {k.error}")
    if not k.wait_for(p.confirmed): wrong.append(f"{node}: not everything arrived")
    wrong += [f"{node}: {w}" for w in check_deliveries(k.got, p.confirmed, p.next)]
    print(f"# {node}: {len(p.confirmed)} confirmed, longest time without a confirm {p.longest_gap() * 1000:.0f} ms", flush=True)
    for s in (p, k): s.stop()
    return wrong


def rolled(c, old):
    wrong = changed_under_load(c, "n3", lambda: (lambda said: [f"n3 does not come up: {said[-300:]}"] if said else [])(other_build(c, "n3", build)))

    def back():
        said = other_build(c, "n3", old, 10)
        if said is None: return []
        print("# the older build says: " + said.strip().splitlines()[-1][-200:], flush=True)
        c.do("wipe", "n3")  # What it cannot read it can do without: the others have it.
        said = other_build(c, "n3", old)
        return [f"n3 does not come back: {said[-300:]}"] if said else []

    wrong += changed_under_load(c, "n3", back)
    for n in ("n2", "n3", "n1"):
        wrong += changed_under_load(c, n, lambda: (lambda said: [f"{n} does not come up: {said[-300:]}"] if said else [])(other_build(c, n, build)))
    return wrong


state = {"next": 0, "queues": 0}
with Cluster(3, conf="warren.wal_file_bytes = 1MiB\nwarren.memtable_bytes = 8MiB\n") as c:
    c.declare("n1", "versions")
    p = Publisher(c, "n1", "versions", size=5000, limit=1500)
    p.start()
    assert until(lambda: len(p.confirmed) == 1500, 60), len(p.confirmed)
    p.stop()
    state["next"] = 1500
    assert until(lambda: all(files(pattern) for _, pattern, _ in FILES), 20), os.listdir(f"{ROOT}/n3/seg")
    t.run("CL-32: a node that speaks only later versions of the protocol is refused, and both are told which", refused, c)
    t.run("CL-32: one that speaks ours too, and says what nobody here knows, is heard in ours", heard, c)
    for what, pattern, change in FILES:
        t.run(f"CL-32: {what} of a later version stops the start, changes nothing, and the way back is open", untouched, c, what, pattern, change)
OLD = os.environ.get("OLD_BUILD")
if OLD:
    with Cluster(3, conf="warren.wal_file_bytes = 1MiB\nwarren.memtable_bytes = 8MiB\n", env={"WARREN_BUILD": OLD, "WARREN_CLUSTER_DIR": ROOT}) as c:
        t.run("CL-32: a cluster is rolled from an older build node by node, half-way back, and on, under load and without loss", rolled, c, OLD)
t.end()
