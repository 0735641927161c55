"""What the chaos and soak tests share: a cluster on hosts of its own whose processes, disks and links can be broken, and
warren-ledger, the clients that keep books."""
import json, os, queue, random, re, shutil, signal, subprocess, threading, time

import netns
from netns import NetCluster, PREFIX, sh
from warren import QUORUM, build, pika, top, until

# What a client may be told or see when nodes, disks and links break (reason of a connection's end).
ALLOWED = re.compile(r"connect: |end of stream|Connection reset|Broken pipe|silence for two heartbeats|no handshake within"
                     r"|connection closed: 320 |connection closed: 541 |channel closed: 541 |consumer cancelled"
                     r"|Connection timed out|No route to host")


class Ledger:
    """A run of warren-ledger. Its lines are kept in `lines`; `errors` holds those that no fault excuses."""

    def __init__(self, nodes, queues, seed, on_line=None):
        args = [f"{build}/warren-ledger", "--seed", str(seed)]
        for name, host in nodes: args += ["--node", f"{name}={host}:5672"]
        for q in queues: args += ["--queue", q]
        self.process = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines, self.violations, self.errors, self.reasons = [], [], [], {}
        self.on_line = on_line or (lambda line: None)
        self.answers = {event: queue.Queue() for event in ("probe", "status", "report")}
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for text in self.process.stdout:
            line = json.loads(text)
            self.lines.append(line)
            if line["event"] == "violation": self.violations.append(line)
            if line["event"] == "down":
                self.reasons[line["why"]] = self.reasons.get(line["why"], 0) + 1
                if not ALLOWED.search(line["why"]): self.errors.append(f"{line['client']}: {line['why']}")
            self.on_line(line)
            if line["event"] in self.answers: self.answers[line["event"]].put(line)

    def send(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def ask(self, text, event, timeout):
        self.send(text)
        return self.answers[event].get(timeout=timeout)

    def status(self): return self.ask("status", "status", 30)
    def probe(self, number): return self.ask(f"probe {number}", "probe", 60)

    def stop(self, drain_s):
        report = self.ask(f"stop {drain_s}", "report", drain_s + 60)
        self.process.wait(30)
        self.reader.join(10)
        return report

    def kill(self):
        if self.process.poll() is None: self.process.kill()
        self.process.wait()


class ChaosCluster(NetCluster):
    """Nodes that can be killed, stopped, paused, wiped, cut off power, slowed, starved of disk. Every fault has its undoing."""

    def __init__(self, nodes=3, conf="", power=True, disk_mib=0, name="chaos"):
        super().__init__(nodes, conf)
        self.root = os.path.join(build, f"{name}-cluster")
        self.power, self.disk_mib = power, disk_mib
        self.slow_links = {}
        self.ended = []  # Nodes that ended though nobody ended them.

    def __enter__(self):
        self.shim, self.slow_program = os.path.join(build, "powercut.so"), os.path.join(build, "slowlink")
        source = os.path.join(top, "tests/fault/")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", self.shim, source + "powercut.c", "-ldl", "-lpthread"], check=True)
        subprocess.run(["cc", "-O1", "-o", self.slow_program, source + "slowlink.c"], check=True)
        shutil.rmtree(self.root, ignore_errors=True)
        os.makedirs(self.root)
        for n in self.names():
            os.makedirs(f"{self.root}/{n}")
            if self.disk_mib:
                # Mounted in the mount namespace that "ip netns exec" gave this process: gone with it in any case.
                sh(f"truncate -s {self.disk_mib}M {self.root}/{n}.img && mkfs.ext4 -q -m 0 {self.root}/{n}.img && mount -o loop {self.root}/{n}.img {self.root}/{n}")
            self.configure(n)
            self.start(n)
        for n in self.names():
            self.wait_up(n)
            self.ctl(n, "-q", "await_online_nodes", str(self.nodes), "--timeout", "30")
        return self

    def __exit__(self, kind, value, tb):
        for p in self.slow_links.values(): p.kill(); p.wait()
        for p in self.processes.values(): p.kill(); p.wait()
        for n in self.names():
            if self.disk_mib: sh(f"umount {self.root}/{n}", check=False)
        shutil.rmtree(self.root, ignore_errors=True)

    def start(self, node):
        if self.is_up(node): return  # Two faults of a round may have ended it.
        log = open(f"{self.root}/{node}.log", "ab")
        wrap = [os.path.join(top, "tests/fault/with-powercut"), self.shim, self.root] if self.power else []
        self.processes[node] = subprocess.Popen(["ip", "netns", "exec", f"{PREFIX}{node}", *wrap, f"{build}/warren", "--config", f"{self.root}/{node}.conf"],
                                                stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        log.close()

    def is_up(self, node): return node in self.processes

    def look(self):
        """Notices processes that ended by themselves."""
        for n, p in list(self.processes.items()):
            if p.poll() is not None:
                self.processes.pop(n)
                self.ended.append(f"{n} ended by itself with {p.returncode}: " + " / ".join(self.log_end(n, 4)))

    def log_end(self, node, count):
        with open(f"{self.root}/{node}.log", errors="replace") as f: return f.read().splitlines()[-count:]

    def end(self, node, how):
        """kill: -9; stop: in good order; power: what was not synced is lost or torn. Returns seconds it took, or None."""
        p = self.processes.pop(node, None)
        if p is None: return None
        begun = time.monotonic()
        os.kill(p.pid, {"kill": signal.SIGKILL, "stop": signal.SIGTERM, "power": signal.SIGUSR2 if self.power else signal.SIGKILL}[how])
        os.kill(p.pid, signal.SIGCONT)
        try: p.wait(30)
        except subprocess.TimeoutExpired:
            self.ended.append(f"{node} did not end within 30 s after {how}")
            p.kill(); p.wait()
        return time.monotonic() - begun

    def wipe(self, node):
        self.end(node, "kill")
        for name in os.listdir(f"{self.root}/{node}"):
            path = f"{self.root}/{node}/{name}"
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)

    def pause(self, node): os.kill(self.processes[node].pid, signal.SIGSTOP)

    def resume(self, node):
        if self.is_up(node): os.kill(self.processes[node].pid, signal.SIGCONT)

    def lossy(self, node, share):
        """Each packet of other hosts is lost with this probability; also what the clients send."""
        sh(f"ip netns exec {PREFIX}{node} iptables -w -A INPUT -s 10.77.0.0/24 -m statistic --mode random --probability {share} -j DROP")

    def cut_clients(self, node):
        sh(f"ip netns exec {PREFIX}{node} iptables -w -A INPUT -s 10.77.0.100 -j DROP")

    def slow(self, node, delay_ms, kbytes_per_s):
        """Everything from and to this host takes so much longer, at no more than this rate."""
        if node in self.slow_links: return
        i = int(node[1:])
        sw = f"ip -n {PREFIX}sw link"
        sh(f"{sw} set p{i} nomaster && {sw} add s{i} type veth peer name t{i} && {sw} set s{i} up && {sw} set t{i} master br0 up")
        self.slow_links[node] = subprocess.Popen(["ip", "netns", "exec", f"{PREFIX}sw", self.slow_program, f"p{i}", f"s{i}", str(delay_ms), str(kbytes_per_s)])

    def unslow(self, node):
        p = self.slow_links.pop(node, None)
        if p is None: return
        p.kill(); p.wait()
        i = int(node[1:])
        sh(f"ip -n {PREFIX}sw link del s{i} && ip -n {PREFIX}sw link set p{i} master br0 up")

    def fill_disk(self, node, left_mib):
        """A file takes the room of the node's small file system, but for so much."""
        s = os.statvfs(f"{self.root}/{node}")
        size = s.f_bavail * s.f_frsize - (left_mib << 20)
        if size > 0: subprocess.run(["fallocate", "-l", str(size), f"{self.root}/{node}/ballast"], check=False, stderr=subprocess.DEVNULL)

    def empty_disk(self, node):
        try: os.unlink(f"{self.root}/{node}/ballast")
        except FileNotFoundError: pass

    def memory(self, node):
        with open(f"/proc/{self.pid(node)}/status") as f:
            return sum(int(l.split()[1]) * 1024 for l in f if l.startswith(("RssAnon:", "RssShmem:")))

    def descriptors(self, node): return len(os.listdir(f"/proc/{self.pid(node)}/fd"))


class Machine(threading.Thread):
    """Notes when the machine itself stands still: a small write here, beside the nodes' disks, takes long to be synced."""

    LONG_S = 0.5

    def __init__(self, path):
        super().__init__(daemon=True)
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.begun = time.monotonic()  # Of the write that is under way.
        self.stalls = []               # (begun, seconds)

    def run(self):
        while True:
            self.begun = time.monotonic()
            os.pwrite(self.fd, b"x" * 4096, 0)
            os.fdatasync(self.fd)
            took = time.monotonic() - self.begun
            if took > self.LONG_S: self.stalls.append((self.begun, took))
            time.sleep(0.05)

    def stalled(self, since, until):
        """Seconds of this span in which a write had been waiting for more than LONG_S."""
        now = time.monotonic()
        spans = self.stalls + [(self.begun, now - self.begun)]
        return sum(max(0.0, min(b + s, until) - max(b + self.LONG_S, since)) for b, s in spans)


class Churn(threading.Thread):
    """Declares, fills and deletes queues on one node, some names again and again, and knows what must be there in the end."""

    MOST = 30

    def __init__(self, cluster, node, seed):
        super().__init__(daemon=True)
        self.cluster, self.node, self.rng = cluster, node, random.Random(f"{seed} {node}")
        self.alive = {}       # Name -> [messages confirmed, messages published], declared and not deleted since.
        self.deleted = set()  # Deleted, not declared since.
        self.late = {}        # Publishes nothing was heard of to queues of whose end nothing was heard: they may still arrive.
        self.errors, self.done = [], 0
        self.over = threading.Event()

    def run(self):
        while not self.over.is_set():
            try:
                k = self.cluster.connect(self.node, heartbeat=4, socket_timeout=2, blocked_connection_timeout=30)
                while not self.over.is_set():
                    self.step(k)
                    self.over.wait(self.rng.random() * 0.3)
                k.close()
            except pika.exceptions.AMQPError as e:
                text = f"channel closed: {e.reply_code} {e.reply_text}" if isinstance(e, pika.exceptions.ChannelClosed) else f"connection closed: {e.reply_code} {e.reply_text}" \
                    if isinstance(e, pika.exceptions.ConnectionClosedByBroker) else ""
                if text and not ALLOWED.search(text): self.errors.append(f"{self.node}: {text}")
            except (OSError, pika.adapters.utils.connection_workflow.AMQPConnectorException): pass  # Not there at the moment.
            self.over.wait(0.2)

    def step(self, k):
        ch = k.channel()
        ch.confirm_delivery()
        if len(self.alive) >= self.MOST or (self.alive and self.rng.random() < 0.3):
            name = self.rng.choice(sorted(self.alive))
            low, high = self.alive.pop(name)  # Unknown until it is answered.
            self.late[name] = high - low
            ch.queue_delete(name)
            del self.late[name]
            self.deleted.add(name)
        else:
            name = f"churn-{self.node}-{self.rng.randrange(60)}"
            if name in self.alive: return ch.close()
            was_deleted = name in self.deleted
            self.deleted.discard(name)
            ok = ch.queue_declare(name, durable=True, arguments=QUORUM)
            if was_deleted and ok.method.message_count: self.errors.append(f"{name} was deleted and comes back with {ok.method.message_count} messages")
            if not was_deleted and ok.method.message_count: return ch.close()  # One of whose end nothing was heard.
            count = self.alive[name] = [0, self.late.pop(name, 0)]
            for _ in range(self.rng.randrange(4)):
                count[1] += 1
                ch.basic_publish("", name, b"x" * self.rng.randrange(500))
                count[0] += 1
        ch.close()
        self.done += 1

    def stop(self):
        self.over.set()
        self.join(40)

    def wrong(self):
        """What every node says in the end, against the books."""
        def look():
            bad = []
            for n in self.cluster.names():
                there = {q["name"]: q["messages"] for q in self.cluster.json(n, "list_queues", "name", "messages")}
                bad += [f"{n}: {name} was declared and is not there" for name in self.alive if name not in there]
                bad += [f"{n}: {name} was deleted and is there" for name in self.deleted if name in there]
                bad += [f"{n}: {name} has {there[name]} messages, {low} were confirmed, {high} published" for name, (low, high) in self.alive.items()
                        if name in there and not low <= there[name] <= high]
            return bad
        until(lambda: not look(), 10, 0.3)
        return self.errors + look() + (["it did not stop"] if self.is_alive() else [])
