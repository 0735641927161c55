#!/usr/bin/python3
"""A large backlog that one consumer without a prefetch limit holds unacknowledged (AL-13): bodies stay on disk, so memory is far
from the size of the backlog; when the consumer is gone all of it comes again, flagged and in order, and can be settled.

UNACKED=n is the number of messages of 1 kB (100,000; the case asks for 1,000,000). The queue is led by n2, published to at n1, consumed at n3.
"""
import os, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from load import *
from warren import *

UNACKED = int(os.environ.get("UNACKED", "100000"))
MEMORY = 300 * MB if UNACKED >= 1000000 else 96 * MB  # Above idle; 100,000 of 1 kB held twice would be 200 MB.
t = Tap()


def row(c):
    return next((q for q in c.json("n1", "list_queues", "name", "messages_ready", "messages_unacknowledged") if q["name"] == "unacked"), None)


def is_at(c, ready, unacked):
    return until(lambda: row(c) == {"name": "unacked", "messages_ready": ready, "messages_unacknowledged": unacked}, 120, 0.1)


def held(c, idle):
    with Watch(c, idle) as w:
        begun = time.monotonic()
        holder = Load(queue="unacked", no_declare=True, consume_port=c.port("n3"), producers=0, prefetch=0, hold=UNACKED, seconds=600, drain=0)
        r = Load(queue="unacked", no_declare=True, publish_port=c.port("n1"), consumers=0, size=1000, count=UNACKED, seconds=300, drain=30).result()
        all_there = is_at(c, 0, UNACKED)
        took = time.monotonic() - begun
        holder.process.kill()
        holder.process.wait()
        begun = time.monotonic()
        all_back = is_at(c, UNACKED, 0)
        back = time.monotonic() - begun
    print(f"# {UNACKED} unacknowledged after {took:.1f} s, ready again {back:.1f} s after their consumer was killed", flush=True)
    return wrong_with(r) + w.wrong(MEMORY) + ([] if all_there and all_back else [f"unacknowledged {all_there}, ready again {all_back}: {row(c)}"])


def come_again(c, idle):
    with Watch(c, idle) as w:
        load = Load(queue="unacked", no_declare=True, consume_port=c.port("n3"), producers=0, prefetch=0, seconds=300, drain=0)
        is_empty = is_at(c, 0, 0)
        r = load.stop()
    wrong = wrong_with(r) + w.wrong(MEMORY) + ([] if is_empty else [f"{row(c)} is left"])
    if (r["consumed"], r["redelivered"]) != (UNACKED, UNACKED): wrong.append(f"{r['consumed']} came, {r['redelivered']} of them flagged")
    return wrong


with Cluster(3) as c:
    c.declare("n1", "unacked")
    c.lead("unacked", "n2")
    idle = idle_of(c)
    t.run(f"AL-13: {UNACKED} messages that one consumer holds cost no node more than {MEMORY // MB} MB, and are ready again when it is gone", held, c, idle)
    t.run("they come again, flagged and in order, and are settled within the same memory", come_again, c, idle)
t.end()
