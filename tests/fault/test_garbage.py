#!/usr/bin/python3
"""Bytes thrown at every port: random, truncated, oversized, wrong headers. No crash, no growth, service goes on."""
import json, os, random, socket, struct, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from warren import *

t = Tap()
rng = random.Random(11)
COUNT = int(os.environ.get("COUNT", "400"))


def throw(port, data, read=False):
    s = socket.create_connection(("127.0.0.1", port), timeout=5)
    try:
        s.sendall(data)
        if read: s.recv(65536)
    except OSError:
        pass
    finally:
        s.close()


def frame(kind, channel, payload, end=0xCE):
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes([end])


START_OK = frame(1, 0, struct.pack(">HHI", 10, 11, 0) + b"\x05PLAIN" + struct.pack(">I", 12) + b"\0guest\0guest" + b"\x05en_US")
TUNE_OK = frame(1, 0, struct.pack(">HHHIH", 10, 31, 2047, 131072, 0))
OPEN = frame(1, 0, struct.pack(">HH", 10, 40) + b"\x01/\0\0")
LOGIN = b"AMQP\0\0\x09\x01" + START_OK + TUNE_OK + OPEN + frame(1, 1, struct.pack(">HH", 20, 10) + b"\0")


def amqp(c):
    for i in range(COUNT):
        kind = i % 8
        if kind == 0: data = rng.randbytes(rng.randrange(1, 5000))
        elif kind == 1: data = b"AMQP" + rng.randbytes(4)
        elif kind == 2: data = b"AMQP\0\0\x09\x01" + rng.randbytes(2000)
        elif kind == 3: data = LOGIN[:rng.randrange(len(LOGIN))]
        elif kind == 4: data = LOGIN + frame(rng.randrange(256), rng.randrange(3), rng.randbytes(rng.randrange(300)), rng.choice([0xCE, 0]))
        elif kind == 5: data = LOGIN + struct.pack(">BHI", 1, 1, 0xFFFFFFFF) + rng.randbytes(1000)
        elif kind == 6: data = LOGIN + frame(1, 1, struct.pack(">HH", rng.choice([10, 20, 40, 50, 60, 85, 90]), rng.randrange(130)) + rng.randbytes(rng.randrange(200)))
        else:
            b = bytearray(LOGIN); b[rng.randrange(len(b))] ^= 1 << rng.randrange(8); data = bytes(b)
        throw(c.port(rng.choice(["n1", "n2", "n3"])), data, read=rng.random() < 0.3)


def cluster_port(c):
    for i in range(COUNT):
        kind = i % 4
        if kind == 0: data = rng.randbytes(rng.randrange(1, 6000))
        elif kind == 1: data = struct.pack("<IHHII", rng.choice([0, 15, 16, 4000, 2 << 20, 0xFFFFFFFF]), rng.randrange(100), 0, rng.randrange(1 << 20), 0) + rng.randbytes(100)
        elif kind == 2: data = struct.pack("<IHHII", 16 + 50, rng.randrange(100), 0, 50, rng.getrandbits(32)) + rng.randbytes(50)
        else: data = b"GET / HTTP/1.1\r\n\r\n"
        throw(25671 + rng.choice([1, 2, 3]), data)


VERBS = [("list_queues", 0), ("delete_queue", 1), ("quorum_status", 1), ("transfer_leadership", 2), ("add_member", 2), ("grow", 2), ("shrink", 1), ("rebalance", 1),
         ("join_cluster", 1), ("forget_cluster_node", 1), ("await_online_nodes", 1), ("set_disk_free_limit", 1), ("add_user", 2), ("set_permissions", 4),
         ("list_user_permissions", 1), ("local_member", 1), ("local_change", 5), ("local_leaders", 1), ("nothing", 1)]
WRONG = [1, None, [], {}, True, "", "x" + "\u00e9" * 3000, "xy" + "\u00e9" * 3000, "x" * 5000]  # Texts that are cut off behind and inside of a character.


def command_socket(c):
    """Every verb with arguments of the wrong kind, and too long ones; lines that are no request. Whatever is asked is answered."""
    def ask(line, answered=True):
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(20)
        s.connect(f"{build}/local-cluster/{rng.choice(['n1', 'n2', 'n3'])}/control.sock")
        s.sendall(line + b"\n")
        got = b""
        while answered and not got.endswith(b"\n"):
            more = s.recv(65536)
            assert more, f"no answer to {line[:100]}"
            got += more
        s.close()
    for line in (b"", b"{", b"[]", b"7", rng.randbytes(3000).replace(b"\n", b"")): ask(line, answered=False)
    for verb, count in VERBS:
        for wrong in WRONG:
            request = {"verb": verb, "args": [wrong] * count, "options": {"timeout": "0.1"}}
            if isinstance(wrong, str): request["options"]["vhost"] = rng.choice(["/", wrong])
            ask(json.dumps(request, ensure_ascii=False).encode())
    for wrong in WRONG:
        for name in ("verb", "args", "options", "node"): ask(json.dumps({"verb": "status", name: wrong}, ensure_ascii=False).encode())


def half_open(c):
    """Many connections that say nothing, or half of something."""
    kept = []
    for i in range(300):
        s = socket.create_connection(("127.0.0.1", rng.choice([5672, 5673, 5674, 25672, 25673, 25674])), timeout=5)
        s.sendall([b"", b"AM", LOGIN[:60], rng.randbytes(10)][i % 4])
        kept.append(s)
    time.sleep(0.5)
    for s in kept: s.close()


with Cluster(3) as c:
    nodes = ("n1", "n2", "n3")
    pids = [c.pid(n) for n in nodes]
    def check(fn):
        fn(c)
        before = [c.memory(n) for n in nodes]
        fn(c)
        time.sleep(0.5)
        after = [c.memory(n) for n in nodes]
        wrong = [f"n{i + 1} grew by {(b - a) >> 10} KiB" for i, (a, b) in enumerate(zip(before, after)) if b - a > 4 << 20]
        for n, pid in zip(nodes, pids):
            if c.pid(n) != pid: wrong.append(f"{n} is not the process it was")
        c.declare("n1", "alive")
        k = c.connect("n2"); ch = k.channel(); ch.confirm_delivery(); ch.basic_publish("", "alive", b"m"); k.close()
        return wrong
    t.run("the AMQP port survives whatever is thrown at it", check, amqp)
    t.run("the cluster port survives whatever is thrown at it", check, cluster_port)
    t.run("the command socket survives whatever is asked of it", check, command_socket)
    t.run("connections that say nothing cost nothing lasting", check, half_open)
t.end()
