#!/usr/bin/python3
"""Members of quorum queues on five nodes (operator-plane §1.5; CL-05, CL-29): queues grow and shrink under confirmed load without an
error at the clients, whatever node dies in the middle, and every queue ends with exactly the members that were asked for.

QUEUES=n grows and shrinks so many at a time (100). Texts and exit codes are RabbitMQ 4.3.6's where it has them.
"""
import os, sys, threading, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from warren import *

tap = Tap()
QUEUES = int(os.environ.get("QUEUES", "100"))
SINGLE = {"x-queue-type": "quorum", "x-quorum-initial-group-size": 1}


def at(*nodes):
    return [f"{n}@localhost" for n in nodes]


def rows(c, node, pattern=""):
    return {q["name"]: q for q in c.json(node, "list_queues", "name", "leader", "members") if pattern in q["name"]}


def votes(c, node, queue):
    """Nodes whose replica votes, by what the leader says of the others too."""
    return sorted(r["Node Name"] for r in c.json(node, "quorum_status", queue) if r["Membership"] == "voter" and r["Raft State"] in ("leader", "follower"))


def settled(c, node, queue, *nodes):
    """The queue has a voting replica on exactly these nodes."""
    return votes(c, node, queue) == sorted(at(*nodes)) == sorted(rows(c, node)[queue]["members"])


class Declared(Publisher):
    """Publishes once the queue is known where its connection is served: before that a message has nowhere to go."""

    def begin(self):
        self.channel.queue_declare(self.queue, passive=True, callback=lambda f: Publisher.begin(self))


class Load:
    """A publisher with confirms and a consumer at nodes of their own."""

    def __init__(self, c, queue, publish_at, consume_at, rate=1000):
        self.c, self.queue = c, queue
        self.consumer, self.publisher = Consumer(c, consume_at, queue), Declared(c, publish_at, queue, rate=rate)
        self.consumer.start()
        self.publisher.start()
        assert self.consumer.ready.wait(10) and self.publisher.ready.wait(10)

    def end(self, gap_s=1.0):
        p, k = self.publisher, self.consumer
        wrong = []
        if not p.drain():
            wrong.append(f"{len(p.by_tag)} publishes were never confirmed")
        if not k.wait_for(p.confirmed):
            wrong.append("not everything confirmed arrived in 30 s")
        wrong += check_deliveries(k.got, p.confirmed, p.next)
        if p.error or k.error: wrong.append(f"a client was disturbed: {p.error} {k.error}")
        if p.nacked: wrong.append(f"{len(p.nacked)} nacks")
        if len(p.confirmed) < 20: wrong.append(f"only {len(p.confirmed)} were confirmed")
        gap = p.longest_gap()
        print(f"# {self.queue}: {len(p.confirmed)} confirmed, longest time without a confirm {gap * 1000:.0f} ms", flush=True)
        if gap > gap_s: wrong.append(f"{gap * 1000:.0f} ms without a confirm")
        p.stop()
        k.stop()
        return wrong


def member(c, verb, node, queue, wrong):
    p = c.ctl("n5", verb, queue, *at(node), check=False)
    if p.returncode:
        wrong.append(f"{verb} {node}: exit {p.returncode}: {p.stderr.strip()}")


def grow_and_shrink(c):
    """1 -> 3 -> 5 -> 3 -> 1; the one that stays is not the one it began with."""
    wrong = []
    c.declare("n1", "steps", SINGLE)
    load = Load(c, "steps", "n4", "n5")
    for step in (("add_member", "n2", "n3"), ("add_member", "n4", "n5"), ("delete_member", "n1", "n2"), ("delete_member", "n3", "n4")):
        for n in step[1:]:
            member(c, step[0], n, "steps", wrong)
        kept = {"n2": ("n1", "n2", "n3"), "n4": ("n1", "n2", "n3", "n4", "n5"), "n1": ("n3", "n4", "n5"), "n3": ("n5",)}[step[1]]
        if not until(lambda: settled(c, "n1", "steps", *kept), 10, 0.05):
            wrong.append(f"after {step}: {rows(c, 'n1')['steps']}, votes {votes(c, 'n1', 'steps')}")
    return wrong + load.end()


