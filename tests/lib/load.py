"""warren-load (tests/tools) from Python, and what it does to a cluster: memory, WAL files, size of the data directories."""
import json, os, subprocess, threading, time

from warren import build

MB = 1000 * 1000
MIB = 1 << 20


class Load:
    """A run of warren-load in the background; `result()` waits for it. Options by name: Load(size=1000, consume_port=5673)."""

    def __init__(self, stdin=subprocess.DEVNULL, **options):
        args = [os.path.join(build, "warren-load")]
        for name, value in options.items():
            if value is not False: args += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
        self.process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=stdin)

    def result(self, timeout=600):
        out, err = self.process.communicate(timeout=timeout)
        if not out:
            raise RuntimeError(f"warren-load: exit {self.process.returncode}: {err.strip()}")
        return json.loads(out.splitlines()[-1])

    def stop(self):
        self.process.terminate()
        return self.result()


class Backlog(Load):
    """Fills queues, waits to be told, and drains them: Backlog(queues=20, count=1000); `filled()`, `drain()`."""

    def __init__(self, **options):
        super().__init__(stdin=subprocess.PIPE, backlog=True, every_second=True, **options)
        self.seconds = []             # Of the drain: its deliveries in each.
        self.pauses, self.waits = [], []  # Of more than a second: nothing came; nothing of one queue came, but much of the others. (begun, seconds)

    def line(self):
        text = self.process.stdout.readline()
        if not text:
            raise RuntimeError(f"warren-load: exit {self.process.wait()}: {self.process.stderr.read().strip()}")
        return json.loads(text)

    def filled(self):
        """Returns when everything is confirmed."""
        while (line := self.line()).get("event") != "filled": pass
        return line

    def drain(self):
        """Has it consumed; returns the result."""
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        while "event" in (line := self.line()):
            if line["event"] == "pause": self.pauses.append((line["begun"], line["seconds"]))
            if line["event"] == "wait": self.waits.append((line["begun"], line["seconds"]))
            if line["event"] == "second": self.seconds.append(line["consumed"])
        self.process.wait(30)
        return line

    def kill(self):
        if self.process.poll() is None: self.process.kill()
        self.process.wait()


def wrong_with(result):
    """What must hold of every run whose clients read."""
    return [f"{name}: {result[name]} ({result['error']})" for name in ("lost", "duplicates", "disordered", "corrupt", "nacked", "failed") if result[name]]


class Watch(threading.Thread):
    """Looks at every node 20 times a second: highest memory above `idle`, most WAL files, largest data directory."""

    def __init__(self, cluster, idle, nodes=None):
        super().__init__(daemon=True)
        self.cluster, self.idle = cluster, idle
        self.names = nodes or list(idle)
        self.pids = {n: cluster.pid(n) for n in self.names}
        self.above = {n: 0 for n in self.names}
        self.wal_files = {n: 0 for n in self.names}
        self.data = {n: 0 for n in self.names}
        self.over = threading.Event()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()

    def run(self):
        while not self.over.wait(0.05):
            for n in self.names:
                try:
                    self.above[n] = max(self.above[n], memory_of(self.pids[n]) - self.idle[n])
                    files, size = data_of(n)
                    self.wal_files[n] = max(self.wal_files[n], files)
                    self.data[n] = max(self.data[n], size)
                except (FileNotFoundError, ProcessLookupError):
                    pass  # A file that went away meanwhile.

    def wrong(self, memory, wal_files=None, data=None):
        text = ", ".join(f"{n}: memory +{self.above[n] / MB:.0f} MB, WAL files {self.wal_files[n]}, data {self.data[n] / MB:.0f} MB" for n in self.names)
        print(f"# {text}", flush=True)
        if "WARREN_SANITIZED" in os.environ:
            memory = float("inf")  # Shadow memory and quarantine.
        wrong = [f"{n}: {self.above[n] / MB:.0f} MB above idle, {memory / MB:.0f} allowed" for n in self.names if self.above[n] > memory]
        wrong += [f"{n}: {self.wal_files[n]} WAL files" for n in self.names if wal_files and self.wal_files[n] > wal_files]
        wrong += [f"{n}: {self.data[n] / MB:.0f} MB of data" for n in self.names if data and self.data[n] > data]
        return wrong


def memory_of(pid):
    """RssAnon + RssShmem in bytes (design.md)."""
    with open(f"/proc/{pid}/status") as f:
        return sum(int(l.split()[1]) * 1024 for l in f if l.startswith(("RssAnon:", "RssShmem:")))


def data_of(node):
    """WAL files, and bytes of all files of a node."""
    top = os.path.join(build, "local-cluster", node)
    wal, size = 0, 0
    for directory, _, files in os.walk(top):
        for name in files:
            size += os.stat(os.path.join(directory, name)).st_blocks * 512
            wal += directory.endswith("/wal") and name != "reserve"  # The room kept for a full disk is no log.
    return wal, size


def idle_of(cluster):
    return {f"n{i}": memory_of(cluster.pid(f"n{i}")) for i in range(1, cluster.nodes + 1)}


def restart_s(cluster, node, how="kill"):
    """Seconds from the start of a stopped node until it takes connections."""
    cluster.do(how, node)
    begun = time.monotonic()
    cluster.do("start", node)
    cluster.do("await", node)
    return time.monotonic() - begun
