#!/usr/bin/python3
"""join_cluster, forget_cluster_node and orderly stops (operator-plane §4.5; RabbitMQ 4.3's behaviour and exit codes).

Nodes without a list found clusters of their own; they have ports of their own, so this runs beside a local cluster.
"""
import os, shutil, signal, socket, subprocess, sys, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from warren import *

root = os.path.join(build, "test-join")


class Node:
    """One node, started alone."""

    def __init__(self, name, number):
        self.name, self.number = f"{name}@localhost", number
        self.dir = os.path.join(root, name)
        self.conf = os.path.join(root, name + ".conf")
        self.amqp, self.cluster = 5770 + number, 25770 + number
        self.process = None
        os.makedirs(root, exist_ok=True)
        with open(self.conf, "w") as f:
            f.write(f"nodename = {self.name}\nwarren.data_dir = {self.dir}\nlisteners.tcp.default = 127.0.0.1:{self.amqp}\n"
                    f"warren.cluster.listener = 127.0.0.1:{self.cluster}\nwarren.cluster_secret = test-join\n"
                    f"default_queue_type = quorum\n")
            # Nodes on different machines: 1, 2 and 3 workers, so that shards lie differently.
            f.write(f"warren.workers = {number + 1}\n")

    def list(self, *nodes):
        with open(self.conf, "a") as f:
            for i, n in enumerate(nodes):
                f.write(f"cluster_formation.classic_config.nodes.{i + 1} = {n.name}\nwarren.peer_address.{n.name} = 127.0.0.1:{n.cluster}\n")

    def start(self):
        self.log = open(os.path.join(root, self.name + ".log"), "a")
        self.process = subprocess.Popen([os.path.join(build, "warren"), "--config", self.conf], stdout=self.log, stderr=self.log,
                                        stdin=subprocess.DEVNULL)
        return self

    def up(self):
        until = time.monotonic() + 30
        while self.ctl("-q", "await_startup", "--timeout", "5", check=False).returncode:
            if time.monotonic() > until or self.process.poll() is not None:
                raise RuntimeError(f"{self.name} did not start")
            time.sleep(0.05)
        return self

    def ctl(self, *args, check=True, timeout=90):
        p = subprocess.run([os.path.join(build, "warrenctl"), "--socket", os.path.join(self.dir, "control.sock"), *args],
                           capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
        if check and p.returncode:
            raise RuntimeError(f"{self.name}: {' '.join(args)}: exit {p.returncode}: {p.stderr.strip()}")
        return p

    def json(self, *args):
        return json.loads(self.ctl(*args, "--formatter", "json").stdout)

    def at(self, other):
        return f"{other.name}=127.0.0.1:{other.cluster}"

    def members(self):
        return sorted(self.json("cluster_status")["disk_nodes"])

    def running(self):
        return sorted(self.json("cluster_status")["running_nodes"])

    def connect(self):
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.amqp, heartbeat=0))

    def said(self):
        with open(os.path.join(root, self.name + ".log")) as f:
            return f.read()

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
        if self.process:
            self.process.wait()

    def stop(self, limit_s=5):
        """SIGTERM. Returns (exit code or None, seconds)."""
        t = time.monotonic()
        self.process.terminate()
        try:
            return self.process.wait(limit_s), time.monotonic() - t
        except subprocess.TimeoutExpired:
            return None, time.monotonic() - t

    def wipe(self):
        self.kill()
        shutil.rmtree(self.dir)


# Becomes the program that its arguments name, with a request of its own to stop pending (SIGUSR1), then one of its parent, or both.
PENDING = """import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])
if "own" in sys.argv[1]: os.kill(os.getpid(), signal.SIGUSR1)
if "other" in sys.argv[1]: os.write(1, b"blocked\\n"); os.read(0, 1)
assert signal.sigpending() == {s for w, s in (("own", signal.SIGUSR1), ("other", signal.SIGTERM)) if w in sys.argv[1]}
os.execv(sys.argv[2], sys.argv[2:])"""


def pending(tap, node):
    """A node that starts itself again may have asked itself to stop twice. Who else asks is heard, whatever the start waits for."""
    def run(who):
        return subprocess.Popen([sys.executable, "-c", PENDING, who, os.path.join(build, "warren"), "--config", node.conf], stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL, stdin=subprocess.PIPE)
    node.stop()
    node.process = run("own")
    try: tap.ok(node.up(), "a stop that a process asked of itself before it started itself again is done")
    except RuntimeError as e: tap.ok(False, "a stop that a process asked of itself before it started itself again is done", str(e))
    node.stop()
    for who in ("other", "own and other"):
        node.process = run(who)
        node.process.stdout.readline()
        node.process.terminate()
        node.process.stdin.write(b"x"); node.process.stdin.flush()
        try: code = node.process.wait(20)
        except subprocess.TimeoutExpired: code = "it runs"
        tap.ok(code == 0, f"a stop that somebody else asked for at that moment is heard ({who})", code)
        node.kill()
    node.start().up()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def declare(node, queue, count=0):
    c = node.connect()
    ch = c.channel()
    ch.queue_declare(queue, durable=True, arguments=QUORUM)
    ch.confirm_delivery()
    for i in range(count):
        ch.basic_publish("", queue, str(i).encode())
    c.close()


