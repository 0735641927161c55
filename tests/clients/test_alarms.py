#!/usr/bin/python3
"""Alarms as clients and operators see them (data-plane §1.14, operator-plane §5.9; case AL-04). Wording of verbs as RabbitMQ 4.3.6 prints it."""
import os, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from warren import *

t = Tap()
TINY, HUGE = "0.000001", "1000TB"  # A share of memory that every process exceeds; more room than any disk has.


class Watcher:
    """A connection that publishes with confirms and notes when it is blocked."""

    def __init__(self, c, node, queue):
        self.k = c.connect(node)
        self.queue, self.told, self.confirmed = queue, [], []
        self.k.add_on_connection_blocked_callback(lambda k, f: self.told.append(f.method.reason))
        self.k.add_on_connection_unblocked_callback(lambda k, f: self.told.append("unblocked"))
        self.ch = self.k.channel()
        self.ch._impl.confirm_delivery(self.on_ack, lambda f: None)
        self.k.process_data_events(0.1)

    def on_ack(self, f):
        first = max(self.confirmed, default=0) + 1 if f.method.multiple else f.method.delivery_tag
        self.confirmed += range(first, f.method.delivery_tag + 1)

    def publish(self, body=b"x"):
        self.ch._impl.basic_publish("", self.queue, body)
        self.k.process_data_events(0)

    def wait(self, condition, limit_s=5):
        end = time.monotonic() + limit_s
        while not condition() and time.monotonic() < end:
            self.k.process_data_events(0.02)
        return condition()


def set_memory(c, node, share):
    c.ctl(node, "set_vm_memory_high_watermark", share)


def set_disk(c, node, size):
    c.ctl(node, "set_disk_free_limit", size)


def two_alarms(c):
    """AL-04, and what a client is told."""
    wrong = []
    c.declare("n1", "two")
    w = Watcher(c, "n1", "two")
    w.publish()
    if not w.wait(lambda: len(w.confirmed) == 1): wrong.append("nothing is confirmed before any alarm")
    set_memory(c, "n1", TINY)
    set_disk(c, "n1", HUGE)
    w.k.process_data_events(0.3)
    if w.told: wrong.append(f"told before it publishes: {w.told}")
    w.publish()
    if not w.wait(lambda: w.told): wrong.append("not told that it is blocked")
    state = [q["state"] for q in c.json("n1", "list_connections", "name", "state")]
    if state != ["blocked"]: wrong.append(f"the connection's state is {state}")
    n = len(w.confirmed)
    w.publish()
    set_memory(c, "n1", "0.6")
    w.k.process_data_events(1.2)  # More than a look of the monitor.
    set_memory(c, "n1", TINY)
    set_disk(c, "n1", "50MB")
    w.k.process_data_events(1.2)
    if w.told != ["low on memory & disk"]: wrong.append(f"one alarm is still on, and the client was told {w.told}")
    if len(w.confirmed) > n + 1: wrong.append("what was sent while blocked was taken")
    set_memory(c, "n1", "0.6")
    if not w.wait(lambda: len(w.confirmed) == 3): wrong.append(f"{len(w.confirmed)} of 3 confirmed after both alarms are gone")
    if w.told != ["low on memory & disk", "unblocked"]: wrong.append(f"told {w.told}")
    w.k.close()
    return wrong


def everywhere(c):
    """An alarm on n3 blocks publishers on n1; consumers there go on, on connections that published before it too."""
    wrong = []
    c.declare("n1", "everywhere")
    w = Watcher(c, "n1", "everywhere")
    w.publish(b"p:0:")
    if not w.wait(lambda: len(w.confirmed) == 1): wrong.append("nothing is confirmed before any alarm")
    p = Publisher(c, "n2", "everywhere", start=1, limit=1000)
    p.start()
    if not until(lambda: len(p.confirmed) == 999): wrong.append("not all was confirmed")
    set_disk(c, "n3", HUGE)
    if not until(lambda: c.ctl("n1", "check_alarms", check=False).returncode == 69, 3): wrong.append("n1 knows of no alarm")
    w.publish(b"p:1000:")
    if not w.wait(lambda: w.told == ["low on disk"]): wrong.append(f"n1's client was told {w.told}")
    got = []
    def take(ch, method, properties, body):  # A publisher's connection, too, goes on with its deliveries and acks until it publishes again.
        got.append(body); ch.basic_ack(method.delivery_tag)
    p.call(lambda: (p.channel.basic_qos(prefetch_count=10), p.channel.basic_consume("everywhere", take)))
    if not until(lambda: len(got) == 1000): wrong.append(f"{len(got)} of 1000 consumed during the alarm")
    if not until(lambda: [q["messages"] for q in c.json("n1", "list_queues", "name", "messages") if q["name"] == "everywhere"] == [0]): wrong.append("acks were not taken")
    p.stop()
    if p.error: wrong.append(str(p.error))
    c.do("kill", "n3")  # A node that is gone blocks nobody.
    if not w.wait(lambda: w.told == ["low on disk", "unblocked"], 10): wrong.append(f"after n3 was killed: {w.told}")
    if not w.wait(lambda: len(w.confirmed) == 2): wrong.append("not confirmed after n3 was killed")
    w.k.close()
    c.do("start", "n3"); c.do("await", "n3")
    return wrong