def refusals(c):
    wrong = []

    def expect(code, text, *args):
        p = c.ctl("n2", *args, check=False)
        if p.returncode != code or text not in p.stdout + p.stderr:
            wrong.append(f"{' '.join(args)}: exit {p.returncode} {p.stdout!r} {p.stderr!r}, not {code} {text!r}")

    c.declare("n1", "few", SINGLE)
    expect(0, "Adding a member for queue few on node n2@localhost...", "add_member", "few", *at("n2"))
    expect(0, "", "add_member", "few", *at("n2"))  # It has one.
    if c.json("n2", "add_member", "few", *at("n2")) != {"node": "n2@localhost", "result": "ok"}: wrong.append("JSON of add_member")
    expect(65, "queue 'nope' was not found in virtual host '/'", "add_member", "nope", *at("n2"))
    expect(64, "node rabbit@nowhere is not a member of the cluster", "add_member", "few", "rabbit@nowhere")
    expect(64, "voter status 'wrong' is not recognised.", "add_member", "few", *at("n2"), "--membership", "wrong")
    expect(0, "Removing a replica of queue few on node n2@localhost...", "delete_member", "few", *at("n2"))
    expect(0, "", "delete_member", "few", *at("n2"))
    expect(0, "", "delete_member", "few", "rabbit@nowhere")
    expect(69, "last_node", "delete_member", "few", *at("n1"))
    expect(65, "queue 'nope' was not found in virtual host '/'", "delete_member", "nope", *at("n1"))
    expect(64, "strategy 'some' is not recognised.", "grow", *at("n3"), "some")
    expect(0, "vhost\tname\tsize\tresult\n/\tfew\t2\tok\n", "grow", *at("n3"), "all", "--queue-pattern", "^few$")
    expect(0, "", "grow", *at("n3"), "all", "--queue-pattern", "^few$")
    expect(0, '{"vhost":"/","name":"few","size":3,"result":"ok"}', "grow", *at("n4"), "even", "--queue-pattern", "^few$", "--formatter", "json")
    if "few" in c.ctl("n2", "grow", *at("n5"), "even", "--queue-pattern", "few").stdout: wrong.append("three is not even")
    if "few" in c.ctl("n2", "grow", *at("n5"), "all", "--vhost-pattern", "other").stdout: wrong.append("the vhost pattern was not looked at")
    c.ctl("n2", "-q", "add_member", "few", *at("n5"), "--membership", "non_voter")
    if [r["Membership"] for r in c.json("n2", "quorum_status", "few")].count("non_voter") != 1: wrong.append("no non-voter")
    for n in ("n5", "n4", "n3"):
        c.ctl("n2", "-q", "delete_member", "few", *at(n))
    p = c.ctl("n2", "shrink", *at("n1"), check=False)
    if "/\tfew\t1\terror: the last node cannot be removed\n" not in p.stdout: wrong.append(f"shrink to nothing: {p.stdout}")
    c.ctl("n1", "-q", "delete_queue", "few")
    return wrong


def many(c):
    """All queues at once onto new nodes and off the old ones, asked for twice at the same time at two nodes (CL-05)."""
    wrong = []
    conn = c.connect("n1")
    ch = conn.channel()
    for k in range(QUEUES):
        ch.queue_declare(f"many-{k}", durable=True, arguments=SINGLE)
    conn.close()
    load = Load(c, "many-0", "n4", "n2", rate=300)
    at_once = []

    def run(node, *args):
        at_once.append(c.ctl(node, "-q", *args, "--queue-pattern", "^many-", "--errors-only", "--formatter", "json", check=False))

    began = time.monotonic()
    for group in ((("n1", "grow", "n3@localhost", "all"), ("n2", "grow", "n3@localhost", "all"), ("n3", "grow", "n4@localhost", "all"),
                   ("n4", "grow", "n5@localhost", "all")), (("n1", "shrink", "n1@localhost"), ("n5", "shrink", "n1@localhost"))):
        threads = [threading.Thread(target=run, args=a) for a in group]
        for t in threads: t.start()
        for t in threads: t.join()
        for p in at_once:
            if p.returncode or json.loads(p.stdout): wrong.append(f"{p.args[1:]}: exit {p.returncode} {p.stdout} {p.stderr}")
        del at_once[:]
    took = time.monotonic() - began
    bad = {n: q["members"] for n, q in rows(c, "n1", "many-").items() if sorted(q["members"]) != at("n3", "n4", "n5")}
    if bad: wrong.append(f"wrong members: {bad}")
    if not until(lambda: votes(c, "n2", "many-7") == at("n3", "n4", "n5"), 10, 0.1): wrong.append(f"{votes(c, 'n2', 'many-7')} vote")
    print(f"# {QUEUES} queues from one member to three others, every command twice: {took:.1f} s", flush=True)
    return wrong + load.end()