def drain(node, queue):
    c = node.connect()
    ch = c.channel()
    got = []
    while True:
        m, _, body = ch.basic_get(queue, auto_ack=True)
        if m is None:
            break
        got.append(int(body))
    c.close()
    return got


def refusals(tap, a, b):
    p = a.ctl("join_cluster", a.name, check=False)
    tap.ok(p.returncode == 70 and "itself" in p.stderr, "a node that joins itself is refused with exit code 70", p)
    p = a.ctl("join_cluster", f"nobody@localhost=127.0.0.1:{free_port()}", check=False)
    tap.ok(p.returncode == 69, "a node that cannot be reached is refused with exit code 69", p)
    tap.ok(a.members() == [a.name] and drain(a, "kept") == [0, 1, 2], "after that the node is what it was, with its data", a.members())


def joining(tap, a, b, c):
    declare(b, "old", 3)
    pid = b.process.pid
    p = b.ctl("join_cluster", b.at(a))
    tap.ok(p.stdout == f"Clustering node {'warren@' + socket.gethostname()} with {b.at(a)}\n" and b.process.poll() is None and b.process.pid == pid,
           "a lone node with data joins another cluster without being wiped by hand, as the same process", p)
    with open(f"/proc/{pid}/comm") as f: comm = f.read()
    tap.ok(comm == "warren\n", "under its name", comm)
    tap.ok(a.members() == b.members() == sorted([a.name, b.name]), "both know both", a.members(), b.members())
    names = [q["name"] for q in b.json("list_queues", "name")]
    tap.ok("old" not in names, "what the joining node had before is gone", names)
    p = b.ctl("join_cluster", b.at(a))
    tap.ok("already a member" in p.stdout, "joining again is fine and says so", p)
    c.ctl("-q", "join_cluster", c.at(b))
    tap.ok(until(lambda: a.running() == sorted([a.name, b.name, c.name])), "a third one joins through the second", a.running())
    p = c.ctl("join_cluster", f"other@localhost=127.0.0.1:{free_port()}", check=False)
    tap.ok(p.returncode == 69 and "forget_cluster_node" in p.stderr, "a member of a cluster of several is refused and told what to do", p)
    declare(c, "three", 10)
    b.kill()
    tap.ok(drain(a, "three") == list(range(10)), "a queue of the three survives the loss of one of them")
    b.start().up()


def mixed(tap, a, b, c):
    """Nodes with 1, 2 and 3 workers: what one of them has for one worker is for several at another."""
    wrong = []
    for k in range(9):
        declare(a, f"mixed-{k}")
        leader = (a, b, c)[k % 3]
        until(lambda: any(q["leader"] == leader.name for q in a.json("list_queues", "name", "leader") if q["name"] == f"mixed-{k}")
              or a.ctl("-q", "transfer_leadership", f"mixed-{k}", leader.name, check=False) is None)
    for k in range(9):
        # More bytes than may be on their way between two nodes, in small, middling and fragmented entries.
        sizes = [700] * 300 + [150_000] * 60 + [3_000_000] * 2
        to, at = (a, b, c)[(k + 1) % 3], (a, b, c)[(k + 2) % 3]
        conn = to.connect()
        ch = conn.channel()
        ch.confirm_delivery()
        for i, size in enumerate(sizes):
            ch.basic_publish("", f"mixed-{k}", b"%d." % i + b"x" * size)
        conn.close()
        conn = at.connect()
        ch = conn.channel()
        got = []
        for _, _, body in ch.consume(f"mixed-{k}", auto_ack=True, inactivity_timeout=10):
            if body is None:
                break
            number, _, rest = body.partition(b".")
            got.append((int(number), len(rest)))
            if len(got) == len(sizes):
                break
        conn.close()
        if got != list(enumerate(sizes)):
            wrong.append(f"mixed-{k}: {len(got)} of {len(sizes)} came, the first wrong one is "
                         f"{next((i for i, g in enumerate(got) if g != (i, sizes[i])), len(got))}")
        a.ctl("-q", "delete_queue", f"mixed-{k}")
    tap.ok(not wrong, "messages of all sizes pass between nodes with different numbers of workers, whole and in order", *wrong)


