#!/usr/bin/python3
"""Chaos (CL-11): nodes on hosts of their own are killed, stopped, paused, wiped, lose power, lose or slow their links, run out of disk,
one or several at a time, while clients on every node publish and consume and keep books (tests/ledger). After each healing
every queue must be usable on every node within 5 s, to which the time is added in which the machine's own disk stood still.

CHAOS_S=n seconds of faults (150; the full form is 1800, `make chaos`), CHAOS_SEED=n runs the same schedule again,
CHAOS_FAULTS=kind,kind… only these, CHAOS_SKIP=kind,kind… all but these, CHAOS_KEEP=1 keeps the nodes' logs. The events stand in BUILD/chaos-SEED.log.
"""
import os, random, shutil, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import netns
from warren import *

CHAOS_S = float(os.environ.get("CHAOS_S", "150"))
SEED = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(1, 1000000)))
USABLE_S = 20.0 if "WARREN_SANITIZED" in os.environ else 5.0
t = Tap()
why = None if "WARREN_NETNS" in os.environ else netns.can_run()
if why:
    t.skip("chaos", why)
    t.end()
os.environ["CHAOS_SEED"] = str(SEED)
netns.enter()
from chaos import ChaosCluster, Churn, Ledger, Machine

# name:rate per publisher (one on each node):largest body:of 1,000 some large:prefetch:hold
QUEUES = ["many:300:3000:0:200:0", "large:30:1500:10:50:0", "small:100:200:0:300:0", "late:40:3000:0:100:60", "few:5:500:0:10:0", "hoard:60:3000:0:500:0"]
NAMES = [q.split(":")[0] for q in QUEUES]
KINDS = ["kill", "stop", "pause", "power", "power-all", "cut", "cut-one-way", "cut-partial", "cut-clients", "slow", "lossy", "wipe", "full-disk", "transfer", "kick", "restart-quick"]


