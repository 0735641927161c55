"""What Warren's client and fault tests share: a local cluster, a checking publisher and consumer on pika, TAP output."""
import json, os, subprocess, sys, threading, time, traceback

import pika

top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
build = os.environ.get("WARREN_BUILD", os.path.join(top, "build"))
QUORUM = {"x-queue-type": "quorum"}


class Cluster:
    """The local cluster (deploy/local-cluster). A context manager: up on entry, down on exit."""

    def __init__(self, nodes=3, conf=None, env=None):
        self.nodes = nodes
        self.env = {**os.environ, "WARREN_BUILD": build, **(env or {})}
        if os.environ.get("WARREN_TEST_WORKERS"):  # Every node with so many workers, whatever the machine has.
            conf = (conf or "") + f"warren.workers = {int(os.environ['WARREN_TEST_WORKERS'])}\n"
        if conf:
            path = os.path.join(build, "test.conf")
            with open(path, "w") as f:
                f.write(conf)
            self.env["WARREN_CONF"] = path

    def do(self, *args, check=True, timeout=120, env=None):
        p = subprocess.run([os.path.join(top, "deploy/local-cluster"), *map(str, args)], capture_output=True, text=True,
                           env=dict(self.env, **(env or {})), timeout=timeout, stdin=subprocess.DEVNULL)
        if check and p.returncode:
            raise RuntimeError(f"local-cluster {' '.join(map(str, args))}: exit {p.returncode}: {p.stderr.strip()} {p.stdout.strip()}")
        return p

    def __enter__(self):
        self.do("up", self.nodes)
        return self

    def __exit__(self, kind, value, tb):
        if kind:
            for i in range(1, self.nodes + 1):
                log = self.do("logs", f"n{i}", check=False).stdout.splitlines()
                print(f"# the end of n{i}'s log:", *("#   " + l for l in log[-12:]), sep="\n")
        self.do("down", check=False)

    def ctl(self, node, *args, check=True, timeout=60):
        return self.do("ctl", node, *args, check=check, timeout=timeout)

    def json(self, node, *args):
        return json.loads(self.ctl(node, *args, "--formatter", "json").stdout)

    def pid(self, node):
        return int(self.do("pid", node).stdout)

    def port(self, node):
        return 5671 + int(node[1:])

    def memory(self, node):
        """RssAnon + RssShmem in bytes (design.md)."""
        with open(f"/proc/{self.pid(node)}/status") as f:
            return sum(int(l.split()[1]) * 1024 for l in f if l.startswith(("RssAnon:", "RssShmem:")))

    def connect(self, node, **more):
        return pika.BlockingConnection(self.parameters(node, **more))

    def parameters(self, node, **more):
        return pika.ConnectionParameters("127.0.0.1", self.port(node), credentials=pika.PlainCredentials("guest", "guest"),
                                         **dict(dict(heartbeat=60, blocked_connection_timeout=60), **more))

    def declare(self, node, queue, arguments=None):
        c = self.connect(node)
        c.channel().queue_declare(queue, durable=True, arguments=arguments if arguments is not None else QUORUM)
        c.close()

    def leader(self, node, queue):
        for q in self.json(node, "list_queues", "name", "leader"):
            if q["name"] == queue:
                return q["leader"].split("@")[0]
        return None

    def lead(self, queue, node, limit_s=10):
        """Makes `node` lead the queue."""
        until = time.monotonic() + limit_s
        while self.leader(node, queue) != node:
            self.ctl(node, "-q", "transfer_leadership", queue, f"{node}@localhost", check=False)
            if time.monotonic() > until:
                raise RuntimeError(f"{node} does not lead {queue} after {limit_s} s")
            time.sleep(0.05)


class Session(threading.Thread):
    """A pika SelectConnection in a thread of its own."""

    def __init__(self, cluster, node):
        super().__init__(daemon=True)
        self.cluster, self.node = cluster, node
        self.error = None          # Why it ended, if not by stop().
        self.ready = threading.Event()
        self.ended = threading.Event()
        self.stopping = False
        self.connection = self.channel = None

    def run(self):
        try:
            self.connection = pika.SelectConnection(self.cluster.parameters(self.node), on_open_callback=lambda c: c.channel(on_open_callback=self.opened),
                                                    on_open_error_callback=lambda c, e: self.fail(e), on_close_callback=lambda c, e: self.fail(e))
            self.connection.ioloop.start()
        except Exception as e:  # noqa: BLE001 - reported to the test
            self.error = self.error or e
            traceback.print_exc()
        self.ended.set()
        self.ready.set()

    def fail(self, e):
        if not self.stopping:
            self.error = e
        self.connection.ioloop.stop()

    def opened(self, channel):
        self.channel = channel
        channel.add_on_close_callback(lambda ch, e: None if self.stopping else setattr(self, "error", self.error or e))
        self.begin()

    def call(self, fn):
        self.connection.ioloop.add_callback_threadsafe(fn)

    def stop(self):
        if not self.ended.is_set() and self.connection:
            def close():
                self.stopping = True
                if self.connection.is_open:
                    self.connection.close()
                else:
                    self.connection.ioloop.stop()
            self.call(close)
        self.ended.wait(20)


