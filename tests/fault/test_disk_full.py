#!/usr/bin/python3
"""Full disks (issue item 5, AL-01, AL-10): nodes on small loop-mounted file systems. Publishing stops with a clear state, consuming and
settling go on, and all recovers by itself; nothing confirmed is lost and no node ends. Needs root and a loop device."""
import errno, glob, json, os, shutil, subprocess, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from warren import *

t = Tap()
root = os.path.join(build, "local-cluster")
SMALL_MB = 96
ROUNDS = int(os.environ.get("ROUNDS", "1"))  # Of the restarts.
RESERVES = ["wal/reserve", "wal/reserve-last", "wal/free-*"]
CONF = "warren.wal_file_bytes = 4MiB\nwarren.memtable_bytes = 8MiB\ndisk_free_limit.absolute = {limit}\n"


class Small:
    """Moves nodes' data to file systems of SMALL_MB."""

    def __init__(self, c, nodes):
        self.c, self.nodes = c, nodes

    def __enter__(self):
        for n in self.nodes:
            image, d = f"{root}/{n}.img", f"{root}/{n}"
            self.c.do("stop", n)
            shutil.move(d, d + ".before")
            os.mkdir(d)
            for command in (["truncate", "-s", f"{SMALL_MB}M", image], ["mkfs.ext4", "-q", "-F", "-m", "0", image], ["mount", "-o", "loop", image, d],
                            ["cp", "-a", d + ".before/.", d]):
                subprocess.run(command, check=True, capture_output=True)
            shutil.rmtree(d + ".before")
            self.c.do("start", n)
        for n in self.nodes:
            self.c.do("await", n)
        self.c.ctl("n1", "-q", "await_online_nodes", str(self.c.nodes))
        return self

    def __exit__(self, kind, value, tb):
        if kind:
            for n in self.nodes:
                print(f"# the end of {n}'s log:", *("#   " + l for l in self.c.do("logs", n, check=False).stdout.splitlines()[-25:]), sep="\n")
        for n in self.nodes:
            self.c.do("kill", n, check=False)
            subprocess.run(["umount", f"{root}/{n}"], capture_output=True)


