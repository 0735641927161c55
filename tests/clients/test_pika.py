#!/usr/bin/python3
"""pika against a three-node cluster: every operation of the first version, and RabbitMQ's answers to mistakes."""
import os, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from warren import *
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker, ProbableAccessDeniedError, UnroutableError, AMQPConnectionError

t = Tap()


def expect_channel_error(c, node, code, text, fn):
    connection = c.connect(node)
    try:
        fn(connection.channel())
        return [f"no error; expected {code}"]
    except ChannelClosedByBroker as e:
        wrong = [] if e.reply_code == code and text in e.reply_text else [f"got {e.reply_code} {e.reply_text}"]
    except ConnectionClosedByBroker as e:
        return [f"the connection was closed: {e.reply_code} {e.reply_text}"]
    # A channel error leaves the connection usable.
    connection.channel().queue_declare("still-here", durable=True, arguments=QUORUM)
    connection.close()
    return wrong


def expect_connection_error(c, node, code, text, fn):
    connection = c.connect(node)
    try:
        fn(connection.channel())
        return [f"no error; expected {code}"]
    except ConnectionClosedByBroker as e:
        return [] if e.reply_code == code and text in e.reply_text else [f"got {e.reply_code} {e.reply_text}"]


def round_trip(c):
    wrong = []
    for publish_at in ("n1", "n2", "n3"):
        for consume_at in ("n1", "n2", "n3"):
            queue = f"trip-{publish_at}-{consume_at}"
            p, s = c.connect(publish_at), c.connect(consume_at)
            ch = p.channel(); ch.confirm_delivery()
            ch.queue_declare(queue, durable=True, arguments=QUORUM)
            sent = [os.urandom(n) for n in (0, 1, 100, 4096, 131064, 131065, 300000)]
            for body in sent: ch.basic_publish("", queue, body, pika.BasicProperties(content_type="x/y", headers={"a": 1, "b": "two", "c": [1, 2]}, message_id="m", delivery_mode=2))
            sc = s.channel()
            got = []
            for method, properties, body in sc.consume(queue, inactivity_timeout=10):
                if method is None: break
                got.append(body); sc.basic_ack(method.delivery_tag)
                if properties.headers != {"a": 1, "b": "two", "c": [1, 2]} or properties.content_type != "x/y": wrong.append(f"properties changed: {properties}")
                if method.routing_key != queue or method.exchange != "" or method.redelivered: wrong.append(f"delivered as {method}")
                if len(got) == len(sent): break
            sc.cancel()
            if got != sent: wrong.append(f"{queue}: {len(got)} of {len(sent)} bodies, equal: {[a == b for a, b in zip(got, sent)]}")
            p.close(); s.close()
    return wrong


def exchanges(c):
    """direct, fanout, topic, headers, exchange to exchange, alternate exchange."""
    k = c.connect("n1"); ch = k.channel(); ch.confirm_delivery()
    for q in "abcd": ch.queue_declare(f"x-{q}", durable=True, arguments=QUORUM)
    for kind in ("direct", "fanout", "topic", "headers"): ch.exchange_declare(f"x-{kind}", kind, durable=True)
    ch.exchange_declare("x-alternate", "fanout", durable=True)
    ch.exchange_declare("x-with-alternate", "direct", durable=True, arguments={"alternate-exchange": "x-alternate"})
    ch.queue_bind("x-d", "x-alternate")
    ch.queue_bind("x-a", "x-direct", "k1"); ch.queue_bind("x-b", "x-direct", "k1"); ch.queue_bind("x-b", "x-direct", "k2")
    ch.queue_bind("x-a", "x-fanout"); ch.queue_bind("x-b", "x-fanout")
    ch.queue_bind("x-a", "x-topic", "stock.*.nyse"); ch.queue_bind("x-b", "x-topic", "stock.#"); ch.queue_bind("x-c", "x-topic", "#")
    ch.queue_bind("x-a", "x-headers", arguments={"x-match": "all", "h": 1, "i": "two"}); ch.queue_bind("x-b", "x-headers", arguments={"x-match": "any", "h": 1, "i": "two"})
    ch.exchange_bind("x-fanout", "x-direct", "e2e")
    wrong = []
    def check(where, key, queues, headers=None):
        ch.basic_publish(where, key, b"m", pika.BasicProperties(headers=headers))
        got = ""
        for q in "abcd":
            while True:
                m, _, _ = ch.basic_get(f"x-{q}", auto_ack=True)
                if m is None: break
                got += q
        if got != queues: wrong.append(f"{where} '{key}' {headers}: went to '{got}', expected '{queues}'")
    check("x-direct", "k1", "ab"); check("x-direct", "k2", "b"); check("x-direct", "none", ""); check("x-direct", "e2e", "ab")
    check("x-fanout", "any", "ab")
    check("x-topic", "stock.ibm.nyse", "abc"); check("x-topic", "stock", "bc"); check("x-topic", "bond.ibm.nyse", "c"); check("x-topic", "", "c")
    check("x-headers", "", "ab", {"h": 1, "i": "two"}); check("x-headers", "", "b", {"h": 1}); check("x-headers", "", "", {"h": 2})
    check("x-with-alternate", "nowhere", "d")
    ch.queue_unbind("x-b", "x-direct", "k1"); check("x-direct", "k1", "a")
    ch.exchange_delete("x-fanout"); check("x-direct", "e2e", "")
    k.close()
    return wrong