def words(c):
    wrong = []
    def expect(what, got, want):
        if got != want: wrong.append(f"{what}: {got!r}, not {want!r}")
    def run(*args):
        p = c.ctl("n1", *args, check=False)
        return p.returncode, p.stdout
    expect("alarms", run("alarms"), (0, "Asking node n1@localhost to report any known resource alarms ...\nNode n1@localhost reported no alarms, local or clusterwide\n"))
    expect("alarms, JSON", c.json("n1", "alarms"), {"node": "n1@localhost", "result": "ok", "alarms": []})
    expect("check_alarms", run("check_alarms"), (0, "Asking node n1@localhost to report any local resource alarms ...\nNode n1@localhost reported no alarms, local or clusterwide\n"))
    expect("check_alarms, JSON", run("check_alarms", "--formatter", "json"), (0, '{"result":"ok"}\n'))
    expect("set", run("set_disk_free_limit", HUGE), (0, f"Setting disk free limit on n1@localhost to {HUGE} bytes ...\n"))
    expect("set, JSON", c.json("n1", "set_vm_memory_high_watermark", TINY), {"node": "n1@localhost", "result": "ok"})
    lines = ["Free disk space alarm on node n1@localhost", "Memory alarm on node n1@localhost"]
    code, out = run("check_alarms", "-q")
    expect("check_alarms", (code, sorted(out.splitlines())), (69, lines))
    expect("check_alarms -s", run("check_alarms", "-s"), (69, ""))
    code, out = run("check_alarms", "--formatter", "json")
    o = json.loads(out)
    expect("check_alarms, JSON", (code, o["result"], sorted(o["local"]), o["global"], o["message"]), (69, "error", lines, [], "Node n1@localhost reported alarms"))
    code, out = run("alarms", "-q")
    expect("alarms", (code, sorted(out.splitlines())), (0, lines))
    expect("check_local_alarms", run("check_local_alarms", "-q"), (0, "Node n1@localhost reported no local alarms\n"))
    until(lambda: len(c.json("n2", "cluster_status")["alarms"]) == 2)
    objects = [{"node": "n1@localhost", "type": "resource_limit", "resource": r} for r in ("disk", "memory")]
    expect("cluster_status of n2", sorted(c.json("n2", "cluster_status")["alarms"], key=lambda a: a["resource"]), objects)
    o = json.loads(c.ctl("n2", "check_alarms", "--formatter", "json", check=False).stdout)
    expect("n2's local and global alarms", (o["local"], sorted(o["global"])), ([], lines))
    if "Memory alarm on node n1@localhost" not in run("cluster_status")[1]: wrong.append("cluster_status does not show the alarm")
    s = c.json("n1", "status")
    expect("status", sorted(a["resource"] for a in s["alarms"]), ["disk", "memory"])
    expect("status: setting", s["vm_memory_high_watermark_setting"], {"relative": float(TINY)})
    expect("status: limit", s["disk_free_limit"], 1000 * 10**12)
    st = os.statvfs(build)
    if abs(s["disk_free"] - st.f_bavail * st.f_frsize) > 1 << 30: wrong.append(f"disk_free is {s['disk_free']}")
    run("set_vm_memory_high_watermark", "absolute", "2GiB"); run("set_disk_free_limit", "mem_relative", "0.0001")
    s = c.json("n1", "status")
    expect("status: absolute", (s["vm_memory_high_watermark_setting"], s["vm_memory_high_watermark_limit"], s["alarms"]), ({"absolute": 2 << 30}, 2 << 30, []))
    for args, code in ((("set_disk_free_limit",), 64), (("set_disk_free_limit", "abc"), 65), (("set_disk_free_limit", "12XB"), 65), (("set_disk_free_limit", "1.5GB"), 65),
                       (("set_disk_free_limit", "mem_relative"), 64), (("set_disk_free_limit", "mem_relative", "abc"), 65), (("set_disk_free_limit", "1", "2"), 64),
                       (("set_vm_memory_high_watermark",), 64), (("set_vm_memory_high_watermark", "abc"), 65), (("set_vm_memory_high_watermark", "1.1"), 65),
                       (("set_vm_memory_high_watermark", "absolute"), 64), (("set_vm_memory_high_watermark", "absolute", "12XB"), 65)):
        expect(" ".join(args), run(*args)[0], code)
    run("set_vm_memory_high_watermark", "0.6"); run("set_disk_free_limit", "50MB")
    return wrong


with Cluster(3) as c:
    t.run("verbs and status tell of alarms in RabbitMQ's words", words, c)
    t.run("AL-04: with two alarms publishers wait until both are gone", two_alarms, c)
    t.run("an alarm on one node blocks publishers on all; consumers go on; a node that is gone blocks nobody", everywhere, c)
t.end()