def stopping(tap, a, b, c):
    """An orderly stop of a leader that clients of other nodes do not see."""
    def lead():
        a.ctl("-q", "transfer_leadership", "three", c.name, check=False)
        return any(q["leader"] == c.name for q in a.json("list_queues", "name", "leader") if q["name"] == "three")
    if not until(lead):
        tap.ok(False, "c leads the queue before the stop")
        return
    told = c.connect()
    told.channel()
    conn = a.connect()
    ch = conn.channel()
    ch.confirm_delivery()
    longest, count = 0, 0
    c.process.terminate()
    end = time.monotonic() + 3
    while time.monotonic() < end:
        t = time.monotonic()
        ch.basic_publish("", "three", b"%d" % count)  # Blocks until it is confirmed.
        longest = max(longest, time.monotonic() - t)
        count += 1
    tap.ok(longest < 0.5, f"publishers at another node wait less than 500 ms while the leader's node stops (longest {longest * 1000:.0f} ms, {count} published)")
    code = c.process.wait(5)
    tap.ok(code == 0, "the node ends with exit code 0", code)
    why = None
    try:
        told.process_data_events(1)
    except pika.exceptions.ConnectionClosedByBroker as e:
        why = e
    tap.ok(why is not None and why.reply_code == 320 and "CONNECTION_FORCED - broker shutdown" in why.reply_text,
           "its clients are told 320 CONNECTION_FORCED - broker shutdown", why)
    conn.close()
    tap.ok(drain(a, "three") == list(range(count)), "nothing that was confirmed meanwhile is missing")
    c.start().up()


def forgetting(tap, a, b, c):
    def told(node):
        return any(f"node {node.name} thinks it is a member" in line and "it was forgotten" in line for line in node.said().splitlines())

    p = a.ctl("forget_cluster_node", c.name, check=False)
    tap.ok(p.returncode == 69 and "running" in p.stderr, "a running node is not forgotten", p)
    p = a.ctl("forget_cluster_node", "nobody@localhost", check=False)
    tap.ok(p.returncode == 69 and "not a node" in p.stderr, "a node that is none is not forgotten", p)
    c.wipe()
    c.start().up()  # It founds a cluster of its own: no list.
    p = c.ctl("join_cluster", c.at(b))  # Whichever of the two does not lead the metadata group sends it to the other.
    everybody = sorted([a.name, b.name, c.name])
    tap.ok(until(lambda: a.running() == b.running() == c.running() == everybody), "a wiped node joins again under its old name, as a new one", p, a.running())
    c.kill()
    until(lambda: c.name not in a.running())
    p = a.ctl("forget_cluster_node", c.name)
    tap.ok(p.returncode == 0 and until(lambda: a.members() == b.members() == sorted([a.name, b.name])), "a lost member is forgotten", p, a.members())
    c.start()
    tap.ok(until(lambda: told(c)) and c.name not in a.running(), "it is told so if it comes back, although no node came after it")
    c.kill()
    c.wipe()
    c.start().up()
    p = c.ctl("join_cluster", c.at(a))
    tap.ok(until(lambda: a.running() == b.running() == c.running() == everybody), "a forgotten node that lost its data joins as a new one", p, a.running())
    declare(c, "after", 5)
    tap.ok(drain(b, "after") == list(range(5)), "queues can be declared over all three again")
    conn = b.connect()
    conn.channel().queue_declare("alone", durable=True, arguments=dict(QUORUM, **{"x-quorum-initial-group-size": 1}))
    conn.close()
    # What was filled anew votes again: else the others would be no majority without b.
    tap.ok(until(lambda: all([r["Membership"] for r in a.json("quorum_status", q)] == ["voter"] * 3 for q in ("three", "after")), 20),
           "the queues have three voters again", a.json("quorum_status", "three"))
    b.kill()
    until(lambda: b.name not in a.running())
    p = a.ctl("forget_cluster_node", b.name, check=False)
    tap.ok(p.returncode == 69 and "majority" in p.stderr and "'alone'" in p.stderr,
           "a node is not forgotten if a queue would be left without a majority", p)
    a.ctl("-q", "delete_queue", "alone")
    p = a.ctl("forget_cluster_node", b.name)
    tap.ok(until(lambda: a.members() == sorted([a.name, c.name])), "when that is deleted it is", p, a.members())
    b.start()
    tap.ok(until(lambda: told(b)) and b.json("status")["waiting_for"] != "" and b.name not in a.running(),
           "a forgotten node that comes back with its data stays out, and its log says why")


