"""Warren nodes on hosts of their own: network namespaces joined by a bridge, so that links can be cut, also one way.

Needs root, iproute2 and iptables. The test runs inside the namespace of the clients (NetCluster.enter re-executes it
there). Host i is 10.77.0.i; all names start with the cluster's own prefix and are removed at the end.
"""
import os, shutil, signal, subprocess, sys, time

from warren import Cluster, build, pika

PREFIX = f"wrn{os.getpid() % 10000}" if "WARREN_NETNS" not in os.environ else os.environ["WARREN_NETNS"]


def sh(command, check=True):
    p = subprocess.run(command, shell=True, capture_output=True, text=True)
    if check and p.returncode:
        raise RuntimeError(f"{command}: {p.stderr.strip()}")
    return p.stdout


def can_run():
    """None, or why namespaces cannot be had here."""
    if os.geteuid() != 0: return "needs root"
    for tool in ("ip", "iptables"):
        if not shutil.which(tool): return f"{tool} is not installed"
    p = subprocess.run(["ip", "netns", "add", f"{PREFIX}probe"], capture_output=True, text=True)
    if p.returncode: return p.stderr.strip()
    q = subprocess.run(["ip", "netns", "exec", f"{PREFIX}probe", "iptables", "-w", "-A", "INPUT", "-s", "10.77.0.1", "-j", "DROP"], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", f"{PREFIX}probe"])
    return q.stderr.strip() if q.returncode else None


def enter(nodes=3):
    """Builds the hosts and runs this program again in the clients' namespace; the outer process cleans up after it."""
    if "WARREN_NETNS" in os.environ:
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # Cleans up too.
    sw = f"{PREFIX}sw"
    names = [f"{PREFIX}n{i}" for i in range(1, nodes + 1)] + [f"{PREFIX}c"]
    try:
        sh(f"ip netns add {sw}; ip -n {sw} link add br0 type bridge; ip -n {sw} link set br0 up; ip -n {sw} link set lo up")
        for i, ns in enumerate(names, 1):
            address = f"10.77.0.{i if i <= nodes else 100}"
            sh(f"ip netns add {ns}")
            sh(f"ip -n {ns} link add eth0 type veth peer name p{i} netns {sw}")
            sh(f"ip -n {sw} link set p{i} master br0 up")
            sh(f"ip -n {ns} addr add {address}/24 dev eth0; ip -n {ns} link set eth0 up; ip -n {ns} link set lo up")
        p = subprocess.run(["ip", "netns", "exec", names[-1], *([sys.executable] + sys.argv)], env=dict(os.environ, WARREN_NETNS=PREFIX))
        code = p.returncode
    finally:
        for ns in names + [sw]:
            for pid in sh(f"ip netns pids {ns}", check=False).split():
                try: os.kill(int(pid), signal.SIGKILL)
                except OSError: pass
            sh(f"ip netns del {ns}", check=False)
    sys.exit(code)


class NetCluster(Cluster):
    """Nodes n1.. on hosts of their own. `cut` and `heal` work on whole links or one direction of them."""

    def __init__(self, nodes=3, conf=""):
        super().__init__(nodes)
        self.conf = conf
        self.root = os.path.join(build, "net-cluster")
        self.processes = {}

    def host(self, node):
        return f"10.77.0.{node[1:]}"

    def names(self):
        return [f"n{i}" for i in range(1, self.nodes + 1)]

    def configure(self, node):
        lines = [f"nodename = {node}@localhost", f"warren.data_dir = {self.root}/{node}", f"listeners.tcp.default = {self.host(node)}:5672",
                 f"warren.cluster.listener = {self.host(node)}:25672", "warren.cluster_secret = net", "default_queue_type = quorum", "loopback_users = none"]
        for n in self.names():
            lines += [f"cluster_formation.classic_config.nodes.{n[1:]} = {n}@localhost", f"warren.peer_address.{n}@localhost = {self.host(n)}:25672"]
        with open(f"{self.root}/{node}.conf", "w") as f:
            f.write("\n".join(lines) + "\n" + self.conf)

    def start(self, node):
        log = open(f"{self.root}/{node}.log", "ab")
        self.processes[node] = subprocess.Popen(["ip", "netns", "exec", f"{PREFIX}{node}", f"{build}/warren", "--config", f"{self.root}/{node}.conf"],
                                                stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def do(self, what, *args, check=True, timeout=60, env=None):
        node = args[0] if args else None
        if what == "start": return self.start(node)
        if what == "kill":
            p = self.processes.pop(node, None)
            if p: p.kill(); p.wait()
            return None
        if what == "await": return self.wait_up(node)
        if what == "logs":
            with open(f"{self.root}/{node}.log") as f: return subprocess.CompletedProcess([], 0, f.read(), "")
        if what == "ctl":
            p = subprocess.run([f"{build}/warrenctl", "--socket", f"{self.root}/{node}/control.sock", *map(str, args[1:])], capture_output=True, text=True, timeout=timeout)
            if check and p.returncode: raise RuntimeError(f"{args}: exit {p.returncode}: {p.stderr.strip()}")
            return p
        if what == "down": return None
        raise ValueError(what)

    def wait_up(self, node, timeout=30):
        end = time.monotonic() + timeout
        while subprocess.run([f"{build}/warrenctl", "--socket", f"{self.root}/{node}/control.sock", "-q", "await_startup", "--timeout", "5"], capture_output=True).returncode:
            if time.monotonic() > end: raise RuntimeError(f"{node} did not come up: " + self.do("logs", node).stdout[-500:])
            time.sleep(0.05)

    def __enter__(self):
        shutil.rmtree(self.root, ignore_errors=True)
        os.makedirs(self.root)
        for n in self.names(): self.configure(n); self.start(n)
        for n in self.names():
            self.wait_up(n)
            self.ctl(n, "-q", "await_online_nodes", str(self.nodes), "--timeout", "30")
        return self

    def __exit__(self, kind, value, tb):
        super().__exit__(kind, value, tb)
        for p in self.processes.values(): p.kill(); p.wait()
        shutil.rmtree(self.root, ignore_errors=True)

    def pid(self, node):
        # "ip netns exec" replaces itself by the server.
        return self.processes[node].pid

    def parameters(self, node, **more):
        return pika.ConnectionParameters(self.host(node), 5672, credentials=pika.PlainCredentials("guest", "guest"),
                                         **dict(dict(heartbeat=60, blocked_connection_timeout=60), **more))

    def rule(self, action, at, source):
        sh(f"ip netns exec {PREFIX}{at} iptables -w {action} INPUT -s {self.host(source)} -j DROP")

    def cut(self, a, b, one_way=False):
        """Nothing from a reaches b; nor the other way unless one_way."""
        self.rule("-A", b, a)
        if not one_way: self.rule("-A", a, b)

    def heal(self):
        for n in self.names(): sh(f"ip netns exec {PREFIX}{n} iptables -w -F INPUT")

    def isolate(self, node):
        for n in self.names():
            if n != node: self.cut(node, n)