class Publisher(Session):
    """Publishes numbered messages with confirms, at most `window` open. body = number, padded to `size`."""

    def __init__(self, cluster, node, queue, rate=None, window=1000, size=100, start=0, limit=None, name="p"):
        super().__init__(cluster, node)
        self.queue, self.rate, self.window, self.size, self.limit, self.name_tag = queue, rate, window, size, limit, name
        self.next = start           # Next number.
        self.by_tag = {}            # Delivery tag -> number.
        self.tag = 0
        self.confirmed = []         # Numbers, in order of confirmation.
        self.nacked = []
        self.times = []             # Monotonic time of each confirm frame.
        self.first = start
        self.paused = False

    def begin(self):
        self.channel.confirm_delivery(self.on_confirm, callback=lambda f: (setattr(self, "t0", time.monotonic()), self.ready.set(), self.pump()))

    def pump(self):
        if self.stopping or self.error or not self.channel.is_open:
            return
        due = self.window if self.rate is None else int((time.monotonic() - self.t0) * self.rate) - (self.next - self.first)
        n = 0
        while not self.paused and len(self.by_tag) < self.window and due > 0 and n < 200 and (self.limit is None or self.next < self.limit):
            self.tag += 1
            self.by_tag[self.tag] = self.next
            self.channel.basic_publish("", self.queue, f"{self.name_tag}:{self.next}:".encode().ljust(self.size, b"."), pika.BasicProperties(delivery_mode=2))
            self.next += 1
            due -= 1
            n += 1
        self.connection.ioloop.call_later(0.002 if n == 0 else 0, self.pump)

    def on_confirm(self, frame):
        m = frame.method
        is_ack = isinstance(m, pika.spec.Basic.Ack)
        self.times.append(time.monotonic())
        tags = [t for t in self.by_tag if t <= m.delivery_tag] if m.multiple else [m.delivery_tag]
        for t in tags:
            if t in self.by_tag:
                (self.confirmed if is_ack else self.nacked).append(self.by_tag.pop(t))

    def longest_gap(self, since=None):
        t = [x for x in self.times if since is None or x >= since]
        return max((b - a for a, b in zip(t, t[1:])), default=0.0)

    def drain(self, timeout=30):
        """Stops publishing and waits for what is open."""
        self.paused = True
        until = time.monotonic() + timeout
        while self.by_tag and not self.ended.is_set() and time.monotonic() < until:
            time.sleep(0.01)
        return not self.by_tag


class Consumer(Session):
    """Consumes with manual acks and records everything: (publisher, number, redelivered)."""

    def __init__(self, cluster, node, queue, prefetch=1000, ack=True):
        super().__init__(cluster, node)
        self.queue, self.prefetch, self.ack = queue, prefetch, ack
        self.got = []
        self.cancelled = False
        self.tags = []

    def begin(self):
        self.channel.add_on_cancel_callback(lambda f: setattr(self, "cancelled", True))
        self.channel.basic_qos(prefetch_count=self.prefetch, callback=lambda f: self.channel.basic_consume(
            self.queue, self.on_message, callback=lambda f2: self.ready.set()))

    def on_message(self, channel, method, properties, body):
        name, number, _ = body.split(b":", 2)
        self.got.append((name.decode(), int(number), method.redelivered))
        if self.ack:
            channel.basic_ack(method.delivery_tag)
        else:
            self.tags.append(method.delivery_tag)

    def wait_for(self, numbers, timeout=30, name="p"):
        """Waits until every number has been seen; up to `timeout` without one of them, since a backlog takes its time."""
        missing, at = set(numbers), 0
        until = time.monotonic() + timeout
        while missing:
            new = self.got[at:]
            at += len(new)
            found = missing.intersection(n for p, n, _ in new if p == name)
            if found:
                missing -= found
                until = time.monotonic() + timeout
            elif self.ended.is_set() or time.monotonic() >= until:
                return False
            time.sleep(0.02)
        return True


def check_deliveries(got, confirmed, published, name="p"):
    """The laws at the client's edge. Returns a list of violations."""
    bad = []
    mine = [(n, r) for p, n, r in got if p == name]
    seen = set()
    last = -1
    for n, redelivered in mine:
        if n in seen and not redelivered:
            bad.append(f"{n} came twice without the redelivered flag")
        if not redelivered and n not in seen:
            if n < last:
                bad.append(f"{n} came after {last} and was not redelivered")
            last = max(last, n)
        seen.add(n)
    lost = set(confirmed) - seen
    if lost:
        bad.append(f"{len(lost)} confirmed messages are lost: {sorted(lost)[:10]}")
    invented = {n for n in seen if not 0 <= n < published}
    if invented:
        bad.append(f"never published: {sorted(invented)[:10]}")
    return bad


class Tap:
    def __init__(self):
        self.count = self.bad = 0

    def ok(self, condition, text, *why):
        self.count += 1
        if not condition:
            self.bad += 1
        print(f"{'ok' if condition else 'not ok'} {self.count} - {text}", flush=True)
        if not condition:
            for w in why:
                print(f"#   {w}", flush=True)
        return condition

    def skip(self, text, why):
        self.count += 1
        print(f"ok {self.count} - {text} # SKIP {why}", flush=True)

    def run(self, text, fn, *args):
        """A test is a function that returns None or a list of what is wrong."""
        try:
            wrong = fn(*args)
        except Exception:  # noqa: BLE001
            wrong = traceback.format_exc().splitlines()
        return self.ok(not wrong, text, *(wrong or []))

    def end(self):
        print(f"1..{self.count}")
        sys.exit(1 if self.bad else 0)


def until(condition, timeout=10.0, step=0.01):
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value or time.monotonic() > end:
            return value
        time.sleep(step)