def mandatory(c):
    k = c.connect("n2"); ch = k.channel(); ch.confirm_delivery()
    try:
        ch.basic_publish("", "no-such-queue", b"m", mandatory=True)
        return ["an unroutable mandatory message was not returned"]
    except UnroutableError as e:
        r = e.messages[0]
        wrong = [] if (r.method.reply_code, r.method.reply_text, r.body) == (312, "NO_ROUTE", b"m") else [f"returned as {r.method}"]
    ch.basic_publish("", "no-such-queue", b"m")  # Without mandatory: dropped and confirmed.
    k.close()
    return wrong


def settling(c):
    """Requeue order, redelivered, delivery counts (data-plane 1.13, 4.4)."""
    k = c.connect("n1"); ch = k.channel(); ch.confirm_delivery()
    ch.queue_declare("settle", durable=True, arguments=QUORUM)
    for i in range(3): ch.basic_publish("", "settle", str(i).encode())
    wrong = []
    def get(): return ch.basic_get("settle")
    m0, p0, b0 = get()
    if b0 != b"0" or m0.redelivered or (p0.headers or {}).get("x-delivery-count") or m0.message_count != 2: wrong.append(f"first get: {m0} {p0} {b0}")
    ch.basic_nack(m0.delivery_tag, requeue=True)
    def again():
        m, p, b = get()
        return (m, p, b) if m else None
    m, p, b = until(again)
    if b != b"0" or not m.redelivered: wrong.append(f"after nack: {b} redelivered={m.redelivered}")
    if (p.headers or {}).get("x-delivery-count"): wrong.append(f"nack counted as a failure: {p.headers}")
    if (p.headers or {}).get("x-acquired-count") != 1: wrong.append(f"x-acquired-count after one nack: {p.headers}")
    ch.basic_reject(m.delivery_tag, requeue=True)
    m, p, b = until(again)
    if b != b"0" or (p.headers or {}).get("x-delivery-count") != 1: wrong.append(f"after reject: {b} {p.headers}")
    ch.basic_reject(m.delivery_tag, requeue=False)
    m, p, b = until(again)
    if b != b"1": wrong.append(f"a rejected message without requeue came back, or order is lost: {b}")
    m2, p2, b2 = until(again)
    k.close()  # Holding 1 and 2: both come back, flagged, with a failure.
    k = c.connect("n3"); ch = k.channel()
    back = []
    def take():
        m, p, b = ch.basic_get("settle", auto_ack=True)
        if m: back.append((b, m.redelivered, (p.headers or {}).get("x-delivery-count")))
        return len(back) == 2
    until(take)
    if back != [(b"1", True, 1), (b"2", True, 1)]: wrong.append(f"after the channel died: {back}")
    m, _, _ = ch.basic_get("settle")
    if m: wrong.append("there is a message too many")
    k.close()
    return wrong


def prefetch(c):
    k = c.connect("n2"); ch = k.channel(); ch.confirm_delivery()
    ch.queue_declare("prefetch", durable=True, arguments=QUORUM)
    for i in range(20): ch.basic_publish("", "prefetch", str(i).encode())
    ch.basic_qos(prefetch_count=5)
    got = []
    ch.basic_consume("prefetch", lambda ch, m, p, b: got.append((m.delivery_tag, b)))
    end = time.monotonic() + 1
    while time.monotonic() < end: k.process_data_events(0.05)
    wrong = [] if len(got) == 5 else [f"{len(got)} deliveries with prefetch 5"]
    ch.basic_ack(got[2][0], multiple=True)
    end = time.monotonic() + 1
    while time.monotonic() < end: k.process_data_events(0.05)
    if len(got) != 8: wrong.append(f"{len(got)} deliveries after 3 acks")
    if [b for _, b in got] != [str(i).encode() for i in range(8)]: wrong.append(f"order: {got}")
    k.close()
    return wrong