class Told(Publisher):
    """A publisher that notes when the server blocks it."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.told = []

    def begin(self):
        self.connection.add_on_connection_blocked_callback(lambda c, f: self.told.append(f.method.reason))
        self.connection.add_on_connection_unblocked_callback(lambda c, f: self.told.append("unblocked"))
        super().begin()


def alarms(c, node):
    p = c.ctl(node, "-q", "check_alarms", check=False)
    return p.stdout.split("\n")[:-1] if p.returncode == 69 else []


def room(n):
    s = os.statvfs(f"{root}/{n}")
    return s.f_bavail * s.f_frsize >> 20


def publish_until_full(c, full, publisher_at, queue):
    """Until the publisher is told. Returns it, still connected."""
    wrong = []
    pids = {n: c.pid(n) for n in full}
    p = Told(c, publisher_at, queue, size=10000, window=400)
    p.start()
    if not until(lambda: p.told or p.error, 40, 0.001): wrong.append(f"not blocked after {len(p.confirmed)} messages; room: {[room(n) for n in full]} MB")
    p.paused = True  # What it has sent may still be taken.
    if p.told and p.told[0] != "low on disk": wrong.append(f"told {p.told}")
    for n in ("n1", "n2", "n3"):
        if not until(lambda: any("Free disk space alarm on node" in a for a in alarms(c, n)), 5): wrong.append(f"{n} knows of no alarm")
    # It may clear for a moment, while retirement finds room: what was published meanwhile sets it again.
    if not until(lambda: p.told[-1:] != ["low on disk"] or "disk" in [a["resource"] for a in c.json(full[0], "status")["alarms"]], 5): wrong.append(f"status of {full[0]} shows no alarm")
    if {n: c.pid(n) for n in full} != pids: wrong.append("a node ended")
    print(f"# {len(p.confirmed)} confirmed, {len(p.by_tag)} open, room in MB: {[room(n) for n in full]}")
    return p, wrong


def drain_and_go_on(c, p, full, consumer_at, queue, more=500, give_room=None):
    """Consumes everything, with acks, while publishers are blocked; then publishing goes on by itself, or when room is given."""
    wrong = []
    k = Consumer(c, consumer_at, queue)
    k.start()
    if not until(lambda: set(p.confirmed) <= {n for _, n, _ in k.got}, 20): wrong.append(f"{len(k.got)} of {len(p.confirmed)} consumed during the alarm")
    if give_room: give_room()
    if not until(lambda: p.told[-1:] != ["low on disk"] or p.error, 20):
        wrong.append(f"still blocked after everything was consumed: {p.told}, {alarms(c, 'n1')}; room: {[room(n) for n in full]} MB")
    p.paused = False
    before = len(p.confirmed)
    if not until(lambda: len(p.confirmed) > before + more or p.error, 15): wrong.append("nothing more is confirmed after the alarm")
    p.paused = True
    until(lambda: not p.by_tag or p.error, 20)
    if p.by_tag: wrong.append(f"{len(p.by_tag)} publishes were never confirmed")
    if not k.wait_for(p.confirmed, 20): wrong.append("not everything arrived")
    wrong += check_deliveries(k.got, p.confirmed, p.next)
    wrong += [str(x.error) for x in (p, k) if x.error]
    p.stop(); k.stop()
    return wrong


def filled(c, full, queue, lead, consumer_at):
    c.declare("n1", queue)
    c.lead(queue, lead)
    p, wrong = publish_until_full(c, full, lead, queue)
    return wrong + drain_and_go_on(c, p, full, consumer_at, queue)


def restarted(c, queue):
    """A node is killed while its disk is full, and starts again on it."""
    c.declare("n1", queue)
    p, wrong = publish_until_full(c, ["n1"], "n2", queue)
    c.do("kill", "n1")
    c.do("start", "n1")
    c.do("await", "n1", 20)
    # Unless the start found room, of the log's files that were not needed any more.
    if not until(lambda: alarms(c, "n2") or os.path.exists(f"{root}/n1/wal/reserve"), 5): wrong.append("no alarm after the restart, and no reserve")
    return wrong + drain_and_go_on(c, p, ["n1"], "n3", queue)


def fill_up(d):
    """Not a block is left, nor comes back by what the file system frees late."""
    fd = os.open(f"{d}/fill", os.O_CREAT | os.O_WRONLY)
    at, before = 0, -1
    while at != before:
        before = at
        os.fsync(fd)
        for chunk in (1 << 20, 1 << 16, 4096, 1024):
            try:
                while True:
                    os.posix_fallocate(fd, at, chunk)
                    at += chunk
            except OSError as e:
                if e.errno != errno.ENOSPC: raise
    os.close(fd)
    s = os.statvfs(d)
    return s.f_bavail * s.f_frsize


def filled_by_others(c, queue, used_up):
    """A node is killed, somebody else fills its disk to the last byte, and it starts. `used_up`: files that had been used up before."""
    c.declare("n1", queue)
    p = Told(c, "n2", queue, size=5000, window=400, rate=2000)
    p.start()
    wrong = [] if until(lambda: len(p.confirmed) > 1000 or p.error, 20) else [f"{len(p.confirmed)} confirmed before the kill"]
    c.do("kill", "n1")
    for pattern in used_up:
        for path in glob.glob(f"{root}/n1/{pattern}"): os.remove(path)
    if left := fill_up(f"{root}/n1"): wrong.append(f"{left} bytes left")
    c.do("start", "n1")
    if "identity.spare" in used_up:
        said = "waiting for room"
        if not until(lambda: said in c.do("logs", "n1").stdout.splitlines()[-2:][0], 5): wrong.append("does not say that it waits for room")
        os.remove(f"{root}/n1/fill")
    c.do("await", "n1", 20)
    if "identity.spare" in used_up:
        p.drain(15)
        wrong += [] if not p.by_tag else ["not everything was confirmed"]
        k = Consumer(c, "n1", queue)
        k.start()
        if not k.wait_for(p.confirmed, 20): wrong.append("not everything arrived")
        wrong += check_deliveries(k.got, p.confirmed, p.next)
        p.stop(); k.stop()
        return wrong
    # Unless the start found room for a reserve, of the log's files that were not needed any more.
    if not until(lambda: p.told[-1:] == ["low on disk"] or os.path.exists(f"{root}/n1/wal/reserve") or p.error, 10):
        wrong.append(f"not blocked after the start: {p.told}, {alarms(c, 'n2')}")
    p.paused = True
    return wrong + drain_and_go_on(c, p, ["n1"], "n1", queue, give_room=lambda: os.remove(f"{root}/n1/fill"))


def alone(c):
    """A single node on a disk without a byte left and nothing in reserve: what it has is read and settled, in the file that the log has."""
    wrong = []
    c.declare("n1", "alone")
    p = Told(c, "n1", "alone", size=2000, limit=1500)
    p.start()
    if not until(lambda: len(p.confirmed) == 1500 or p.error, 20): wrong.append(f"{len(p.confirmed)} confirmed")
    p.stop()
    c.do("kill", "n1")
    for pattern in RESERVES:
        for path in glob.glob(f"{root}/n1/{pattern}"): os.remove(path)
    if left := fill_up(f"{root}/n1"): wrong.append(f"{left} bytes left")
    c.do("start", "n1")
    c.do("await", "n1", 20)
    if not until(lambda: alarms(c, "n1"), 5): wrong.append("no alarm")
    k = Consumer(c, "n1", "alone")
    k.start()
    if not k.wait_for(p.confirmed, 20): wrong.append(f"{len(k.got)} of {len(p.confirmed)} consumed on the full disk")
    if not until(lambda: c.json("n1", "list_queues", "name", "messages") == [{"name": "alone", "messages": 0}], 10): wrong.append("not settled")
    more = Told(c, "n1", "alone", size=2000, limit=1600, start=1500)
    more.start()
    if not until(lambda: more.told == ["low on disk"], 10): wrong.append(f"not blocked: {more.told}")
    os.remove(f"{root}/n1/fill")
    if not until(lambda: more.told == ["low on disk", "unblocked"] and len(more.confirmed) == 100, 15): wrong.append(f"does not go on: {more.told}, {len(more.confirmed)}")
    if not k.wait_for(p.confirmed + more.confirmed, 15): wrong.append("not everything arrived")
    wrong += check_deliveries(k.got, p.confirmed + more.confirmed, more.next)
    more.stop(); k.stop()
    return wrong


def other_files(c):
    """AL-01: somebody else's file takes the room and goes again."""
    wrong = []
    c.declare("n1", "other")
    p = Told(c, "n2", "other", size=500, rate=500)
    p.start()
    p.ready.wait(10)
    fill = f"{root}/n1/fill"
    s = os.statvfs(f"{root}/n1")
    subprocess.run(["fallocate", "-l", str((room("n1") - 3) << 20), fill], check=True)
    if not until(lambda: p.told == ["low on disk"], 12): wrong.append(f"not blocked: {p.told}, room {room('n1')} MB")
    os.remove(fill)
    if not until(lambda: p.told == ["low on disk", "unblocked"], 10): wrong.append(f"not unblocked within 10 s: {p.told}, room {room('n1')} MB")
    if not p.drain(15): wrong.append(f"{len(p.by_tag)} publishes were never confirmed")
    k = Consumer(c, "n1", "other")
    k.start()
    if not k.wait_for(p.confirmed, 15): wrong.append("not everything arrived")
    wrong += check_deliveries(k.got, p.confirmed, p.next)
    p.stop(); k.stop()
    return wrong