def spread(c):
    wrong = []
    before = {n: [q["leader"] for q in rows(c, "n1", "many-").values()].count(n) for n in at("n3", "n4", "n5")}
    value = c.json("n2", "rebalance", "quorum", "--queue-pattern", "^many-")["value"]
    leads = {v["Node name"]: v["Number of quorum queues"] for v in value}
    print(f"# leads before {before}, after {leads}", flush=True)
    if sum(leads.values()) != QUEUES or max(leads.values()) - min(leads.values()) > 1: wrong.append(f"not even: {leads}")
    again = c.json("n2", "rebalance", "all", "--queue-pattern", "^many-")["value"]
    if again != value: wrong.append(f"another run moved something: {value} {again}")
    return wrong


def killed_in_the_middle(c):
    """A node dies while it is added to many queues, then the node that leads them while they shrink."""
    wrong = []
    load = Load(c, "many-1", "n1", "n5", rate=300)
    result = []
    t = threading.Thread(target=lambda: result.append(c.ctl("n1", "-q", "grow", *at("n2"), "all", "--queue-pattern", "^many-", "--formatter", "json", check=False)))
    t.start()
    c.do("kill", "n2")
    t.join()
    # Where the verb was late the node was gone already, and it says so.
    said = [] if result[0].returncode == 64 and "is not running" in result[0].stdout + result[0].stderr else json.loads(result[0].stdout)
    done = {r["name"] for r in said if r["result"] == "ok"}
    print(f"# {len(done)} of {QUEUES} were told ok before or after the kill", flush=True)
    # What was told ok stays; what was told an error is taken back, or finished, once the node is there again.
    c.do("start", "n2"); c.do("await", "n2")
    second = c.ctl("n1", "-q", "grow", *at("n2"), "all", "--queue-pattern", "^many-", "--formatter", "json")
    if any(r["result"] != "ok" for r in json.loads(second.stdout)): wrong.append(f"the second grow: {second.stdout}")
    if not until(lambda: all(sorted(q["members"]) == at("n2", "n3", "n4", "n5") for q in rows(c, "n1", "many-").values()), 15, 0.1):
        wrong.append(f"{[q for q in rows(c, 'n1', 'many-').values() if len(q['members']) != 4][:3]}")
    wrong += load.end(2.0)
    load = Load(c, "many-2", "n1", "n5", rate=300)
    c.lead("many-2", "n3")
    result.clear()
    t = threading.Thread(target=lambda: result.append(c.ctl("n1", "-q", "shrink", *at("n2"), "--formatter", "json")))
    t.start()
    c.do("kill", "n3")
    t.join()
    c.do("start", "n3"); c.do("await", "n3")
    c.ctl("n1", "-q", "shrink", *at("n2"))
    if not until(lambda: all(sorted(q["members"]) == at("n3", "n4", "n5") for q in rows(c, "n1", "many-").values()), 15, 0.1):
        wrong.append(f"{[q for q in rows(c, 'n1', 'many-').values() if len(q['members']) != 3][:3]}")
    return wrong + load.end(2.0)


def off_a_node_that_is_down(c):
    wrong = []
    load = Load(c, "many-3", "n1", "n4", rate=300)
    c.do("kill", "n5")
    p = c.json("n1", "shrink", "n5@localhost")
    bad = [r for r in p if r["name"].startswith("many-") and (r["result"], r["size"]) != ("ok", 2)]
    if bad: wrong.append(f"{bad[:3]}")
    p = c.ctl("n1", "delete_member", "many-3", *at("n3"), check=False)
    if p.returncode: wrong.append(f"one of two that are up may leave: {p.stderr}")
    c.do("start", "n5"); c.do("await", "n5")
    if not until(lambda: len([l for l in c.do("logs", "n5").stdout.splitlines() if "left this node" in l]) >= QUEUES, 5, 0.2):
        wrong.append("the node that was away kept the data of what it left")
    p = c.ctl("n1", "add_member", "many-3", *at("n5"), check=False)
    if p.returncode: wrong.append(f"it may come back: {p.stderr}")
    if not until(lambda: settled(c, "n1", "many-3", "n4", "n5"), 10, 0.1): wrong.append(f"{rows(c, 'n1')['many-3']}")
    return wrong + load.end(2.0)