def giving_up(tap):
    """A lone node gives its data up only to a node that is there, and to nobody's cost."""
    a, b, c = nodes = [Node(name, i + 3) for i, name in enumerate("def")]
    try:
        b.start().up().stop()  # A member of its own cluster.
        a.start().up()
        c.list(a, c)
        asked = subprocess.Popen([os.path.join(build, "warrenctl"), "--socket", os.path.join(a.dir, "control.sock"), "join_cluster", a.at(b)],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: "refused" in a.said(), 0.3)
        c.start()
        until(lambda: "did not let this node in" in c.said(), 2)
        b.start()
        asked.wait(60)
        # Let in by the cluster that the two are in then: without a majority of its own it would stay at nothing.
        try: c.up()
        except RuntimeError: pass
        tap.ok(until(lambda: a.running() == b.running() == c.running() == sorted(n.name for n in nodes)),
               "a node that asks to be let in while the one it asks looks for another cluster is not left behind alone", c.ctl("status", check=False))
        for n in nodes:
            n.kill()
            n.wipe()
        b.start().up()
        a.start().up()
        declare(a, "kept", 3)
        a.stop()
        a.list(a, b)
        a.start().up()
        heard = until(lambda: "members of different clusters" in a.said(), 10)
        b.stop()
        p = a.ctl("join_cluster", a.at(b), check=False)
        tap.ok(heard and p.returncode == 69 and a.members() == [a.name] and drain(a, "kept") == [0, 1, 2],
               "what a node said before it went does not make another give its data up for it", p)
    finally:
        for n in nodes:
            n.kill()


def without_secret(tap):
    """The port between nodes is open to all hosts by default: without a secret nobody gets in, and nobody can be told to try."""
    a, b = nodes = [Node("g", 6), Node("h", 7)]
    try:
        for n in nodes:
            with open(n.conf) as f: text = f.read()
            with open(n.conf, "w") as f: f.write(text.replace("warren.cluster_secret = test-join\n", ""))
            n.start().up()
        p = b.ctl("join_cluster", b.at(a), check=False)
        tap.ok(p.returncode == 69 and "warren.cluster_secret" in p.stderr, "a node without a secret joins nobody, and says what it lacks", p)
        with open(b.conf, "a") as f: f.write("warren.cluster_secret = a node without peers\n")
        b.stop()
        b.start().up()
        p = b.ctl("join_cluster", b.at(a), check=False)
        tap.ok(p.returncode == 69 and a.members() == [a.name], "it lets nobody in", p)
    finally:
        for n in nodes:
            n.kill()


def broken_words(tap):
    """What would not be read back from the note is refused, so that the node starts again."""
    a = Node("i", 8)
    try:
        a.start().up()
        for target in ("b\tc@localhost", "b@localhost=local host:1", "b@localhost=:1\n2", " "):
            p = a.ctl("join_cluster", target, check=False)
            if p.returncode == 0 or "is not a" not in p.stderr: break
        tap.ok(p.returncode != 0 and "is not a" in p.stderr, "names and addresses with blanks in them are refused", p)
    finally:
        a.kill()


def taken_ports(tap):
    """Who starts it must see that it did not."""
    a = Node("j", 9)
    for port in (a.cluster, a.amqp):
        with socket.socket() as s:
            s.bind(("127.0.0.1", port))
            s.listen(1)
            a.start()
            try: code = a.process.wait(10)
            except subprocess.TimeoutExpired: code = "it runs"
            tap.ok(code == 69, f"a node whose port {port} is taken ends with exit code 69", code)
            a.kill()


def fresh(tap):
    """Who is let in by the port may log in."""
    a, wrong = Node("k", 10), []
    for _ in range(10):
        a.start()
        def is_open():
            with socket.socket() as s: return s.connect_ex(("127.0.0.1", a.amqp)) == 0
        while not is_open(): time.sleep(0.001)
        try: a.connect().close()
        except pika.exceptions.AMQPError as e: wrong.append(repr(e))
        a.wipe()
    tap.ok(not wrong, "the port of a new cluster opens when its first user is there", *wrong)


def main():
    shutil.rmtree(root, ignore_errors=True)
    tap = Tap()
    nodes = [Node(name, i) for i, name in enumerate("abc")]
    try:
        a, b, c = (n.start().up() for n in nodes)
        declare(a, "kept", 3)
        pending(tap, b)
        refusals(tap, a, b)
        joining(tap, a, b, c)
        mixed(tap, a, b, c)
        stopping(tap, a, b, c)
        forgetting(tap, a, b, c)
        giving_up(tap)
        without_secret(tap)
        broken_words(tap)
        taken_ports(tap)
        fresh(tap)
    except Exception as e:  # noqa: BLE001 - reported as a failed test
        tap.ok(False, "the test ran to its end", *traceback.format_exc().splitlines())
    finally:
        for n in nodes:
            n.kill()
        if tap.bad:
            for n in nodes:
                with open(os.path.join(root, n.name + ".log")) as f:
                    print(f"# the end of {n.name}'s log:", *("#   " + l.rstrip() for l in f.readlines()[-15:]), sep="\n")
    print(f"1..{tap.count}")
    return 1 if tap.bad else 0


sys.exit(main())