def measured():
    """AL-10: what a node reports is what is available to it, whatever the blocks, what is kept for root, bind mounts and names."""
    top_dir = os.path.join(build, "measured")
    place, data = f"{top_dir}/disk", f"{top_dir}/m\u00fc\u00dfig und leer"
    image, socket, conf = f"{top_dir}/img", f"{top_dir}/s", f"{top_dir}/conf"
    shutil.rmtree(top_dir, ignore_errors=True)
    os.makedirs(place); os.makedirs(data)
    with open(conf, "w") as f: f.write(f"warren.data_dir = {data}\nwarren.control_socket = {socket}\nwarren.wal_file_bytes = 4MiB\ndisk_free_limit.absolute = 1MB\n")
    p = None
    try:
        for command in (["truncate", "-s", f"{SMALL_MB}M", image], ["mkfs.ext4", "-q", "-F", "-b", "1024", "-m", "20", image], ["mount", "-o", "loop", image, place],
                        ["mount", "--bind", place, data]):
            subprocess.run(command, check=True, capture_output=True)
        with open(f"{top_dir}/log", "w") as log: p = subprocess.Popen([f"{build}/warren", "--config", conf, "--node", "n1@localhost"], stdout=log, stderr=log)

        def reported():
            q = subprocess.run([f"{build}/warrenctl", "--socket", socket, "status", "--formatter", "json"], capture_output=True, text=True)
            return json.loads(q.stdout)["disk_free"] if q.returncode == 0 else None

        def differs():
            s, r = os.statvfs(data), reported()
            return None if isinstance(r, int) and abs(r - s.f_bavail * s.f_frsize) < 1 << 20 else f"{r} reported, available {s.f_bavail * s.f_frsize}, free {s.f_bfree * s.f_frsize}"

        if not until(lambda: not differs(), 20, 0.2): return [differs()] + open(f"{top_dir}/log").read().splitlines()[-5:]
        subprocess.run(["fallocate", "-l", "20M", f"{place}/fill"], check=True)
        return [] if until(lambda: not differs(), 15, 0.2) else [differs()]
    finally:
        if p: p.kill(); p.wait()
        for d in (data, place): subprocess.run(["umount", d], capture_output=True)
        shutil.rmtree(top_dir, ignore_errors=True)


