#!/usr/bin/python3
"""A backlog far larger than the memory for bodies: it costs memory for its order only, and when all its queues are consumed at
once it comes without stalls, whole, in order and not twice.

BACKLOG_GB=n (0.15) is its size in messages of 1 kB, BACKLOG_QUEUES=a,b,… (1,600) the numbers of queues it lies in, one run each. The
full form is BACKLOG_GB=10 BACKLOG_QUEUES=1,100,1000; the acceptance of memory BACKLOG_GB=1 BACKLOG_QUEUES=1. From 1 GB on the
nodes have their ordinary configuration, and the page cache is dropped before the drain where this may be done. On a disk
that cannot hold it three times one node has to do.

A stall is a pause of more than a second between two deliveries while messages are left, or of one queue while the others had
a thousand messages each; to the second the time is added in which the machine's own disk stood still.
"""
import os, shutil, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from chaos import Machine
from load import *
from warren import *

GB = float(os.environ.get("BACKLOG_GB", "0.15"))
QUEUES = [int(q) for q in os.environ.get("BACKLOG_QUEUES", "1,600").split(",")]
IS_FULL = GB >= 1
MESSAGES = int(GB * 1000000)
MEMORY = 64 * MB      # Above idle, for up to a million messages that wait in one queue.
SPREAD = 96 * MB      # In more than one, each with sessions and consumers of its own.
A_MESSAGE = 16        # Bytes of each message beyond the first million.
AT_WORST = 128 * MB   # While they come, or what they may cost then if that is more.
DRAIN = 48 * MB       # More than that while they go: what consumers read ahead and have not acknowledged,
WINDOW = 200          # or, if that is more, a window of this many messages for each queue that a node leads.
STALL_S = 5.0 if "WARREN_SANITIZED" in os.environ else 1.0
CONF = None if IS_FULL else f"warren.memtable_bytes = {4 << 20}\nwarren.wal_file_bytes = {8 << 20}\n"
MANY = 3  # Producers of more queues than one: each declares its share at a node of its own.
t = Tap()


def room_for(nodes):
    """Some of it lies in a WAL file and a segment at once, and what was drained goes a little later."""
    return shutil.disk_usage(build).free >= nodes * (GB * 1.1e9 + 1e9) + 5e9


def drop_page_cache():
    if not IS_FULL: return False
    os.sync()
    try:
        with open("/proc/sys/vm/drop_caches", "w") as f: f.write("3\n")
        return True
    except OSError:
        return False


def megabytes(above):
    return ", ".join(f"{n} +{b / MB:.0f} MB" for n, b in above.items())


def left(c):
    return {q["name"]: q["messages"] for q in c.json("n1", "list_queues", "name", "messages") if q["messages"]}


def drains(c, machine, queues):
    names = [f"n{i + 1}" for i in range(c.nodes)]
    ports = ",".join(str(c.port(n)) for n in names)
    idle = idle_of(c)
    if queues == 1: c.declare(names[0], "backlog"); c.lead("backlog", names[c.nodes // 2])  # Led, published to and consumed at different nodes.
    producers = 1 if queues == 1 else MANY
    # More consumers than nodes: some are at the leader's, some are not.
    load = Backlog(queue="backlog", queues=queues, no_declare=queues == 1, producers=producers, consumers=1 if queues == 1 else min(queues, c.nodes + 1),
                   count=MESSAGES // producers, window=2000, size=1000, prefetch=1000 if queues == 1 else WINDOW, publish_port=ports,
                   consume_port=c.port(names[-1]) if queues == 1 else ports, drain=30)
    try:
        with Watch(c, idle) as filling: filled = load.filled()
        above = {n: memory_of(c.pid(n)) - idle[n] for n in names}
        is_dropped = drop_page_cache()
        print(f"# {filled['confirmed']} messages in {filled['seconds']:.1f} s; they cost {megabytes(above)}; page cache {'dropped' if is_dropped else 'kept'}", flush=True)
        with Watch(c, idle) as draining: r = load.drain()
        print(f"# drained in {r['seconds']:.1f} s, {r['consume_per_s']:.0f}/s; each second: {' '.join(map(str, load.seconds))}; "
              f"slowest {min(load.seconds, default=r['consumed'])}", flush=True)
    finally:
        load.kill()
    budget = (MEMORY if queues == 1 else SPREAD) + A_MESSAGE * max(0, MESSAGES - 1000000)
    ahead = max(DRAIN, queues // c.nodes * WINDOW * 1000)
    wrong = wrong_with(r) + filling.wrong(max(AT_WORST, budget)) + draining.wrong(max(above.values()) + ahead)
    wrong += [f"{n}: {b / MB:.0f} MB above idle for {MESSAGES} messages, {budget / MB:.0f} allowed" for n, b in above.items()
              if b > budget and "WARREN_SANITIZED" not in os.environ]
    if r["consumed"] != filled["confirmed"]: wrong.append(f"{r['consumed']} of {filled['confirmed']} came")
    for what, spans in (("nothing came", load.pauses), ("nothing of one queue came, but much of the others", load.waits)):
        stalls = [(s, stood) for s, stood in ((s, machine.stalled(begun, begun + s)) for begun, s in spans) if s > STALL_S + stood]
        if spans: print(f"# {len(spans)} times for more than a second {what}, {len(stalls)} times beyond what the machine's disk stood still", flush=True)
        wrong += [f"{what} for {s:.1f} s, {stood:.1f} s of them the disk's" for s, stood in stalls[:5]]
    if not until(lambda: not left(c), 10, 0.1): wrong.append(f"left: {left(c)}")
    return wrong


nodes = 3 if room_for(3) else 1
if nodes == 1 and not room_for(1):
    t.skip("a backlog drains without stalls", f"{GB:.0f} GB have no room on this disk")
    t.end()
machine = Machine(os.path.join(build, "machine"))
machine.start()
for queues in QUEUES:
    with Cluster(nodes, conf=CONF) as c:
        t.run(f"{MESSAGES} messages of 1 kB in {queues} queue{'s' * (queues > 1)} of {nodes} nodes cost little memory and drain without stalls, whole, in order, none twice",
              drains, c, machine, queues)
t.end()