def cancel_notify(c):
    k = c.connect("n1"); ch = k.channel()
    ch.queue_declare("doomed", durable=True, arguments=QUORUM)
    seen = []
    ch.add_on_cancel_callback(lambda f: seen.append(f))
    ch.basic_consume("doomed", lambda *a: None)
    o = c.connect("n3"); o.channel().queue_delete("doomed"); o.close()
    until(lambda: (k.process_data_events(0.05), seen)[1], 5)
    k.close()
    return [] if seen else ["no basic.cancel after the queue was deleted"]


def purge_and_counts(c):
    k = c.connect("n3"); ch = k.channel(); ch.confirm_delivery()
    ch.queue_declare("counted", durable=True, arguments=QUORUM)
    for i in range(7): ch.basic_publish("", "counted", b"m")
    wrong = []
    n = ch.queue_declare("counted", passive=True).method
    if (n.message_count, n.consumer_count) != (7, 0): wrong.append(f"passive declare: {n}")
    n = ch.queue_purge("counted").method.message_count
    if n != 7: wrong.append(f"purged {n}")
    if ch.queue_declare("counted", passive=True).method.message_count != 0: wrong.append("not empty after the purge")
    ch.basic_publish("", "counted", b"m")
    if ch.queue_delete("counted").method.message_count != 1: wrong.append("delete-ok count")
    k.close()
    return wrong


with Cluster(3) as c:
    t.run("messages of all sizes go through any pair of nodes unchanged and in order", round_trip, c)
    t.run("direct, fanout, topic, headers, exchange and alternate bindings route as RabbitMQ does", exchanges, c)
    t.run("an unroutable mandatory message is returned, an ordinary one is dropped and confirmed", mandatory, c)
    t.run("requeue keeps order, flags and counts as RabbitMQ does", settling, c)
    t.run("prefetch bounds what is out unacknowledged", prefetch, c)
    t.run("a consumer of a deleted queue is told", cancel_notify, c)
    t.run("counts in declare-ok, purge-ok and delete-ok", purge_and_counts, c)
    t.run("404 for a queue that is not there", expect_channel_error, c, "n1", 404, "NOT_FOUND - no queue 'nope' in vhost '/'", lambda ch: ch.queue_declare("nope", passive=True))
    t.run("404 for consuming from nowhere", expect_channel_error, c, "n2", 404, "no queue 'nope' in vhost '/'", lambda ch: ch.basic_consume("nope", print))
    t.run("404 for an exchange that is not there", expect_channel_error, c, "n3", 404, "no exchange 'nope' in vhost '/'", lambda ch: (ch.basic_publish("nope", "k", b"m"), ch.queue_declare("still-here", passive=True)))
    t.run("406 for another argument", expect_channel_error, c, "n1", 406, "inequivalent arg 'x-max-length'", lambda ch: (ch.queue_declare("args", durable=True, arguments=QUORUM), ch.queue_declare("args", durable=True, arguments=dict(QUORUM, **{"x-max-length": 5}))))
    t.run("406 for an unknown delivery tag", expect_channel_error, c, "n1", 406, "unknown delivery tag 7", lambda ch: (ch.basic_ack(7), ch.queue_declare("still-here", passive=True)))
    t.run("403 for a reserved name", expect_channel_error, c, "n1", 403, "queue name 'amq.mine' contains reserved prefix 'amq.*'", lambda ch: ch.queue_declare("amq.mine", durable=True, arguments=QUORUM))
    t.run("406 for an unknown exchange type", expect_channel_error, c, "n1", 406, "unknown exchange type 'x-odd'", lambda ch: ch.exchange_declare("odd", "x-odd"))
    t.run("540 names what is missing: classic queues", expect_connection_error, c, "n1", 540, "classic", lambda ch: ch.queue_declare("old", durable=True, arguments={"x-queue-type": "classic"}))
    t.run("540 names what is missing: exclusive queues", expect_connection_error, c, "n2", 540, "exclusive", lambda ch: ch.queue_declare("mine", exclusive=True))
    t.run("530 for a consumer tag used twice", expect_connection_error, c, "n1", 530, "attempt to reuse consumer tag 'one'", lambda ch: (ch.queue_declare("tags", durable=True, arguments=QUORUM), ch._impl.basic_consume("tags", print, consumer_tag="one"), ch._impl.consumer_tags.clear() if hasattr(ch._impl, "consumer_tags") else None, ch._impl._consumers.clear(), ch._impl.basic_consume("tags", print, consumer_tag="one"), ch.queue_declare("tags", passive=True)))
    def bad_login():
        try:
            pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", 5672, credentials=pika.PlainCredentials("guest", "wrong")))
            return ["a wrong password was accepted"]
        except AMQPConnectionError as e:
            return [] if "ACCESS_REFUSED" in repr(e) or "403" in repr(e) or isinstance(e, ProbableAccessDeniedError) else [repr(e)]
    t.run("a wrong password is refused with 403", bad_login)
t.end()