def placed(c):
    """Members where the fewest are, leads where they were asked for."""
    wrong = []
    conn = c.connect("n2")
    ch = conn.channel()
    for k in range(30):
        ch.queue_declare(f"balanced-{k}", durable=True, arguments=dict(QUORUM, **{"x-quorum-initial-group-size": 5, "x-queue-leader-locator": "balanced"}))
        ch.queue_declare(f"local-{k}", durable=True, arguments=QUORUM)
    conn.close()
    names = at("n1", "n2", "n3", "n4", "n5")
    balanced, local = rows(c, "n1", "balanced-").values(), rows(c, "n1", "local-").values()
    leads = {n: [q["leader"] for q in balanced].count(n) for n in names}
    held = {n: sum(n in q["members"] for q in local) for n in names}
    print(f"# 30 balanced leads {leads}; 30 queues of three declared at n2 have members {held}", flush=True)
    if sum(leads.values()) != 30 or leads["n2@localhost"] > 10: wrong.append(f"leads are not balanced: {leads}")
    if {q["leader"] for q in local} != {"n2@localhost"}: wrong.append("not all are led where they were declared")
    if held["n2@localhost"] != 30 or any(len(q["members"]) != 3 for q in local): wrong.append(f"{held}")
    conn = c.connect("n1")
    ch = conn.channel()
    for k in range(30):
        ch.queue_delete(f"balanced-{k}"); ch.queue_delete(f"local-{k}")
    conn.close()
    return wrong


def forgotten(c):
    """CL-05: a node is forgotten, another grown onto, in parallel, and each said twice; a queue ends with exactly what is wanted."""
    wrong = []
    conn = c.connect("n1")
    ch = conn.channel()
    for queue in rows(c, "n1"):
        ch.queue_delete(queue)
    for k in range(40):
        ch.queue_declare(f"wanted-{k}", durable=True, arguments={"x-queue-type": "quorum", "x-quorum-initial-group-size": 2})
    conn.close()
    for n in ("n2", "n3", "n4", "n5"):  # Members n1, n5 and nobody else.
        c.ctl("n1", "-q", "grow" if n == "n5" else "shrink", *at(n), *(["all", "--queue-pattern", "^wanted-"] if n == "n5" else []), check=False)
    c.ctl("n1", "-q", "grow", *at("n2"), "all", "--queue-pattern", "^wanted-", "--membership", "voter")
    if {tuple(sorted(q["members"])) for q in rows(c, "n1", "wanted-").values()} != {tuple(at("n1", "n2", "n5"))}:
        return [f"to begin with: {rows(c, 'n1', 'wanted-')}"]
    load = Load(c, "wanted-1", "n2", "n3", rate=300)
    c.do("kill", "n5")
    said = []

    def run(node, *args):
        said.append(c.ctl(node, "-q", *args, check=False))

    threads = [threading.Thread(target=run, args=a) for a in (("n1", "forget_cluster_node", *at("n5")), ("n2", "forget_cluster_node", *at("n5")),
               ("n3", "grow", *at("n3"), "all", "--queue-pattern", "^wanted-"), ("n1", "grow", *at("n3"), "all", "--queue-pattern", "^wanted-"))]
    for t in threads: t.start()
    for t in threads: t.join()
    forgets = sorted(p.returncode for p in said if "forget_cluster_node" in p.args)
    if 0 not in forgets: wrong.append(f"forget_cluster_node: {[(p.returncode, p.stderr) for p in said]}")
    if any(p.returncode or "error" in p.stdout for p in said if "grow" in p.args): wrong.append(f"{[p.stdout[:200] for p in said]}")
    # The forgotten one's place is filled: by n3 where that came later, by n4 (the only other node) where n3 had joined before.
    def good():
        found = [sorted(q["members"]) for q in rows(c, "n1", "wanted-").values()]
        return len(found) == 40 and all(set(at("n1", "n2", "n3")) <= set(m) and set(m) <= set(at("n1", "n2", "n3", "n4")) and len(m) == len(set(m)) for m in found)
    if not until(good, 20, 0.1): wrong.append(f"{[q for q in rows(c, 'n1', 'wanted-').values()][:4]}")
    return wrong + load.end(2.0)


