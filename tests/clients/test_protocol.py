#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Every protocol scenario against a three-node cluster, frame by frame as RabbitMQ 4.3 answered them.

The transcripts in expected/ were written by `diff_rabbitmq.py --store` from the real broker. Scenarios leave out what
Warren does otherwise on purpose (node/amqp09/README.md).
"""
import difflib, os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from warren import *
from protocol import EXPECTED, run_all

t = Tap()


def compare(name, lines):
    with open(os.path.join(EXPECTED, name + ".txt")) as f:
        wanted = f.read().splitlines()
    return list(difflib.unified_diff(wanted, lines, "RabbitMQ", "Warren", n=4, lineterm=""))


with Cluster(3) as c:
    for name, lines in run_all(c.port("n1"), lambda *words: c.ctl("n1", "-q", *words)).items():
        t.run(f"answers of RabbitMQ: {name.replace('_', ' ')}", compare, name, lines)
t.end()
