#!/usr/bin/python3
"""A soak: three nodes under steady load, connections that come and go without a word, queues declared and deleted, a backlog
that grows and drains each minute. Memory, descriptors, threads and data must stay flat. Not part of `make test`: `make soak`.

SOAK_S=n seconds (1200; 3600 for a long one). Compares the last quarter with the second (the first is for warming up).
"""
import os, random, statistics, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import netns
from warren import *

SOAK_S = float(os.environ.get("SOAK_S", "1200"))
t = Tap()
why = None if "WARREN_NETNS" in os.environ else netns.can_run()
if why:
    t.skip("soak", why)
    t.end()
netns.enter()
from chaos import ChaosCluster, Ledger

QUEUES = ["many:700:2000:0:200:0", "large:20:1500:10:50:0", "small:200:200:0:300:0", "late:40:3000:0:100:60", "hoard:100:2000:0:500:0"]
NAMES = [q.split(":")[0] for q in QUEUES]
HOARD_S = min(60.0, SOAK_S / 12)  # A cycle: it grows for half of it.
MIB = 1 << 20


def declare(c):
    k = c.connect("n1")
    ch = k.channel()
    for q in NAMES:
        ch.queue_declare(q, durable=True, arguments=dict(QUORUM, **{"x-delivery-limit": -1}))
        ch.queue_bind(q, "amq.fanout", "")
    k.close()
    for i, q in enumerate(NAMES): c.lead(q, c.names()[i % c.nodes])


def coming_and_going(c, number):
    """A queue is declared, used and deleted by a connection of its own, on each node in turn."""
    k = c.connect(c.names()[number % c.nodes])
    ch = k.channel()
    ch.confirm_delivery()
    name = f"passing-{number}"
    ch.queue_declare(name, durable=True, arguments=QUORUM)
    for i in range(10): ch.basic_publish("", name, b"x" * 100)
    if ch.basic_get(name, auto_ack=True)[0] is None: raise RuntimeError(f"{name} is empty")
    ch.queue_delete(name)
    k.close()


def look(c):
    row = {}
    for n in c.names():
        data = sum(os.stat(os.path.join(d, f)).st_blocks * 512 for d, _, fs in os.walk(f"{c.root}/{n}") for f in fs if os.path.exists(os.path.join(d, f)))
        row[n] = {"memory": c.memory(n) / MIB, "descriptors": c.descriptors(n), "threads": len(os.listdir(f"/proc/{c.pid(n)}/task")), "data": data / MIB}
    return row


def quarter(rows, begun, number):
    return [r for at, r in rows if number * SOAK_S / 4 <= at - begun < (number + 1) * SOAK_S / 4]


def growth(c, rows, begun):
    wrong = []
    for n in c.names():
        for what, allowed in (("memory", lambda v: max(4, 0.05 * v)), ("descriptors", lambda v: 4), ("threads", lambda v: 0), ("data", lambda v: max(64, 0.2 * v))):
            before, after = ([r[n][what] for r in quarter(rows, begun, q)] for q in (1, 3))
            b, a = statistics.median(before), statistics.median(after)
            print(f"# {n} {what}: median {b:.1f} in the second quarter, {a:.1f} in the last; most {max(before):.1f}, {max(after):.1f}")
            if a - b > allowed(b): wrong.append(f"{n}: {what} grew from {b:.1f} to {a:.1f}")
            if what != "data" and max(after) - max(before) > 2 * allowed(b): wrong.append(f"{n}: the most of {what} grew from {max(before):.1f} to {max(after):.1f}")
    return wrong


with ChaosCluster(3, power=False, name="soak") as c:
    declare(c)
    ledger = Ledger([(n, c.host(n)) for n in c.names()], QUEUES, 1)
    begun = time.monotonic()
    rows, wrong, number, said, paused = [], [], 0, 0.0, False
    try:
        while (now := time.monotonic()) - begun < SOAK_S and not ledger.violations and not c.ended:
            coming_and_going(c, number)
            number += 1
            is_growing = (now - begun) % HOARD_S < HOARD_S / 2
            if is_growing != paused: ledger.send("pause hoard" if is_growing else "resume hoard")
            paused = is_growing
            if number % 10 == 0: ledger.send("kick 3")
            rows.append((now, look(c)))
            c.look()
            if now - said > 60:
                said = now
                s = ledger.status()
                print(f"# {now - begun:.0f} s: " + ", ".join(f"{n} " + " ".join(f"{k} {v:.0f}" for k, v in rows[-1][1][n].items()) for n in c.names())
                      + f"; published {s['published']}, consumed {s['consumed']}", flush=True)
            time.sleep(max(0.0, 1.0 - (time.monotonic() - now)))
        report = ledger.stop(60)
    except Exception:  # noqa: BLE001
        wrong, report = traceback.format_exc().splitlines(), None
    finally:
        ledger.kill()
    t.ok(not wrong and not c.ended, "the run came to its end", *wrong, *c.ended)
    t.ok(report and report["confirmed"] > 0 and not ledger.violations and report["lost"] == report["missing"] == 0, "nothing is lost, invented, doubled or out of order",
         report, *[v["text"] for v in ledger.violations])
    t.ok(not ledger.errors, "no client sees an error", *ledger.errors[:20])
    print(f"# {report}")
    grown = growth(c, rows, begun) if report else ["not measured"]
    t.ok(not grown, "memory, descriptors, threads and data stay flat", *grown)
t.end()