def needed(c):
    """A node is not forgotten if only members that do not vote would be the majority without it; whoever is asked, with a replica or none."""
    wrong = []
    conn = c.connect("n1")
    ch = conn.channel()
    for queue in rows(c, "n1"):
        ch.queue_delete(queue)
    ch.queue_declare("kept", durable=True, arguments=dict(SINGLE, **{"x-queue-leader-locator": "client-local"}))
    conn.close()
    c.ctl("n1", "-q", "add_member", "kept", *at("n5"), "--membership", "voter")
    c.ctl("n1", "-q", "add_member", "kept", *at("n3"), "--membership", "non_voter")
    if rows(c, "n1", "kept")["kept"]["members"] != at("n1", "n5", "n3"): wrong.append(f"{rows(c, 'n1', 'kept')}")
    c.do("kill", "n5")
    for n in ("n2", "n1"):
        said = []
        until(lambda: said.append(c.ctl(n, "forget_cluster_node", *at("n5"), check=False)) or "is running" not in said[-1].stderr, 10, 0.1)
        if said[-1].returncode != 69 or "majority" not in said[-1].stderr or "'kept'" not in said[-1].stderr:
            wrong.append(f"{n}: exit {said[-1].returncode}: {said[-1].stderr}")
    c.do("start", "n5"); c.do("await", "n5")
    c.ctl("n1", "-q", "delete_queue", "kept")
    return wrong


def repaired(c):
    """CL-29: queues that were declared while a node was down have all their members soon after it is back, leads spread."""
    wrong = []
    c.do("kill", "n3")
    conn = c.connect("n1")
    ch = conn.channel()
    for k in range(100):
        ch.queue_declare(f"repaired-{k}", durable=True, arguments={"x-queue-type": "quorum", "x-quorum-initial-group-size": 5})
    conn.close()
    c.do("start", "n3"); c.do("await", "n3")
    if not until(lambda: all(len(q["members"]) == 5 for q in rows(c, "n1", "repaired-").values()), 20, 0.2):
        wrong.append("not all have five members")
    if not until(lambda: len(votes(c, "n1", "repaired-5")) == 5, 20, 0.2): wrong.append(f"{votes(c, 'n1', 'repaired-5')} vote")
    c.ctl("n1", "-q", "rebalance", "quorum", "--queue-pattern", "^repaired-")
    leads = {n: [q["leader"] for q in rows(c, "n1", "repaired-").values()].count(n) for n in at("n1", "n2", "n3", "n4", "n5")}
    even = 100 / len(leads)
    print(f"# leads of 100 queues: {leads}", flush=True)
    if any(abs(v - even) > even * 0.2 + 1 for v in leads.values()): wrong.append(f"leads are not spread: {leads}")
    return wrong


with Cluster(5) as c:
    tap.run("a queue goes from 1 to 3 to 5 and back to another 1 under load without an error at the clients", grow_and_shrink, c)
    tap.run("what is refused is refused with RabbitMQ's words and exit codes, what is so already is fine", refusals, c)
    tap.run("many queues change all their members, asked for twice at the same time", many, c)
    tap.run("rebalance spreads the leads evenly and then moves nothing more", spread, c)
    tap.run("nodes that die in the middle of it leave no queue half-way", killed_in_the_middle, c)
    tap.run("a node that is down can be taken out, and comes back with nothing of it", off_a_node_that_is_down, c)
    tap.run("queues are placed where the fewest are, and led where that was asked for", placed, c)
    tap.run("CL-29: queues declared while a node is down have all their members once it is back, with leads spread", repaired, c)
    tap.run("a node is not forgotten that a queue needs, although as many members as are a majority stay: they do not vote", needed, c)
    tap.run("CL-05: forget and grow in parallel, each said twice: every queue ends with what is wanted", forgotten, c)
tap.end()