class Chaos:
    def __init__(self, c, seed):
        self.c, self.rng = c, random.Random(seed)
        self.begun = time.monotonic()
        self.path = os.path.join(build, f"chaos-{seed}.log")
        self.file = open(self.path, "w")
        self.recent = []
        self.deck = []
        self.undo = []          # (text, function) of this round.
        self.counts = {}
        self.slow_stops = []
        self.wiped = None
        self.last = {}
        chosen = os.environ.get("CHAOS_FAULTS")
        skipped = os.environ.get("CHAOS_SKIP", "").split(",")
        self.kinds = [k for k in (chosen.split(",") if chosen else KINDS) if k not in skipped]

    def log(self, text):
        line = f"{time.monotonic() - self.begun:8.3f} {text}"
        self.file.write(line + "\n")
        self.file.flush()
        self.recent = self.recent[-400:] + [line]

    def on_line(self, line):
        who, why = line.get("client"), line.get("why")
        if line["event"] == "down" and self.last.get(who) == why and why.startswith("connect: "): return  # Once is enough.
        self.last[who] = why
        if line["event"] != "status": self.log("  client: " + " ".join(f"{k}={v}" for k, v in line.items() if k not in ("t",)))

    def next_kind(self):
        if not self.deck:
            self.deck = list(self.kinds)
            self.rng.shuffle(self.deck)
        return self.deck.pop()

    def nodes(self, count):
        names = self.c.names()
        self.rng.shuffle(names)
        return names[:count]

    def break_one(self, kind, n):
        """One fault; `n` is the node it hits if it hits one. What undoes it is noted."""
        c, r = self.c, self.rng
        self.counts[kind] = self.counts.get(kind, 0) + 1
        amount = r.random()
        others = [m for m in c.names() if m != n]
        r.shuffle(others)
        if kind in ("kill", "stop", "power") and c.is_up(n):
            self.log(f"{kind} {n}")
            took = c.end(n, kind)
            if kind == "stop" and took > 10: self.slow_stops.append(f"{n} took {took:.1f} s to stop")
            self.undo.append((f"start {n}", lambda: c.start(n)))
        elif kind == "power-all":
            self.log("power of all nodes")
            for m in [m for m in c.names() if c.is_up(m)]:
                c.end(m, "power")
                self.undo.append((f"start {m}", lambda m=m: c.start(m)))
        elif kind == "restart-quick" and c.is_up(n):
            self.log(f"kill and start {n}")
            c.end(n, "kill")
            c.start(n)
        elif kind == "pause" and c.is_up(n):
            self.log(f"pause {n}")
            c.pause(n)
            self.undo.append((f"resume {n}", lambda: c.resume(n)))
        elif kind == "wipe" and self.wiped is None:
            self.log(f"wipe {n}")
            c.wipe(n)
            self.wiped = n
            self.undo.append((f"start {n}", lambda: c.start(n)))
        elif kind == "cut":
            self.log(f"cut off {n}")
            c.isolate(n)
            self.undo.append(("heal links", c.heal))
        elif kind == "cut-one-way":
            to_all = amount < 0.5
            self.log(f"{n} is {'mute' if to_all else 'deaf'}")
            for m in others: c.cut(n, m, one_way=True) if to_all else c.cut(m, n, one_way=True)
            self.undo.append(("heal links", c.heal))
        elif kind == "cut-partial":
            one_way = amount < 0.3
            self.log(f"cut {n} {'->' if one_way else '<->'} {others[0]}")
            c.cut(n, others[0], one_way=one_way)
            self.undo.append(("heal links", c.heal))
        elif kind == "cut-clients":
            self.log(f"cut clients -> {n}")
            c.cut_clients(n)
            self.undo.append(("heal links", c.heal))
        elif kind == "slow":
            delay, rate = r.choice(((5, 20000), (30, 2000), (100, 500)))
            self.log(f"slow {n}: {delay} ms each way, {rate} kB/s")
            c.slow(n, delay, rate)
            self.undo.append((f"unslow {n}", lambda: c.unslow(n)))
        elif kind == "lossy":
            share = r.choice((0.02, 0.1, 0.3))
            self.log(f"lossy {n}: {share}")
            c.lossy(n, share)
            self.undo.append(("heal links", c.heal))
        elif kind == "full-disk":
            full = [n] if amount < 0.7 else c.names()
            left = r.choice((0, 0, 4, 30))
            self.log(f"disk of {' '.join(full)} full but for {left} MiB")
            for m in full:
                c.fill_disk(m, left)
                self.undo.append((f"room on {m}", lambda m=m: c.empty_disk(m)))
        elif kind == "transfer":
            for q in NAMES:
                to = r.choice(c.names())
                self.log(f"transfer {q} to {to}")
                try: c.ctl(next((m for m in c.names() if c.is_up(m)), n), "-q", "transfer_leadership", q, f"{to}@localhost", check=False, timeout=5)
                except subprocess.TimeoutExpired: pass  # Its node is paused.
        elif kind == "kick":
            self.log("kick 10")
            self.ledger.send("kick 10")

    def round(self, number, wrong):
        r, c = self.rng, self.c
        kinds = [self.next_kind() for _ in range(r.choice((1, 1, 1, 2, 2, 3)))]
        hold = r.choice((0.2, 0.5, 1.0, 2.0, 4.0, 7.0))
        targets = [r.choice(c.names()) for _ in kinds]
        for kind, n in zip(kinds, targets):
            self.break_one(kind, n)
            time.sleep(r.random() * 0.5)
        time.sleep(hold)
        c.look()
        r.shuffle(self.undo)
        for text, fn in self.undo:
            self.log(text)
            fn()
            time.sleep(r.random() * 0.3)
        self.undo = []
        self.log(f"healed; probe {number}")
        healed = time.monotonic()
        p = self.ledger.probe(number)
        slowest = max(p["confirm_s"], p["get_s"])
        unusable = [m for m in p["missing"] if "no progress" not in m]
        stalled = self.machine.stalled(healed, healed + slowest)
        if stalled > 0: self.log(f"the machine's own disk stood still for {stalled:.1f} s of this")
        if unusable or slowest > USABLE_S + stalled:
            wrong["usable"].append(f"round {number} ({', '.join(kinds)}): {slowest:.1f} s; {p['missing']}")
        idle = [m for m in p["missing"] if "no progress" in m]
        if idle or p["clients_s"] > 20: wrong["clients"].append(f"round {number} ({', '.join(kinds)}): {p['clients_s']:.1f} s; {idle}")
        self.usable.append(slowest)
        self.log(f"usable after confirm {p['confirm_s']:.2f} s, get {p['get_s']:.2f} s, clients {p['clients_s']:.2f} s")
        if self.wiped and not self.await_filled(): wrong["filled"].append(f"round {number}: {self.wiped} is not filled again")
        elif self.wiped: self.wiped = None  # Until then no other is wiped: two of three that lost their memory lose messages by right.
        s = self.ledger.status()
        self.log("  " + " ".join(f"{k}={v}" for k, v in s.items() if k not in ("event", "t")))
        c.look()
        if number % 4 == 1: self.ledger.send("pause hoard")
        if number % 4 == 3: self.ledger.send("resume hoard")
        time.sleep(r.random() * 1.0)

    def await_filled(self):
        """A wiped node is a voter of every queue again, before anything else may lose its memory."""
        def filled():
            try:
                for q in NAMES:
                    rows = self.c.json(self.wiped, "quorum_status", q)
                    if len([x for x in rows if x.get("Membership") == "voter"]) != self.c.nodes: return False
                return True
            except Exception: return False
        good = until(filled, 30, 0.1)
        self.log(f"{self.wiped} is {'filled again' if good else 'NOT filled again'}")
        return good


def declare(c):
    k = c.connect("n1")
    ch = k.channel()
    for i, q in enumerate(NAMES):
        ch.queue_declare(q, durable=True, arguments=dict(QUORUM, **{"x-delivery-limit": -1}))
        ch.queue_bind(q, "amq.fanout", "")
    k.close()
    for i, q in enumerate(NAMES): c.lead(q, c.names()[i % c.nodes])


