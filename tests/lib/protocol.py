# SPDX-License-Identifier: Apache-2.0
"""Runs protocol scenarios against a port, several at a time: most of their time is waiting."""
import os, random, traceback
from concurrent.futures import ThreadPoolExecutor
from amqp_raw import Broker
from protocol_scenarios import SCENARIOS

EXPECTED = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "clients", "expected")
AT_ONCE = 8


def run(fn, port, ctl):
    b = Broker(port, "".join(random.choice("bcdfghjkmnpqrtvwxz") for _ in range(6)), ctl)
    try:
        fn(b)
    except Exception:
        b.lines += ["broken off:", *traceback.format_exc().splitlines()]
    finally:
        b.end()
    return [l for line in b.lines for l in line.split("\n") if l]


def run_all(port, ctl, only=""):
    """`ctl(verb, ...)` runs the broker's command-line tool. Name of each scenario to its transcript's lines."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = {fn.__name__: pool.submit(run, fn, port, ctl) for fn in SCENARIOS if only in fn.__name__}
        return {name: r.result() for name, r in runs.items()}