# A stop that somebody else asked for is pending when the program begins.
PENDING = [sys.executable, "-c", """import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
me = os.getpid()
if (child := os.fork()) == 0: os.kill(me, signal.SIGTERM); os._exit(0)
os.waitpid(child, 0)
os.execv(sys.argv[1], sys.argv[1:])"""]


def blank():
    """A node without a past, on a disk without a byte left."""
    place = f"{build}/blank"
    data, image, socket, conf, log = f"{place}/data", f"{build}/blank.img", f"{place}/s", f"{build}/blank.conf", f"{build}/blank.log"
    shutil.rmtree(place, ignore_errors=True)
    os.makedirs(place)
    with open(conf, "w") as f: f.write(f"warren.data_dir = {data}\nwarren.control_socket = {socket}\nwarren.wal_file_bytes = 4MiB\n")
    p, wrong = None, []

    def begin(before=()):
        with open(log, "w") as f: return subprocess.Popen([*before, f"{build}/warren", "--config", conf, "--node", "n1@localhost"], stdout=f, stderr=f)

    def is_up(): return subprocess.run([f"{build}/warrenctl", "--socket", socket, "-q", "await_startup", "--timeout", "1"], capture_output=True).returncode == 0
    try:
        for command in (["truncate", "-s", f"{SMALL_MB}M", image], ["mkfs.ext4", "-q", "-F", "-m", "0", image], ["mount", "-o", "loop", image, place]):
            subprocess.run(command, check=True, capture_output=True)
        if left := fill_up(place): wrong.append(f"{left} bytes left")
        p = begin()
        if not until(lambda: "waiting for room" in open(log).read(), 10): wrong.append("does not say that it waits for room")
        p.terminate()
        if p.wait(10) != 0: wrong.append(f"told to end it ended with {p.returncode}")
        p = begin(PENDING)  # As a process that starts itself again finds it.
        try:
            if p.wait(10) != 0: wrong.append(f"told to end before it waits it ended with {p.returncode}")
        except subprocess.TimeoutExpired:
            wrong.append("told to end before it waits it does not")
            p.kill(); p.wait()
        p = begin()
        if not until(lambda: "waiting for room" in open(log).read(), 10): wrong.append("the second time it does not say so")
        os.remove(f"{place}/fill")
        if not until(is_up, 20, 0.2): wrong += open(log).read().splitlines()[-5:]
        return wrong
    finally:
        if p: p.kill(); p.wait()
        subprocess.run(["umount", place], capture_output=True)
        for path in (image, conf, log): os.path.exists(path) and os.remove(path)


