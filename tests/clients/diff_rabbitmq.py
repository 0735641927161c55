#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the protocol scenarios against Warren and against a real RabbitMQ and prints what differs.

  diff_rabbitmq.py [--warren PORT] [--warren-ctl COMMAND] [--peer PORT] [--peer-ctl COMMAND] [--store] [--only WORD] [--show]

Both must be running: deploy/local-cluster up, and the peer on 5701. --store writes the peer's transcripts to
tests/clients/expected/, which test_protocol.py compares Warren with. It is not part of `make test`: that has no peer.
"""
import argparse, difflib, os, shlex, subprocess, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from protocol import EXPECTED, run_all

a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
a.add_argument("--warren", type=int, default=5672)
a.add_argument("--peer", type=int, default=5701)
a.add_argument("--warren-ctl", default="deploy/local-cluster ctl n1 -q", help="command before the verb")
a.add_argument("--peer-ctl", default="rabbitmqctl -q")
a.add_argument("--store", action="store_true")
a.add_argument("--only", default="")
a.add_argument("--show", action="store_true", help="print the peer's transcript too")
a.add_argument("--stored", action="store_true", help="compare with what is stored instead of a running peer")
o = a.parse_args()


def stored(name):
    with open(os.path.join(EXPECTED, name + ".txt")) as f:
        return f.read().splitlines()


def ctl(command):
    return lambda *words: subprocess.run([*shlex.split(command), *words], check=True, capture_output=True, stdin=subprocess.DEVNULL)


ours = run_all(o.warren, ctl(o.warren_ctl), o.only) if o.warren else {}
theirs = {n: stored(n) for n in ours} if o.stored else run_all(o.peer, ctl(o.peer_ctl), o.only)
for name, lines in theirs.items():
    if o.store:
        os.makedirs(EXPECTED, exist_ok=True)
        with open(os.path.join(EXPECTED, name + ".txt"), "w") as f:
            f.write("\n".join(lines) + "\n")
    if o.show: print(f"==== {name}", *lines, sep="\n")
    diff = list(difflib.unified_diff(lines, ours.get(name, []), "RabbitMQ", "Warren", n=4, lineterm="")) if o.warren else []
    if diff: print(f"==== {name}", *diff, sep="\n")
print("differ:", [n for n in theirs if n in ours and theirs[n] != ours[n]])