def stranded(c):
    """After everything was consumed and acknowledged, every node says that the queues are empty."""
    def left():
        return [f"{n}: {q['name']} has {q['messages']}" for n in c.names() for q in c.json(n, "list_queues", "name", "messages") if q["name"] in NAMES and q["messages"] != 0]
    if until(lambda: not left(), 10, 0.2): return []
    return left()


rng = random.Random(SEED)
conf = f"warren.workers = {rng.choice((1, 2))}\nwarren.wal_file_bytes = {rng.choice((4, 16, 64)) << 20}\nwarren.memtable_bytes = {rng.choice((8, 32)) << 20}\n"
wrong = {k: [] for k in ("usable", "clients", "filled", "run")}
print(f"# CHAOS_SEED={SEED} CHAOS_S={CHAOS_S:.0f}: " + conf.replace("\n", ", "), flush=True)
with ChaosCluster(3, conf=conf, power="WARREN_SANITIZED" not in os.environ, disk_mib=1024) as c:
    chaos = Chaos(c, SEED)
    chaos.usable = []
    chaos.machine = Machine(os.path.join(c.root, "machine"))
    chaos.machine.start()
    declare(c)
    ledger = chaos.ledger = Ledger([(n, c.host(n)) for n in c.names()], QUEUES, SEED, chaos.on_line)
    churns = [Churn(c, n, SEED) for n in c.names()]
    for churn in churns: churn.start()
    report, left, churned = None, ["not looked at"], ["not looked at"]
    try:
        first = ledger.probe(0)
        chaos.log(f"begins: {first}")
        end = time.monotonic() + CHAOS_S
        number = 1
        while time.monotonic() < end and not ledger.violations and not c.ended:
            chaos.round(number, wrong)
            number += 1
        for churn in churns: churn.stop()
        report = ledger.stop(60)
        chaos.log(f"report: {report}")
        c.look()
        if not c.ended: left, churned = stranded(c), [w for churn in churns for w in churn.wrong()]
    except Exception:  # noqa: BLE001
        wrong["run"] += traceback.format_exc().splitlines()
    finally:
        ledger.kill()
    c.look()
    lost = [v["text"] for v in ledger.violations]
    r = report or {}
    t.ok(not wrong["run"], "the run came to its end", *wrong["run"])
    t.ok(report and r["confirmed"] > 100 and r["lost"] == 0 and r["missing"] == 0, "nothing confirmed is lost", r, *lost)
    t.ok(report and r["invented"] == r["corrupt"] == r["returned"] == 0, "nothing is invented, changed or returned", r, *lost)
    t.ok(report and r["duplicates"] == 0, "duplicates carry the redelivered flag", r, *lost)
    t.ok(report and r["disordered"] == 0, "each publisher's order is kept", r, *lost)
    t.ok(not wrong["usable"], f"every queue takes and gives messages on every node at most {USABLE_S:.0f} s after healing", *wrong["usable"])
    t.ok(not wrong["clients"], "clients that were there before go on", *wrong["clients"])
    t.ok(not ledger.errors, "clients see only what is documented", *ledger.errors[:20])
    t.ok(not c.ended and not chaos.slow_stops, "no node ends by itself or takes long to stop", *c.ended, *chaos.slow_stops)
    t.ok(not left, "in the end every node says that the queues are empty", *left)
    t.ok(not churned, f"queues declared and deleted meanwhile are there or not as was answered ({sum(x.done for x in churns)} times)", *churned[:20])
    if "wipe" in chaos.counts: t.ok(not wrong["filled"], "a wiped node is filled again by itself", *wrong["filled"])
    print(f"# {number - 1} rounds: " + ", ".join(f"{k} {n}" for k, n in sorted(chaos.counts.items())))
    u = sorted(chaos.usable) or [0]
    print(f"# usable after healing: median {u[len(u) // 2]:.2f} s, worst {u[-1]:.2f} s; {r}")
    print("# reasons of ends: " + ", ".join(f"{k}: {n}" for k, n in sorted(ledger.reasons.items(), key=lambda x: -x[1])[:12]))
    if t.bad or "CHAOS_KEEP" in os.environ:
        quiet = [l for l in chaos.recent if "event=down" not in l]
        print(f"# the last events of {chaos.path}:", *("#   " + l[:300] for l in quiet[-30:]), sep="\n")
        keep = os.path.join(build, f"chaos-{SEED}-logs")
        shutil.rmtree(keep, ignore_errors=True)
        os.makedirs(keep)
        for n in c.names(): shutil.copy(f"{c.root}/{n}.log", keep)
        chosen = "".join(f"{k}={os.environ[k]} " for k in ("CHAOS_FAULTS", "CHAOS_SKIP") if k in os.environ)
        print(f"# run it again: CHAOS_SEED={SEED} CHAOS_S={CHAOS_S:.0f} {chosen}tests/fault/test_chaos.py; the nodes' logs are in {keep}")
t.end()