def probe():
    d = os.path.join(build, "loop-probe")
    os.makedirs(d, exist_ok=True)
    try:
        for command in (["truncate", "-s", "8M", d + ".img"], ["mkfs.ext4", "-q", "-F", d + ".img"], ["mount", "-o", "loop", d + ".img", d]):
            p = subprocess.run(command, capture_output=True, text=True)
            if p.returncode: return p.stderr.strip() or "failed"
        subprocess.run(["umount", d], check=True)
        return None
    except FileNotFoundError as e:
        return str(e)
    finally:
        os.path.exists(d + ".img") and os.remove(d + ".img")


ONE = "one of three disks is full: publishing stops everywhere, the rest goes on, and back"
RESTART = "a node killed while its disk is full starts again on it"
FILLED = "a node whose disk others filled to the last byte meanwhile starts on it, and goes on when there is room"
USED_UP = "the same with nothing in reserve"
WAITS = "without room even for its identity it waits for some, and starts"
BLANK = "a new node on such a disk waits for room, ends when told to, and is up when there is some"
ALONE = "a single node on a disk without a byte left: what it has is read and settled"
OTHER = "AL-01: room taken by others blocks, and unblocks within 10 s"
ALL = "all three disks are full: the same"
MEASURED = "AL-10: free room is what is available, on 1 KiB blocks with a fifth kept for root, bind-mounted under another name"
why = probe()
if why:
    for text in (MEASURED, ONE, RESTART, FILLED, USED_UP, WAITS, BLANK, ALONE, OTHER, ALL): t.skip(text, f"no loop-mounted file systems here: {why}")
    t.end()
t.run(MEASURED, measured)
t.run(BLANK, blank)
with Cluster(3, conf=CONF.format(limit="0")) as c:  # No limit: really full.
    with Small(c, ["n1"]):
        t.run(ONE, filled, c, ["n1"], "one", "n1", "n2")
        for i in range(ROUNDS):
            t.run(RESTART, restarted, c, f"restarted {i}")
            t.run(FILLED, filled_by_others, c, f"filled {i}", [])
            t.run(USED_UP, filled_by_others, c, f"used up {i}", RESERVES)
        t.run(WAITS, filled_by_others, c, "waits", [*RESERVES, "identity.spare"])
with Cluster(1, conf=CONF.format(limit="0")) as c:
    with Small(c, ["n1"]):
        t.run(ALONE, alone, c)
with Cluster(3, conf=CONF.format(limit="10MB")) as c:
    with Small(c, ["n1"]):
        t.run(OTHER, other_files, c)
with Cluster(3, conf=CONF.format(limit="0")) as c:
    with Small(c, ["n1", "n2", "n3"]):
        t.run(ALL, filled, c, ["n1", "n2", "n3"], "all", "n1", "n2")
t.end()
