# SPDX-License-Identifier: Apache-2.0
"""What a client can do to a broker with AMQP 0-9-1 and quorum queues: scenarios for tests/clients/test_protocol.py
(against stored transcripts of RabbitMQ 4.3) and diff_rabbitmq.py (against the real one). Each takes an amqp_raw.Broker.
"""
import re, struct, time
from amqp_raw import BY_NAME, GUEST, HEADER, Coder

SCENARIOS = []
Q = {"x-queue-type": "quorum"}


def scenario(fn):
    SCENARIOS.append(fn)
    return fn


# ---- handshake (data-plane §1.1-§1.3) --------------------------------------------------------------

@scenario
def protocol_headers(b):
    for head in (HEADER, b"AMQP\x01\x01\x00\x09", b"AMQP\x01\x01\x08\x00", b"AMQP\x00\x00\x0a\x01", b"AMQP\x00\x00\x09\x02", b"AMQP\x00\x00\x08\x00",
                 b"AMQP\x00\x01\x00\x00", b"AMQP\x02\x01\x00\x00", b"GET / HT", b"\x16\x03\x01\x02\x00\x01\x00\x01", b"AMQX\x00\x00\x09\x01", b"\0\0\0\0\0\0\0\0"):
        c = b.connect()
        c.raw(head)
        m = c.hush(c.recv)
        b.note("answer: " + ("none" if m is None else m.name if m.name != "header" else "a protocol header"))
        if m and m.name == "header":
            b.lines[-1] = ""
            c2 = b.connect()
            c2.raw(head)
            c2.recv(), c2.recv()
            c2.drop()
        c.drop()


@scenario
def connection_start(b):
    c = b.connect()
    c.hush(lambda: c.push(HEADER))
    m = c.hush(c.recv)
    keys = re.findall(r"(?:^\{|, |\{)([\w.]+)=", c.coder.read_table(m.server_properties))
    b.note(f"{m.version_major}.{m.version_minor} {m.mechanisms} {m.locales} {[k for k in keys if k != 'direct_reply_to']}")
    c.drop()


@scenario
def login(b):
    asks = {"capabilities": {"authentication_failure_close": True}}
    for label, args in (("right", dict()), ("wrong password, asks to be told", dict(client_properties=asks, response=b"\0guest\0wrong")),
                        ("wrong password", dict(response=b"\0guest\0wrong")), ("no such user", dict(client_properties=asks, response=b"\0nobody\0guest")),
                        ("authzid", dict(client_properties=asks, response=b"guest\0guest\0guest")), ("one NUL", dict(client_properties=asks, response=b"\0guest")),
                        ("three NULs", dict(client_properties=asks, response=b"\0guest\0guest\0x")), ("empty", dict(client_properties=asks, response=b"")),
                        ("unknown mechanism", dict(client_properties=asks, mechanism="SCRAM-SHA-1")), ("lower case", dict(client_properties=asks, mechanism="plain")),
                        ("amqplain", dict(mechanism="AMQPLAIN", response=Coder("").table({"LOGIN": "guest", "PASSWORD": "guest"})[4:])),
                        ("amqplain, other order", dict(mechanism="AMQPLAIN", response=Coder("").table({"PASSWORD": ("x", b"guest"), "LOGIN": "guest"})[4:])),
                        ("amqplain, wrong", dict(client_properties=asks, mechanism="AMQPLAIN", response=Coder("").table({"LOGIN": "guest", "PASSWORD": "no"})[4:])),
                        ("amqplain, no login", dict(client_properties=asks, mechanism="AMQPLAIN", response=Coder("").table({"PASSWORD": "no"})[4:])),
                        ("anonymous", dict(mechanism="ANONYMOUS", response=b"whoever")), ("locale is not looked at", dict(locale="xx")),
                        ("client properties are not looked at", dict(client_properties={"capabilities": "no table", "product": 5}))):
        c = b.connect()
        b.note(label)
        m = c.hush(lambda: c.start(**args))
        c.log("< end" if m is None else f"< {m.name}" + (f" {c.coder.show(m.reply_text)} {m.class_id}.{m.method_id}" if m.name == "connection.close" else ""))
        c.hush(c.drop)


@scenario
def tune(b):
    for label, args in (("as offered", (2047, 131072, 60)), ("everything smaller", (1, 8192, 1)), ("no limits", (0, 0, 0)), ("no channel limit", (0, 131072, 0)), ("no frame limit", (2047, 0, 0)),
                        ("frame_max 4096", (2047, 4096, 0)), ("frame_max 8191", (2047, 8191, 0)), ("frame_max 1", (2047, 1, 0)), ("frame_max above", (2047, 131073, 0)), ("channel_max above", (2048, 131072, 0)),
                        ("both wrong", (2048, 131073, 0)), ("heartbeat above", (2047, 131072, 65535))):
        b.note(label)
        c = b.connect()
        c.hush(c.start)
        c.send(0, "connection.tune-ok", channel_max=args[0], frame_max=args[1], heartbeat=args[2])
        c.send(0, "connection.open", virtual_host="/")
        # RabbitMQ drops the socket after 3 s without a word; Warren says why first.
        m = c.hush(c.recv)
        b.note("open" if m and m.name == "connection.open-ok" else "refused")
        c.hush(lambda: c.send(0, "connection.close-ok"))
        c.close()


@scenario
def open_and_close(b):
    def opened(label, vhost, **more):
        b.note(label)
        c = b.connect()
        c.hush(c.start)
        c.send(0, "connection.tune-ok", channel_max=0x7ff, frame_max=131072, heartbeat=0)
        c.send(0, "connection.open", virtual_host=vhost, **more)
        return c, c.recv()
    opened("plain", "/")[0].close()
    opened("insist and capabilities", "/", capabilities="x", insist=True)[0].close()
    for vhost in ("nope", "", "/nope", "a'b", "ä"):
        c, m = opened(f"vhost {vhost}", vhost)
        c.send(0, "connection.close-ok")
        c.recv()
    c, m = opened("close by the client", "/")
    c.call(0, "connection.close", reply_code=320, reply_text="own text", class_id=1, method_id=2)
    c, m = opened("a second open", "/")
    c.call(0, "connection.open", virtual_host="/")
    c, m = opened("tune-ok again", "/")
    c.call(0, "connection.tune-ok", channel_max=1, frame_max=131072, heartbeat=0)
    c, m = opened("close-ok without close", "/")
    c.call(0, "connection.close-ok")
    c, m = opened("channel method on channel 0", "/")
    c.call(0, "channel.open")
    c, m = opened("basic method on channel 0", "/")
    c.call(0, "basic.qos")
    c, m = opened("start-ok again", "/")
    c.call(0, "connection.start-ok", mechanism="PLAIN", response=GUEST, locale="en_US")
    c, m = opened("update-secret", "/")
    c.call(0, "connection.update-secret", new_secret="guest", reason="r")
    c.close()
    c, m = opened("blocked from a client", "/")
    c.call(0, "connection.blocked", reason="x")
    for label, name, args in (("open before start-ok", "connection.open", {}), ("close before start-ok", "connection.close", {"reply_code": 200}), ("tune-ok before start-ok", "connection.tune-ok", {})):
        b.note(label)
        c = b.connect()
        c.hush(lambda: (c.raw(HEADER), c.recv()))
        c.call(0, name, **args)
    b.note("channel.open between tune-ok and open")
    c = b.connect()
    c.hush(c.start)
    c.send(0, "connection.tune-ok", channel_max=2047, frame_max=131072, heartbeat=0)
    c.call(1, "channel.open")


# ---- frames (§1.4) ---------------------------------------------------------------------------------

def broken(b, label, act, reads=2, channels=1, **more):
    b.note(label)
    c = b.login(channels=channels, **more)
    act(c)
    for _ in range(reads):
        m = c.recv()
        if m is None: break
        if m.name == "connection.close": c.send(0, "connection.close-ok")
        if m.name == "channel.close": c.send(m.channel, "channel.close-ok")
    c.hush(c.close)


def method(c, name, **args):
    return c.coder.method(name, args)


@scenario
def frame_errors(b):
    broken(b, "unknown frame type", lambda c: c.raw(c.frame(5, 1, b"abc")))
    broken(b, "unknown frame type on channel 0", lambda c: c.raw(c.frame(9, 0, b"")))
    broken(b, "wrong end", lambda c: c.raw(c.frame(1, 1, b"\0\x14\0\x0a\0", end=0xCD)))
    broken(b, "wrong end of a longer frame", lambda c: c.raw(c.frame(1, 1, bytes(range(40)), end=0)))
    broken(b, "frame too large by its head", lambda c: c.raw(c.frame(1, 1, b"", size=131073)[:7]))
    broken(b, "heartbeat on channel 1", lambda c: c.raw(c.frame(8, 1, b"")))
    broken(b, "heartbeat with content", lambda c: c.raw(c.frame(8, 0, b"x")))
    broken(b, "heartbeat is fine", lambda c: (c.raw(c.frame(8, 0, b"")), c.send(1, "basic.qos")), 1)
    broken(b, "header frame on channel 0", lambda c: c.raw(c.frame(2, 0, struct.pack(">HHQH", 60, 0, 0, 0))))
    broken(b, "body frame without a method", lambda c: c.raw(c.frame(3, 1, b"x")))
    broken(b, "header frame without a method", lambda c: c.raw(c.frame(2, 1, struct.pack(">HHQH", 60, 0, 0, 0))))
    broken(b, "method instead of a header", lambda c: (c.send(1, "basic.publish", routing_key="~"), c.send(1, "basic.qos")))
    broken(b, "body instead of a header", lambda c: (c.send(1, "basic.publish", routing_key="~"), c.raw(c.frame(3, 1, b"x"))))
    broken(b, "method instead of a body", lambda c: (c.send(1, "basic.publish", routing_key="~"), c.content({}, b"", size=5), c.send(1, "basic.qos")))
    broken(b, "header instead of a body", lambda c: (c.send(1, "basic.publish", routing_key="~"), c.content({}, b"", size=5), c.content({}, b"", size=5)))
    broken(b, "content of another class", lambda c: (c.send(1, "basic.publish", routing_key="~"), c.content({}, b"", class_id=50)))
    broken(b, "content of weight 1", lambda c: (c.send(1, "basic.publish", routing_key="~"), c.content({}, b"", weight=1)))
    broken(b, "more body than announced", lambda c: (c.send(1, "basic.publish", routing_key="~"), c.content({}, b"12345", size=3)))
    broken(b, "body above every limit", lambda c: (c.send(1, "basic.publish", routing_key="~"), c.content({}, b"", size=536870913)))
    broken(b, "arguments cut off", lambda c: c.raw(c.frame(1, 1, method(c, "queue.declare", queue="qq")[:8])))
    broken(b, "arguments cut off in a table", lambda c: c.raw(c.frame(1, 1, method(c, "queue.declare", queue="qq", arguments=b"\0\0\0\x09\x01aS\0"))))
    broken(b, "bytes behind the arguments", lambda c: (c.raw(c.frame(1, 1, method(c, "basic.qos") + b"xx")), c.send(1, "basic.qos")))
    broken(b, "shortstr that is not UTF-8", lambda c: c.raw(c.frame(1, 1, method(c, "queue.declare", queue=b"\xff\xfe", durable=True, arguments=Q))))
    broken(b, "queue.declare-ok from a client", lambda c: c.send(1, "queue.declare-ok"))
    broken(b, "connection method on channel 1", lambda c: c.send(1, "connection.open", virtual_host="/"))
    broken(b, "connection.close on channel 1", lambda c: c.send(1, "connection.close"))
    broken(b, "frame on a channel that is not open", lambda c: c.send(7, "basic.qos"))
    broken(b, "body on a channel that is not open", lambda c: c.raw(c.frame(3, 7, b"x")))
    broken(b, "channel.close on a channel that is not open", lambda c: c.send(7, "channel.close", reply_code=200))
    broken(b, "channel.open twice", lambda c: c.send(1, "channel.open"))
    broken(b, "channel number above channel_max", lambda c: c.send(6, "channel.open"), channel_max=5)
    broken(b, "more channels than channel_max", lambda c: c.send(3, "channel.open"), channel_max=2, channels=2)
    broken(b, "payload of frame_max", lambda c: (c.send(1, "basic.publish", routing_key="~"), c.raw(c.frame(2, 1, struct.pack(">HHQH", 60, 0, 8192, 0)) + c.frame(3, 1, b"x" * 8192), "8192"), c.send(1, "basic.qos")), 1, frame_max=8192)
    broken(b, "payload of frame_max + 1", lambda c: (c.send(1, "basic.publish", routing_key="~"), c.raw(c.frame(2, 1, struct.pack(">HHQH", 60, 0, 8193, 0)) + c.frame(3, 1, b"x" * 8193), "8193")), frame_max=8192)
    broken(b, "empty body frames", lambda c: (c.send(1, "basic.publish", routing_key="nowhere~", mandatory=True), c.raw(c.frame(2, 1, struct.pack(">HHQH", 60, 0, 2, 0)) + c.frame(3, 1, b"") + c.frame(3, 1, b"ab"), "2"), ), 1)
    broken(b, "body frame with no announced body", lambda c: (c.send(1, "basic.publish", routing_key="nowhere~"), c.content({}, b""), c.raw(c.frame(3, 1, b""))))


# ---- channels (§1.9) -------------------------------------------------------------------------------

@scenario
def channels(b):
    c = b.login()
    c.call(1, "channel.flow", active=True)
    c.call(1, "access.request", realm="/data", active=True)
    c.call(2, "channel.open", out_of_band="x")
    c.call(2, "channel.close", reply_code=200, reply_text="bye")
    c.call(2, "channel.open")
    b.note("an error leaves the connection and other channels")
    c.send(2, "queue.declare", queue="nope~", passive=True)
    c.send(2, "basic.qos")
    c.send(2, "queue.declare", queue="nope~", passive=True)
    c.recv()
    c.silence(0.2)
    c.call(1, "basic.qos", prefetch_count=1)
    c.send(2, "channel.close-ok")
    c.call(2, "channel.open")
    b.note("both close at once")
    c.send(2, "queue.declare", queue="nope~", passive=True)
    c.send(2, "channel.close", reply_code=200)
    c.recv(), c.recv()
    c.send(2, "channel.close-ok")
    c.call(2, "channel.open")
    b.note("channel 2047")
    c.call(2047, "channel.open")


@scenario
def flow_off(b):
    broken(b, "channel.flow off", lambda c: c.send(1, "channel.flow", active=False))


# ---- one mistake each: what closes, with which text ------------------------------------------------

def mistake(b, label, *steps, before=None, **more):
    """Does the steps on channel 1, then basic.qos; logs all answers and whether channel and connection can go on."""
    b.note(label)
    c = b.login(**more)
    if before: c.hush(lambda: before(c))
    m = None
    for s in steps:
        if s[0] == "publish": c.publish(**s[1])
        else: c.send(1, s[0], **s[1])
        # consume-ok comes when it comes, also behind answers to what was sent later: it is waited for.
        if s[0] == "basic.consume" and not s[1].get("nowait"):
            m = c.recv()
            if m is None or m.name != "basic.consume-ok": break
            m = None
    if m is None: c.hush(lambda: c.send(1, "basic.qos"))
    while True:
        m = m or c.recv()
        if m is None: return
        if m.name == "basic.qos-ok":
            b.lines.pop()
            break
        if m.name == "connection.close":
            c.hush(lambda: c.send(0, "connection.close-ok"))
            c.recv()
            return
        if m.name == "channel.close":
            c.hush(lambda: c.send(1, "channel.close-ok"))
            m = c.hush(lambda: c.call(1, "channel.open"))
            if not m or m.name != "channel.open-ok": c.log("the channel cannot be opened again")
            break
        m = None
    c.close()


def durable(queue, **arguments):
    return ("queue.declare", dict(queue=queue, durable=True, arguments={"x-queue-type": "quorum", **{k.replace("_", "-"): v for k, v in arguments.items()}}))


@scenario
def queue_declare(b):
    c = b.login()
    c.declare("q~")
    m = lambda label, *steps, **more: mistake(b, label, *steps, **more)
    D = "queue.declare"
    m("new", durable("new~"))
    m("again", durable("q~"))
    m("nowait", (D, dict(queue="nw~", durable=True, nowait=True, arguments=Q)), (D, dict(queue="nw~", passive=True)))
    m("nowait, wrong", (D, dict(queue="no~", passive=True, nowait=True)))
    m("passive, nowait", (D, dict(queue="q~", passive=True, nowait=True)))
    m("passive, missing", (D, dict(queue="no~", passive=True)))
    m("passive, everything else is not looked at", (D, dict(queue="q~", passive=True, auto_delete=True, arguments={"x-queue-type": "nonsense", "x-max-length": -1})))
    m("passive, no name", (D, dict(queue="", passive=True)))
    m("passive, no name, declared before", durable("q~"), (D, dict(queue="", passive=True)))
    m("server-named", (D, dict(queue="", durable=True, arguments=Q)))
    m("reserved", durable("amq.mine~"))
    m("reserved, passive", (D, dict(queue="amq.mine~", passive=True)))
    m("line feeds", durable("l\r\nf~"), (D, dict(queue="lf~", passive=True)))
    m("other durable", (D, dict(queue="q~", durable=False, arguments=Q)))
    m("other auto-delete", (D, dict(queue="q~", durable=True, auto_delete=True, arguments=Q)))
    m("other exclusive", (D, dict(queue="q~", durable=True, exclusive=True, arguments=Q)))
    m("no quorum queue: not durable", (D, dict(queue="nd~", durable=False, arguments=Q)))
    m("no quorum queue: auto-delete", (D, dict(queue="ad~", durable=True, auto_delete=True, arguments=Q)))
    m("no quorum queue: exclusive", (D, dict(queue="ex~", durable=True, exclusive=True, arguments=Q)))
    m("unknown type", (D, dict(queue="ut~", durable=True, arguments={"x-queue-type": "nonsense"})))
    m("type is a number", (D, dict(queue="ut~", durable=True, arguments={"x-queue-type": 5})))
    m("type in capitals", (D, dict(queue="ut~", durable=True, arguments={"x-queue-type": "Quorum"})))
    m("type of another", (D, dict(queue="q~", durable=True, arguments={"x-queue-type": "stream"})))
    m("max-length only now", durable("q~", x_max_length=5))
    m("unknown argument only now", durable("q~", x_foo=5))
    for key, values in (("x-max-length", (5, 0, -1, "5", ("l", 5), ("s", 5), 1.5, True, None)), ("x-max-length-bytes", (5, -1, "5")), ("x-overflow", ("drop-head", "reject-publish", "reject-publish-dlx", "nonsense", 5)),
                        ("x-delivery-limit", (5, 0, -1)), ("x-single-active-consumer", (True, False, "true", 1)), ("x-quorum-initial-group-size", (1, 3, 0, -1, "3")),
                        ("x-queue-leader-locator", ("client-local", "balanced", "nonsense", 5)), ("x-max-in-memory-length", (5, -1, "5")), ("x-max-in-memory-bytes", (5, -1)),
                        ("x-max-priority", (5, 0, "5")), ("x-queue-mode", ("lazy",)), ("x-max-age", ("1h",)), ("x-stream-max-segment-size-bytes", (5000,)), ("x-queue-version", (2,)), ("x-queue-master-locator", ("min-masters",)),
                        ("x-quorum-target-group-size", (3,)), ("x-foo", (5,)), ("foo", ("bar",))):
        for i, v in enumerate(values):
            mistake(b, f"{key} = {v}", durable(f"{key}-{i}~", **{key.replace("-", "_"): v}))


@scenario
def queue_equivalence(b):
    c = b.login()
    c.declare("q~", x_max_length=5, x_overflow="reject-publish", x_single_active_consumer=True, x_foo="a")
    same = dict(x_max_length=5, x_overflow="reject-publish", x_single_active_consumer=True)
    for label, change in (("without the unknown", {}), ("other unknown", {"x_foo": "b"}), ("other width", {"x_max_length": ("l", 5)}), ("short", {"x_max_length": ("s", 5)}), ("double", {"x_max_length": 5.0}), ("other value", {"x_max_length": 6}),
                          ("missing", {"x_max_length": None}), ("other overflow", {"x_overflow": "drop-head"}), ("one more", {"x_delivery_limit": 3}), ("sac off", {"x_single_active_consumer": False}), ("as text", {"x_max_length": "5"})):
        args = {k: v for k, v in {**same, **change}.items() if v is not None}
        mistake(b, label, durable("q~", **args))
    mistake(b, "without arguments but the type", durable("q~"))


@scenario
def queue_other_methods(b):
    c = b.login()
    c.declare("q~")
    c.fill("q~", b"1", b"2", b"3")
    m = lambda label, *steps, **more: mistake(b, label, *steps, **more)
    m("counts", ("queue.declare", dict(queue="q~", passive=True)))
    m("purge of nothing", ("queue.purge", dict(queue="no~")))
    m("purge without a name", ("queue.purge", dict(queue="")))
    m("purge", ("queue.purge", dict(queue="q~")), ("queue.purge", dict(queue="q~")))
    m("purge, nowait", ("queue.purge", dict(queue="q~", nowait=True)))
    m("delete of nothing", ("queue.delete", dict(queue="no~")))
    m("delete without a name", ("queue.delete", dict(queue="")))
    m("delete if-unused", ("queue.delete", dict(queue="q~", if_unused=True)))
    m("delete if-empty", ("queue.delete", dict(queue="q~", if_empty=True)))
    m("delete if-unused and if-empty", ("queue.delete", dict(queue="q~", if_unused=True, if_empty=True)))
    m("delete if-unused of nothing", ("queue.delete", dict(queue="no~", if_unused=True)))
    c.fill("q~", b"1", b"2")
    m("delete", ("queue.delete", dict(queue="q~")), ("queue.declare", dict(queue="q~", passive=True)))
    m("declare, use and delete without a name", durable("named~"), ("queue.bind", dict(queue="", exchange="amq.direct", routing_key="")), ("queue.purge", dict(queue="")), ("basic.get", dict(queue="")), ("queue.delete", dict(queue="", nowait=True)), ("queue.declare", dict(queue="named~", passive=True)))


@scenario
def exchange_declare(b):
    m = lambda label, *steps, **more: mistake(b, label, *steps, **more)
    X = "exchange.declare"
    for kind in ("direct", "fanout", "topic", "headers", "x-nonsense", "", "Direct"):
        m(f"type {kind}", (X, dict(exchange=f"x-{kind}~", type=kind, durable=True)))
    m("again", (X, dict(exchange="x~", type="direct", durable=True)), (X, dict(exchange="x~", type="direct", durable=True)))
    m("other type", (X, dict(exchange="x~", type="topic", durable=True)))
    m("other durable", (X, dict(exchange="x~", type="direct")))
    m("other auto-delete", (X, dict(exchange="x~", type="direct", durable=True, auto_delete=True)))
    m("other internal", (X, dict(exchange="x~", type="direct", durable=True, internal=True)))
    m("other unknown argument", (X, dict(exchange="x~", type="direct", durable=True, arguments={"foo": 1})))
    m("alternate exchange only now", (X, dict(exchange="x~", type="direct", durable=True, arguments={"alternate-exchange": "ae~"})))
    m("with alternate exchange", (X, dict(exchange="xa~", type="direct", durable=True, arguments={"alternate-exchange": "ae~"})))
    m("other alternate exchange", (X, dict(exchange="xa~", type="direct", durable=True, arguments={"alternate-exchange": "be~"})))
    m("without alternate exchange", (X, dict(exchange="xa~", type="direct", durable=True)))
    m("alternate exchange is a number", (X, dict(exchange="xn~", type="direct", durable=True, arguments={"alternate-exchange": 5})))
    m("passive, missing", (X, dict(exchange="no~", type="direct", passive=True)))
    m("passive, other", (X, dict(exchange="x~", type="topic", passive=True, internal=True)))
    m("passive, unknown type", (X, dict(exchange="x~", type="nonsense", passive=True)))
    m("passive, default", (X, dict(exchange="", type="direct", passive=True)))
    m("passive, predeclared", (X, dict(exchange="amq.topic", type="topic", passive=True)))
    m("default", (X, dict(exchange="", type="direct", durable=True)))
    m("reserved", (X, dict(exchange="amq.mine~", type="direct", durable=True)))
    m("predeclared, same", (X, dict(exchange="amq.topic", type="topic", durable=True)))
    m("predeclared, other", (X, dict(exchange="amq.topic", type="direct", durable=True)))
    m("line feeds", (X, dict(exchange="l\nf~", type="direct", durable=True)), (X, dict(exchange="lf~", type="direct", passive=True)))
    m("nowait", (X, dict(exchange="nw~", type="direct", nowait=True)), (X, dict(exchange="nw~", type="direct", passive=True)))
    m("nowait, wrong", (X, dict(exchange="nw~", type="topic", nowait=True)))
    m("delete of nothing", ("exchange.delete", dict(exchange="no~")))
    m("delete of the default", ("exchange.delete", dict(exchange="")))
    m("delete of a predeclared one", ("exchange.delete", dict(exchange="amq.direct")))
    m("delete of a reserved name that is not there", ("exchange.delete", dict(exchange="amq.nothing~")))
    m("delete in use", (X, dict(exchange="used~", type="direct", durable=True)), ("exchange.bind", dict(destination="x~", source="used~", routing_key="k")), ("exchange.delete", dict(exchange="used~", if_unused=True)))
    m("delete as a destination only", ("exchange.delete", dict(exchange="x~", if_unused=True)))
    m("delete unused", ("exchange.delete", dict(exchange="used~", if_unused=True)), (X, dict(exchange="used~", passive=True)))
    m("delete if-unused of nothing", ("exchange.delete", dict(exchange="no~", if_unused=True)))
    m("publish to an internal one", (X, dict(exchange="in~", type="fanout", internal=True)), ("publish", dict(exchange="in~")))


@scenario
def bindings(b):
    c = b.login()
    c.declare("q~")
    c.hush(lambda: [c.call(1, "exchange.declare", exchange=f"{k}~", type=k, durable=True) for k in ("direct", "topic", "headers", "fanout")])
    m = lambda label, *steps, **more: mistake(b, label, *steps, **more)
    B, U, EB, EU = "queue.bind", "queue.unbind", "exchange.bind", "exchange.unbind"
    m("bind", (B, dict(queue="q~", exchange="direct~", routing_key="k")), (B, dict(queue="q~", exchange="direct~", routing_key="k")))
    m("unbind", (U, dict(queue="q~", exchange="direct~", routing_key="k")), (U, dict(queue="q~", exchange="direct~", routing_key="k")))
    m("missing queue", (B, dict(queue="no~", exchange="direct~")))
    m("missing exchange", (B, dict(queue="q~", exchange="no~")))
    m("both missing", (B, dict(queue="no~", exchange="none~")))
    m("no queue name", (B, dict(queue="", exchange="direct~")))
    m("to the default exchange", (B, dict(queue="q~", exchange="")))
    m("missing queue, default exchange", (B, dict(queue="no~", exchange="")))
    m("unbind: missing queue", (U, dict(queue="no~", exchange="direct~")))
    m("unbind: missing exchange", (U, dict(queue="q~", exchange="no~")))
    m("unbind: default exchange", (U, dict(queue="q~", exchange="")))
    m("unbind: never bound", (U, dict(queue="q~", exchange="direct~", routing_key="never")))
    m("nowait", (B, dict(queue="q~", exchange="direct~", routing_key="nw", nowait=True)))
    m("no key and no queue name: the name", durable("q~"), (B, dict(queue="", exchange="direct~", routing_key="")), ("publish", dict(exchange="direct~", routing_key="q~", mandatory=True)), ("publish", dict(exchange="direct~", routing_key="", mandatory=True)))
    m("topic: two #", (B, dict(queue="q~", exchange="topic~", routing_key="#.a.#")))
    m("topic: three #", (B, dict(queue="q~", exchange="topic~", routing_key="#.a.#.b.#")))
    m("topic: four #, unbind", (U, dict(queue="q~", exchange="topic~", routing_key="#.#.#.#")))
    m("topic: # in words", (B, dict(queue="q~", exchange="topic~", routing_key="a#.b#.c#.d#")))
    for v in ("all", "any", "all-with-x", "any-with-x", "nonsense", "ALL", 5, True):
        m(f"headers: x-match = {v}", (B, dict(queue="q~", exchange="headers~", arguments={"x-match": v, "a": 1})))
    m("headers: no x-match", (B, dict(queue="q~", exchange="headers~", arguments={"a": 1})))
    m("headers: two of x-match", (B, dict(queue="q~", exchange="headers~", arguments=[("x-match", "any"), ("x-match", "bad")])))
    m("arguments of a direct one", (B, dict(queue="q~", exchange="direct~", routing_key="a", arguments={"foo": {"bar": [1, 2]}})))
    m("arguments in another order are the same", (B, dict(queue="q~", exchange="direct~", routing_key="o", arguments={"b": 1, "a": 2})), (U, dict(queue="q~", exchange="direct~", routing_key="o", arguments={"a": 2, "b": 1})), ("publish", dict(exchange="direct~", routing_key="o", mandatory=True)))
    m("other arguments are another binding", (B, dict(queue="q~", exchange="direct~", routing_key="p", arguments={"a": 1})), (U, dict(queue="q~", exchange="direct~", routing_key="p")), ("publish", dict(exchange="direct~", routing_key="p", mandatory=True)))
    m("a wider number is another binding, or not", (B, dict(queue="q~", exchange="direct~", routing_key="w", arguments={"a": 1})), (U, dict(queue="q~", exchange="direct~", routing_key="w", arguments={"a": ("l", 1)})), ("publish", dict(exchange="direct~", routing_key="w", mandatory=True)))
    m("e2e", (EB, dict(destination="fanout~", source="direct~", routing_key="k")), (EB, dict(destination="fanout~", source="direct~", routing_key="k")), (EU, dict(destination="fanout~", source="direct~", routing_key="k")))
    m("e2e: missing source", (EB, dict(destination="fanout~", source="no~")))
    m("e2e: missing destination", (EB, dict(destination="no~", source="direct~")))
    m("e2e: both missing", (EB, dict(destination="no~", source="none~")))
    m("e2e: default source", (EB, dict(destination="fanout~", source="")))
    m("e2e: default destination", (EB, dict(destination="", source="fanout~")))
    m("e2e: itself", (EB, dict(destination="fanout~", source="fanout~")))
    m("e2e: unbind missing", (EU, dict(destination="no~", source="fanout~")))
    m("e2e: nowait", (EB, dict(destination="fanout~", source="direct~", routing_key="nw", nowait=True)))


@scenario
def publish_mistakes(b):
    c = b.login()
    c.declare("q~")
    m = lambda label, *steps, **more: mistake(b, label, *steps, **more)
    p = lambda **more: ("publish", dict(routing_key="q~", **more))
    m("missing exchange", ("publish", dict(exchange="no~", routing_key="k")))
    m("missing exchange, mandatory", ("publish", dict(exchange="no~", routing_key="k", mandatory=True)))
    m("immediate", ("publish", dict(routing_key="q~", immediate=True)))
    m("immediate to a missing exchange", ("publish", dict(exchange="no~", immediate=True)))
    for e in ("0", "60000", "", "abc", "-1", "+5", " 5", "5 ", "1.5", "315360000000", "315360000001", "99999999999999999999", "0005", "0x10", "1e3"):
        m(f"expiration '{e}'", p(props={"expiration": e}))
    m("user id", p(props={"user_id": "guest"}))
    m("user id of another", p(props={"user_id": "other"}))
    m("user id empty", p(props={"user_id": ""}))
    m("CC is a text", p(props={"headers": {"CC": "k"}}))
    m("CC is a number", p(props={"headers": {"CC": 5}}))
    m("CC with a number", p(props={"headers": {"CC": ["a", 5]}}))
    m("CC void", p(props={"headers": {"CC": None}}))
    m("CC empty", p(props={"headers": {"CC": []}}))
    m("BCC is a text", p(props={"headers": {"BCC": "k"}}))
    m("BCC with a table", p(props={"headers": {"BCC": [{}]}}))
    m("CC and BCC wrong", p(props={"headers": {"BCC": 1, "CC": 2}}))
    m("two rules broken", p(props={"expiration": "x", "user_id": "other", "headers": {"CC": 1}}))
    m("CC and user id wrong", p(props={"user_id": "other", "headers": {"CC": 1}}))
    m("reply-to without a consumer", p(props={"reply_to": "amq.rabbitmq.reply-to"}))
    m("reply-to else", p(props={"reply_to": "amq.rabbitmq.reply-to.nonsense"}))
    m("delivery mode 0", p(props={"delivery_mode": 0}))
    m("delivery mode 255", p(props={"delivery_mode": 255}))
    m("priority 255", p(props={"priority": 255}))
    m("shortstr property not UTF-8", p(props={"message_id": b"\xff"}))
    m("key of 255 octets", ("publish", dict(routing_key="k" * 255, mandatory=True)))


@scenario
def consume_mistakes(b):
    c = b.login()
    c.declare("q~")
    m = lambda label, *steps, **more: mistake(b, label, *steps, **more)
    C = "basic.consume"
    m("missing queue", (C, dict(queue="no~", consumer_tag="c")))
    m("no name", (C, dict(queue="", consumer_tag="c")))
    m("own tag", (C, dict(queue="q~", consumer_tag="c")))
    m("no tag", (C, dict(queue="q~")))
    m("nowait", (C, dict(queue="q~", consumer_tag="c", nowait=True)))
    m("tag twice", (C, dict(queue="q~", consumer_tag="c")), (C, dict(queue="q~", consumer_tag="c")))
    m("exclusive twice", (C, dict(queue="q~", consumer_tag="c", exclusive=True)), (C, dict(queue="q~", consumer_tag="d", exclusive=True)))
    m("no-local", (C, dict(queue="q~", consumer_tag="c", no_local=True)))
    for key, values in (("x-priority", (5, -5, ("l", 1 << 40), "5", True, 1.5, None)), ("x-stream-offset", ("first",)), ("x-stream-filter", ("a",)), ("x-foo", (1,)), ("x-cancel-on-ha-failover", (True,)), ("x-credit", ({"credit": 1, "drain": False},))):
        for v in values:
            m(f"{key} = {v}", (C, dict(queue="q~", consumer_tag="c", arguments={key: v})))
    m("cancel of nothing", ("basic.cancel", dict(consumer_tag="none")))
    m("cancel, nowait", (C, dict(queue="q~", consumer_tag="c")), ("basic.cancel", dict(consumer_tag="c", nowait=True)), ("basic.cancel", dict(consumer_tag="c")))
    m("cancel without a tag", ("basic.cancel", dict(consumer_tag="")))
    m("reuse after cancel", (C, dict(queue="q~", consumer_tag="c")), ("basic.cancel", dict(consumer_tag="c")), (C, dict(queue="q~", consumer_tag="c")))
    m("get from nowhere", ("basic.get", dict(queue="no~")))
    m("get without a name", ("basic.get", dict(queue="")))
    m("get of nothing", ("basic.get", dict(queue="q~")))
    m("prefetch size", ("basic.qos", dict(prefetch_size=1)))
    m("prefetch size and count", ("basic.qos", dict(prefetch_size=4294967295, prefetch_count=1)))
    for name, more in (("basic.ack", {}), ("basic.nack", {"requeue": True}), ("basic.reject", {"requeue": True})):
        m(f"{name} of 0", (name, dict(delivery_tag=0, **more)))
        m(f"{name} of 7", (name, dict(delivery_tag=7, **more)))
        m(f"{name} of a large tag", (name, dict(delivery_tag=(1 << 64) - 1, **more)))
    for name in ("basic.ack", "basic.nack"):
        m(f"{name} of everything", (name, dict(delivery_tag=0, multiple=True)))
        m(f"{name} up to 7", (name, dict(delivery_tag=7, multiple=True)))
    m("recover", ("basic.recover", dict(requeue=True)))
    m("recover without requeue", ("basic.recover", dict(requeue=False)))
    m("recover-async", ("basic.recover-async", dict(requeue=True)))
    m("recover-async without requeue", ("basic.recover-async", dict(requeue=False)))
    m("commit without select", ("tx.commit", {}))
    m("rollback without select", ("tx.rollback", {}))
    m("confirm then tx", ("confirm.select", {}), ("confirm.select", {}), ("tx.select", {}))
    m("tx then confirm", ("tx.select", {}), ("tx.select", {}), ("confirm.select", {}))
    m("confirm, nowait", ("confirm.select", dict(nowait=True)))


@scenario
def sac_get(b):
    mistake(b, "get from a queue with a single active consumer", durable("sac~", x_single_active_consumer=True), ("basic.get", dict(queue="sac~")))


# ---- messages --------------------------------------------------------------------------------------

def there_and_back(b, c, label, props, body=b"m"):
    b.note(label)
    c.publish("", "q~", body, props)
    m = c.recv()
    if m is None or m.name != "basic.ack":
        return
    for _ in range(50):
        m = c.hush(lambda: c.call(1, "basic.get", queue="q~", no_ack=True))
        if m.name == "basic.get-ok": break
        time.sleep(0.02)
    c.log(f"| {c.coder.read_properties(m.props)} | {c.short(m.body)}" if m.name == "basic.get-ok" else f"< {m.name}")


@scenario
def properties(b):
    c = b.login()
    c.declare("q~")
    c.hush(lambda: c.call(1, "confirm.select"))
    t = lambda label, props, body=b"m": there_and_back(b, c, label, props, body)
    t("none", {})
    everything = dict(content_type="text/plain", content_encoding="gzip", headers={"a": 1}, delivery_mode=2, priority=4, correlation_id="c", reply_to="r", expiration="100000", message_id="i", timestamp=1700000000, type="t", user_id="guest", app_id="a", cluster_id="k")
    t("all", everything)
    for k in everything: t(f"only {k}", {k: everything[k]})
    t("empty texts", {k: "" for k, kind in (("content_type", 0), ("correlation_id", 0), ("message_id", 0), ("type", 0), ("app_id", 0), ("cluster_id", 0))})
    t("empty headers", {"headers": {}})
    for v in (0, 1, 2, 3, 255): t(f"delivery mode {v}", {"delivery_mode": v})
    for v in (0, 1, 9, 10, 255): t(f"priority {v}", {"priority": v})
    t("timestamp 0", {"timestamp": 0})
    t("timestamp max", {"timestamp": (1 << 64) - 1})
    t("expiration with zeros", {"expiration": "0100000"})
    t("long texts", {"message_id": "m" * 255, "type": "ä" * 100})
    t("flag bits 0 and 1", b"\x80\x02\x02ab")
    t("empty body", {}, b"")
    t("two frames", {}, b"x" * 131065)
    t("not persistent", {"delivery_mode": 1})


@scenario
def header_tables(b):
    c = b.login()
    c.declare("q~")
    c.hush(lambda: c.call(1, "confirm.select"))
    t = lambda label, headers: there_and_back(b, c, label, {"headers": headers})
    t("not sorted", {"z": 1, "a": 2, "m": 3})
    t("sorted", {"a": 1, "b": 2})
    t("upper and lower case", {"b": 1, "B": 2, "a": 3, "A": 4, "_": 5, "1": 6, "aa": 7, "": 8})
    t("twice", [("a", 1), ("a", 2), ("b", 3), ("a", 4)])
    t("twice, not sorted", [("b", 1), ("a", 2), ("b", 3)])
    t("all letters", [("k" + chr(97 + i), v) for i, v in enumerate((("t", True), ("t", False), ("b", -5), ("B", 250), ("s", -300), ("u", 65535), ("I", -70000), ("i", 4294967295), ("l", -(1 << 63)), ("L", 7), ("f", 1.5), ("d", -2.25), ("D", (2, 314)), ("S", "text"), ("S", b"\xff\xfe"), ("x", b"\0\1"), ("T", 1700000000), ("V", None), ("F", {}), ("A", [])))])
    t("decimal above 2^31", {"a": ("D", (255, 4294967295))})
    t("nested, not sorted", {"t": {"z": 1, "a": {"y": 1, "b": 2}}, "l": [3, {"z": 1, "a": 2}, [1, "x"], None]})
    t("bool of 2", {"a": ("t", True), "b": ("b", 2)})
    t("byte order of letters", {"ä": 1, "z": 2, "Z": 3})
    t("x- headers", {"x-a": 1, "x-death": [{"queue": "q", "count": ("l", 1)}], "x-delivery-count": ("l", 5), "x-acquired-count": ("l", 7), "x-opt-z": 1})
    t("CC", {"CC": ["nowhere~", "neither~"], "a": 1})
    t("BCC", {"b": 1, "BCC": ["nowhere~"], "a": 1})
    t("only BCC", {"BCC": ["nowhere~"]})
    t("long key", {"k" * 255: 1})
    t("after a failed delivery, not sorted", {})
    for headers in ({}, {"z": 1, "a": 2, "m": {"z": 1, "a": 2}}, [("b", 1), ("a", 2), ("b", 3)]):
        c.hush(lambda: (c.publish("", "q~", b"m", {"headers": headers} if headers else {}), c.recv()))
        m = c.call(1, "basic.get", queue="q~")
        c.send(1, "basic.reject", delivery_tag=m.delivery_tag, requeue=True)
        c.hush(lambda: time.sleep(0.2))
        c.call(1, "basic.get", queue="q~", no_ack=True)


@scenario
def bool_octet(b):
    c = b.login()
    c.declare("q~")
    c.hush(lambda: c.call(1, "confirm.select"))
    there_and_back(b, c, "a bool that is 2", b"\x20\0\0\0\0\x04\x01at\x02")


@scenario
def big_messages(b):
    c = b.login(frame_max=8192)
    c.declare("q~")
    c.hush(lambda: c.call(1, "confirm.select"))
    for n in (8183, 8184, 8185, 16368, 20000): 
        c.publish("", "q~", b"x" * n)
        c.until("basic.ack")
        c.call(1, "basic.get", queue="q~", no_ack=True)
    c.publish("", "nowhere~", b"x" * 20000, mandatory=True)
    c.until("basic.ack")


@scenario
def routing(b):
    c = b.login()
    for q in "abcd": c.declare(f"{q}~")
    def go():
        c.call(1, "confirm.select")
        for k in ("direct", "fanout", "topic", "headers"): c.call(1, "exchange.declare", exchange=f"{k}~", type=k, durable=True)
        c.call(1, "exchange.declare", exchange="alt~", type="fanout", durable=True)
        c.call(1, "exchange.declare", exchange="alt2~", type="direct", durable=True, arguments={"alternate-exchange": "alt~"})
        c.call(1, "exchange.declare", exchange="withalt~", type="direct", durable=True, arguments={"alternate-exchange": "alt2~"})
        c.call(1, "exchange.declare", exchange="lostalt~", type="direct", durable=True, arguments={"alternate-exchange": "nothere~"})
        c.call(1, "exchange.declare", exchange="loop1~", type="direct", durable=True, arguments={"alternate-exchange": "loop2~"})
        c.call(1, "exchange.declare", exchange="loop2~", type="direct", durable=True, arguments={"alternate-exchange": "loop1~"})
        c.call(1, "queue.bind", queue="d~", exchange="alt~")
        for q, x, k in (("a", "direct", "k"), ("b", "direct", "k"), ("b", "direct", "k2"), ("a", "fanout", "zzz"), ("b", "fanout", ""), ("a", "topic", "a.*"), ("b", "topic", "a.#"), ("c", "topic", "#"), ("d", "topic", "*.*.c"), ("d", "topic", "")):
            c.call(1, "queue.bind", queue=f"{q}~", exchange=f"{x}~", routing_key=k)
        for q, args in (("a", {"x-match": "all", "h": 1, "i": "two"}), ("b", {"x-match": "any", "h": 1, "i": "two"}), ("c", {"x-match": "all-with-x", "x-h": 1}), ("d", {"x-match": "any", "v": None, "f": 1.5, "x-z": 1})):
            c.call(1, "queue.bind", queue=f"{q}~", exchange="headers~", arguments=args)
        c.call(1, "exchange.bind", destination="fanout~", source="direct~", routing_key="e")
        c.call(1, "exchange.bind", destination="direct~", source="fanout~", routing_key="")
    c.hush(go)
    def sent(exchange, key, headers=None):
        got, returned = "", ""
        def run():
            nonlocal got, returned
            c.publish(f"{exchange}~" if exchange else "", key, b"m", {"headers": headers} if headers is not None else {}, mandatory=True)
            m = c.until("basic.ack", "basic.return")
            if m.name == "basic.return":
                returned = f" returned {m.reply_code}"
                c.until("basic.ack")
            for q in "abcd":
                while c.call(1, "basic.get", queue=f"{q}~", no_ack=True).name == "basic.get-ok": got += q
        c.hush(run)
        c.log(f"{exchange} '{key}' {headers or ''} -> {got}{returned}")
    for k in ("k", "k2", "none", "e", "", "K"): sent("direct", k)
    sent("fanout", "x")
    for k in ("a.b", "a", "a.b.c", "", "b", "x.y.c", "a.", ".", "..", "a..c", "a.*", "#"): sent("topic", k)
    for h in ({"h": 1, "i": "two"}, {"h": 1}, {"h": 2}, {}, None, {"h": ("l", 1)}, {"h": ("b", 1)}, {"h": 1.0}, {"h": "1"}, {"i": ("x", b"two")}, {"x-h": 1}, {"v": 5}, {"v": None}, {"f": 1.5}, {"f": ("f", 1.5)}, {"x-z": 1}): sent("headers", "", h)
    for x in ("withalt", "lostalt", "loop1"): sent(x, "k")
    b.note("CC and BCC")
    sent("direct", "none", {"CC": ["k2"]})
    sent("direct", "k", {"CC": ["k"], "BCC": ["k2"]})
    sent("", "a~", {"CC": ["b~", "a~", "no~"], "BCC": ["c~"]})
    sent("", "no~", {"BCC": ["c~"]})
    sent("topic", "zz", {"CC": ["a.b"]})
    b.note("what a BCC recipient sees")
    c.hush(lambda: (c.publish("", "a~", b"m", {"headers": {"CC": ["b~"], "BCC": ["c~"]}}), c.until("basic.ack")))
    for q in "abc": c.call(1, "basic.get", queue=f"{q}~", no_ack=True)


@scenario
def auto_delete_exchanges(b):
    c = b.login()
    c.declare("q~")
    X = lambda name, **more: c.hush(lambda: c.call(1, "exchange.declare", exchange=name, type="fanout", durable=True, **more))
    def there(name):
        c2 = b.login()
        m = c2.hush(lambda: c2.call(1, "exchange.declare", exchange=name, passive=True))
        b.note(f"{name} {'is there' if m.name == 'exchange.declare-ok' else 'is gone'}")
        c2.drop()
    X("one~", auto_delete=True)
    there("one~")
    c.call(1, "queue.bind", queue="q~", exchange="one~")
    c.call(1, "queue.unbind", queue="q~", exchange="one~")
    there("one~")
    X("two~", auto_delete=True); X("three~", auto_delete=True)
    c.call(1, "exchange.bind", destination="three~", source="two~")
    c.call(1, "queue.bind", queue="q~", exchange="three~")
    c.call(1, "queue.unbind", queue="q~", exchange="three~")
    there("three~"), there("two~")
    X("four~", auto_delete=True)
    c.declare("p~")
    c.call(1, "queue.bind", queue="p~", exchange="four~")
    c.call(1, "queue.delete", queue="p~")
    there("four~")


# ---- confirms (§1.11) ------------------------------------------------------------------------------

@scenario
def confirms(b):
    c = b.login()
    c.declare("q~")
    c.publish("", "q~", b"before")
    c.call(1, "confirm.select")
    c.publish("", "q~", b"1"); c.until("basic.ack")
    c.publish("", "nowhere~", b"2"); c.until("basic.ack")
    c.publish("", "nowhere~", b"3", {"headers": {"b": 1, "a": 2}, "delivery_mode": 2}, mandatory=True)
    c.until("basic.ack")
    c.publish("amq.fanout", "nowhere~", b"4", mandatory=True)
    c.until("basic.ack")
    b.note("many at once: all are acknowledged, each once")
    def many():
        for i in range(100): c.publish("", "q~", b"m")
        done = 4
        while done < 104:
            m = c.recv()
            assert m.name == "basic.ack", m.name
            assert m.delivery_tag > done or not m.multiple
            done = m.delivery_tag if m.multiple or m.delivery_tag == done + 1 else done
        return done
    b.note(f"up to {c.hush(many)}")
    b.note("select again: the count goes on")
    c.call(1, "confirm.select")
    c.publish("", "q~", b"m"); c.until("basic.ack")
    b.note("an unroutable message between")
    c.publish("", "nowhere~", b"x", mandatory=True); c.until("basic.ack")
    b.note("a missing exchange")
    c.publish("none~", "q~", b"x"); c.until("channel.close")


@scenario
def limits(b):
    c = b.login()
    c.declare("head~", x_max_length=3)
    c.declare("reject~", x_max_length=3, x_overflow="reject-publish")
    c.declare("bytes~", x_max_length_bytes=10)
    c.hush(lambda: c.call(1, "confirm.select"))
    for q in ("head~", "reject~", "bytes~"):
        b.note(q)
        for i in range(8):
            c.publish("", q, b"abcd%d" % i)
            c.until("basic.ack", "basic.nack")
            c.hush(lambda: time.sleep(0.1))
        c.hush(lambda: time.sleep(0.3))
        c.call(1, "queue.declare", queue=q, passive=True)
        while c.call(1, "basic.get", queue=q, no_ack=True).name == "basic.get-ok": pass


# ---- consuming (§1.12, §1.13) ----------------------------------------------------------------------

@scenario
def get_and_settle(b):
    c = b.login()
    c.declare("q~")
    c.fill("q~", *(b"%d" % i for i in range(6)))
    first = c.call(1, "basic.get", queue="q~")
    c.call(1, "basic.get", queue="q~")
    c.call(1, "basic.get", queue="q~", no_ack=True)
    def back(name, tag, **more):
        c.send(1, name, delivery_tag=tag, **more)
        c.hush(lambda: time.sleep(0.25))
    back("basic.nack", 1, requeue=True)
    c.call(1, "basic.get", queue="q~")
    back("basic.reject", 4, requeue=True)
    c.call(1, "basic.get", queue="q~")
    back("basic.nack", 0, requeue=True, multiple=True)
    c.call(1, "basic.get", queue="q~"); c.call(1, "basic.get", queue="q~")
    b.note("recover")
    c.call(1, "basic.recover", requeue=True)
    c.hush(lambda: time.sleep(0.25))
    c.call(1, "basic.get", queue="q~"); c.call(1, "basic.get", queue="q~")
    b.note("channel closed by the client")
    c.call(1, "channel.close", reply_code=200)
    c.hush(lambda: time.sleep(0.25))
    c.call(1, "channel.open")
    c.call(1, "basic.get", queue="q~"); c.call(1, "basic.get", queue="q~"); c.call(1, "basic.get", queue="q~")
    b.note("reject, nack without requeue")
    back("basic.reject", 1, requeue=False)
    back("basic.nack", 2, requeue=False)
    back("basic.ack", 3)
    c.call(1, "queue.declare", queue="q~", passive=True)
    b.note("multiple up to a settled tag")
    c.call(1, "basic.get", queue="q~"); c.call(1, "basic.get", queue="q~")
    c.send(1, "basic.ack", delivery_tag=5)
    c.send(1, "basic.ack", delivery_tag=5, multiple=True)
    c.until("channel.close")
    c.send(1, "channel.close-ok")
    c.hush(lambda: time.sleep(0.25))
    c.call(1, "channel.open")
    c.call(1, "basic.get", queue="q~"); c.call(1, "basic.get", queue="q~")
    b.note("an ack twice")
    c.send(1, "basic.ack", delivery_tag=1); c.send(1, "basic.ack", delivery_tag=1)
    c.until("channel.close")


@scenario
def connection_lost(b):
    c = b.login()
    c.declare("q~")
    c.fill("q~", b"a", b"b")
    d = b.login()
    d.call(1, "basic.get", queue="q~"); d.call(1, "basic.get", queue="q~")
    d.drop()
    time.sleep(0.4)
    c.call(1, "basic.get", queue="q~"); c.call(1, "basic.get", queue="q~", no_ack=True)
    b.note("connection closed in order")
    c.close()
    time.sleep(0.4)
    c = b.login()
    c.call(1, "basic.get", queue="q~")


@scenario
def delivery_limit(b):
    c = b.login()
    c.declare("q~", x_delivery_limit=2)
    c.fill("q~", b"m")
    for _ in range(5):
        m = c.call(1, "basic.get", queue="q~")
        if m.name != "basic.get-ok": break
        c.send(1, "basic.reject", delivery_tag=m.delivery_tag, requeue=True)
        c.hush(lambda: time.sleep(0.25))
    b.note("nack does not count")
    c.fill("q~", b"n")
    for _ in range(5):
        m = c.call(1, "basic.get", queue="q~")
        if m.name != "basic.get-ok": break
        c.send(1, "basic.nack", delivery_tag=m.delivery_tag, requeue=True)
        c.hush(lambda: time.sleep(0.25))
    b.note("limit 0")
    c.declare("zero~", x_delivery_limit=0)
    c.fill("zero~", b"m")
    for _ in range(2):
        m = c.call(1, "basic.get", queue="zero~")
        if m.name != "basic.get-ok": break
        c.send(1, "basic.reject", delivery_tag=m.delivery_tag, requeue=True)
        c.hush(lambda: time.sleep(0.25))
    b.note("limit -1")
    c.declare("none~", x_delivery_limit=-1)
    c.fill("none~", b"m")
    for _ in range(3):
        m = c.call(1, "basic.get", queue="none~")
        if m.name != "basic.get-ok": break
        c.send(1, "basic.reject", delivery_tag=m.delivery_tag, requeue=True)
        c.hush(lambda: time.sleep(0.25))


@scenario
def consuming(b):
    c = b.login()
    c.declare("q~")
    c.call(1, "basic.qos", prefetch_count=2)
    c.call(1, "basic.consume", queue="q~", consumer_tag="one")
    c.call(1, "queue.declare", queue="q~", passive=True)
    c.fill("q~", *(b"%d" % i for i in range(6)))
    c.recv(), c.recv()
    c.silence(0.3)
    c.send(1, "basic.ack", delivery_tag=1)
    c.recv()
    c.send(1, "basic.nack", delivery_tag=3, multiple=True, requeue=False)
    c.recv(), c.recv()
    b.note("cancel keeps what is out")
    c.call(1, "basic.cancel", consumer_tag="one")
    c.send(1, "basic.ack", delivery_tag=4)
    c.send(1, "basic.reject", delivery_tag=5, requeue=True)
    c.hush(lambda: time.sleep(0.25))
    c.call(1, "basic.get", queue="q~"); c.call(1, "basic.get", queue="q~"); c.call(1, "basic.get", queue="q~")
    b.note("a rejected message comes back to its consumer")
    c.send(1, "basic.nack", delivery_tag=0, multiple=True, requeue=True)
    c.hush(lambda: time.sleep(0.25))
    c.call(1, "basic.consume", queue="q~", consumer_tag="two")
    c.recv(), c.recv()
    c.send(1, "basic.reject", delivery_tag=8, requeue=True)
    c.silence(0.5)


@scenario
def consuming_without_acks(b):
    c = b.login()
    c.declare("q~")
    c.fill("q~", b"a", b"b", b"c")
    c.call(1, "basic.qos", prefetch_count=1)
    c.call(1, "basic.consume", queue="q~", consumer_tag="c", no_ack=True)
    c.recv(), c.recv(), c.recv()
    c.call(1, "queue.declare", queue="q~", passive=True)
    c.send(1, "basic.ack", delivery_tag=1)
    c.until("channel.close")


@scenario
def qos(b):
    c = b.login(channels=2)
    c.declare("q~")
    c.fill("q~", *(b"%d" % i for i in range(12)))
    b.note("each consumer has the prefetch of its time; global counts per consumer")
    c.call(1, "basic.qos", prefetch_count=1)
    c.call(1, "basic.consume", queue="q~", consumer_tag="a")
    c.silence(0.3)
    c.call(1, "basic.qos", prefetch_count=2, **{"global": True})
    c.call(1, "basic.consume", queue="q~", consumer_tag="b")
    c.silence(0.3)
    c.call(1, "basic.qos", prefetch_count=3)
    c.call(1, "basic.consume", queue="q~", consumer_tag="c")
    c.silence(0.3)


@scenario
def priorities(b):
    c = b.login(channels=2)
    c.declare("q~")
    c.call(1, "basic.qos", prefetch_count=1); c.call(2, "basic.qos", prefetch_count=2)
    c.call(1, "basic.consume", queue="q~", consumer_tag="low")
    c.call(2, "basic.consume", queue="q~", consumer_tag="high", arguments={"x-priority": 5})
    d = b.login()
    for i in range(4):
        d.hush(lambda: d.publish("", "q~", b"%d" % i))
        c.silence(0.25)
    b.note("message priorities are strict")
    c.declare("p~")
    for p in (1, 9, 3, 5, 2, 10, 0, 7, 4, None, 255, 31, 32, 5): c.fill("p~", b"%d" % (p if p is not None else 99), props={"priority": p} if p is not None else {})
    got = []
    def take():
        while True:
            m = c.call(1, "basic.get", queue="p~", no_ack=True)
            if m.name != "basic.get-ok": return
            got.append(m.body.decode())
    c.hush(take)
    b.note(" ".join(got))


@scenario
def single_active_consumer(b):
    c = b.login(channels=3)
    c.declare("q~", x_single_active_consumer=True)
    for ch in (1, 2): c.call(ch, "basic.consume", queue="q~", consumer_tag=f"c{ch}")
    c.fill("q~", b"a", b"b")
    c.recv(), c.recv()
    c.send(1, "basic.ack", delivery_tag=1)
    b.note("the active one is cancelled with one message out")
    c.call(1, "basic.cancel", consumer_tag="c1")
    c.fill("q~", b"c")
    c.silence(0.4)
    b.note("and settles it")
    c.send(1, "basic.reject", delivery_tag=2, requeue=True)
    c.silence(0.4)
    b.note("a consumer of higher priority takes over when the active one has settled")
    c.call(3, "basic.consume", queue="q~", consumer_tag="c3", arguments={"x-priority": 5})
    c.fill("q~", b"d")
    c.silence(0.4)
    c.send(2, "basic.ack", delivery_tag=0, multiple=True)
    c.silence(0.4)
    b.note("the active one's channel closes")
    c.call(3, "channel.close", reply_code=200)
    c.silence(0.4)


@scenario
def requeue_order(b):
    c = b.login()
    c.declare("q~")
    c.fill("q~", *(b"%d" % i for i in range(6)))
    tags = [c.hush(lambda: c.call(1, "basic.get", queue="q~")).delivery_tag for _ in range(4)]
    for tag in (3, 1, 4, 2): c.send(1, "basic.nack", delivery_tag=tag, requeue=True)
    time.sleep(0.3)
    got = []
    def take():
        while True:
            m = c.call(1, "basic.get", queue="q~", no_ack=True)
            if m.name != "basic.get-ok": return
            got.append((m.body.decode(), m.redelivered, c.coder.read_properties(m.props)))
    c.hush(take)
    for g in got: b.note(str(g))


@scenario
def cancel_notify(b):
    for capabilities in ({"consumer_cancel_notify": True}, {}):
        b.note(str(capabilities))
        c = b.login(capabilities=capabilities)
        c.declare("q~"); c.declare("other~")
        c.fill("q~", b"m")
        c.call(1, "basic.consume", queue="q~", consumer_tag="c")
        c.recv()
        c.call(1, "basic.consume", queue="other~", consumer_tag="d")
        d = b.login()
        d.call(1, "queue.delete", queue="q~")
        c.silence(0.4)
        b.note("what is out can be acknowledged")
        c.send(1, "basic.ack", delivery_tag=1)
        c.call(1, "basic.cancel", consumer_tag="c")
        c.hush(lambda: c.call(1, "queue.delete", queue="other~"))
        c.close()


@scenario
def delete_with_messages_out(b):
    c = b.login()
    c.declare("q~")
    c.fill("q~", b"a", b"b", b"c")
    c.call(1, "basic.get", queue="q~")
    c.call(1, "queue.purge", queue="q~")
    c.fill("q~", b"d")
    c.call(1, "queue.delete", queue="q~")
    c.send(1, "basic.ack", delivery_tag=1)
    c.call(1, "basic.qos")
    c.declare("q~")
    c.call(1, "basic.get", queue="q~")


# ---- transactions ----------------------------------------------------------------------------------

@scenario
def transactions(b):
    c = b.login()
    c.declare("q~")
    c.call(1, "tx.select")
    c.publish("", "q~", b"a"); c.publish("", "q~", b"b")
    c.call(1, "queue.declare", queue="q~", passive=True)
    c.call(1, "tx.commit")
    c.call(1, "queue.declare", queue="q~", passive=True)
    c.publish("", "q~", b"c")
    c.call(1, "tx.rollback")
    c.call(1, "queue.declare", queue="q~", passive=True)
    b.note("settling")
    c.call(1, "basic.get", queue="q~")
    c.send(1, "basic.ack", delivery_tag=1)
    c.call(1, "tx.rollback")
    c.send(1, "basic.ack", delivery_tag=1)
    c.call(1, "tx.commit")
    b.note("an ack twice in one transaction")
    c.call(1, "basic.get", queue="q~")
    c.send(1, "basic.reject", delivery_tag=2, requeue=True)
    c.call(1, "tx.commit")
    c.hush(lambda: time.sleep(0.3))
    c.call(1, "basic.get", queue="q~")
    c.send(1, "basic.ack", delivery_tag=3); c.send(1, "basic.ack", delivery_tag=3)
    c.until("channel.close")
    c.send(1, "channel.close-ok")
    b.note("a returned message comes before commit-ok")
    c.call(1, "channel.open")
    c.call(1, "tx.select")
    c.publish("", "nowhere~", b"r", mandatory=True)
    c.send(1, "tx.commit")
    c.b.lines.pop()
    c.until("tx.commit-ok")
    b.note("a missing exchange")
    c.publish("none~", "k", b"r")
    c.until("channel.close")
    c.send(1, "channel.close-ok")
    b.note("an empty commit")
    c.call(1, "channel.open"); c.call(1, "tx.select"); c.call(1, "tx.commit"); c.call(1, "tx.rollback")


# ---- permissions -----------------------------------------------------------------------------------

@scenario
def permissions(b):
    """A user who may configure, write and read only what is named for it."""
    c = b.login()
    for q in ("c", "w", "r", "cwr"): c.declare(f"{q}-q~")
    for x in ("c", "w", "r", "cwr"): c.hush(lambda: c.call(1, "exchange.declare", exchange=f"{x}-x~", type="direct", durable=True))
    user = "u" + b.coder.mark
    b.ctl("add_user", user, "secret")
    m = lambda label, *steps: mistake(b, label, *steps, response=b"\0%s\0secret" % user.encode())
    d = b.connect()
    b.note("no permission at all: the vhost is closed")
    d.hush(lambda: (d.start(response=b"\0%s\0secret" % user.encode()), d.send(0, "connection.tune-ok", channel_max=2047, frame_max=131072)))
    d.call(0, "connection.open", virtual_host="/")
    b.ctl("set_permissions", user, "^c.*", "^(w|cw).*", "^(r|cwr).*")
    for q in ("c", "w", "r", "cwr", "none"):
        m(f"declare {q}", durable(f"{q}-q~"))
        m(f"declare {q}, passive", ("queue.declare", dict(queue=f"{q}-q~", passive=True)))
        m(f"bind to {q}", ("queue.bind", dict(queue=f"{q}-q~", exchange="cwr-x~", routing_key="k")))
        m(f"unbind from {q}", ("queue.unbind", dict(queue=f"{q}-q~", exchange="cwr-x~", routing_key="k")))
        m(f"consume from {q}", ("basic.consume", dict(queue=f"{q}-q~", consumer_tag="c")))
        m(f"get from {q}", ("basic.get", dict(queue=f"{q}-q~")))
        m(f"purge {q}", ("queue.purge", dict(queue=f"{q}-q~")))
    for x in ("c", "w", "r", "cwr", "none"):
        m(f"declare exchange {x}", ("exchange.declare", dict(exchange=f"{x}-x~", type="direct", durable=True)))
        m(f"declare exchange {x}, passive", ("exchange.declare", dict(exchange=f"{x}-x~", type="direct", passive=True)))
        m(f"bind from {x}", ("queue.bind", dict(queue="cwr-q~", exchange=f"{x}-x~", routing_key="k")))
        m(f"publish to {x}", ("publish", dict(exchange=f"{x}-x~", routing_key="nowhere")))
        m(f"e2e from {x}", ("exchange.bind", dict(destination="cwr-x~", source=f"{x}-x~")))
        m(f"e2e to {x}", ("exchange.bind", dict(destination=f"{x}-x~", source="cwr-x~")))
    m("publish to the default exchange", ("publish", dict(routing_key="cwr-q~")))
    m("declare with an alternate exchange", ("exchange.declare", dict(exchange="c-new~", type="direct", durable=True, arguments={"alternate-exchange": "cwr-x~"})))
    m("declare with an alternate exchange it may not write to", ("exchange.declare", dict(exchange="cwr-new~", type="direct", durable=True, arguments={"alternate-exchange": "r-x~"})))
    m("declare with an alternate exchange, all allowed", ("exchange.declare", dict(exchange="cwr-new~", type="direct", durable=True, arguments={"alternate-exchange": "cwr-x~"})))
    m("declare an unknown type", ("exchange.declare", dict(exchange="none~", type="nonsense", durable=True)))
    m("declare the default", ("exchange.declare", dict(exchange="", type="direct", durable=True)))
    m("delete the default", ("exchange.delete", dict(exchange="")))
    m("delete a predeclared one", ("exchange.delete", dict(exchange="amq.direct")))
    m("delete an exchange", ("exchange.delete", dict(exchange="w-x~")))
    m("delete an exchange that is not there", ("exchange.delete", dict(exchange="none-x~")))
    m("delete a queue", ("queue.delete", dict(queue="w-q~")))
    m("delete a queue that is not there", ("queue.delete", dict(queue="none-q~")))
    m("bind to the default exchange", ("queue.bind", dict(queue="r-q~", exchange="")))
    m("consume from what is not there", ("basic.consume", dict(queue="none~", consumer_tag="c")))
    m("declare a reserved name", durable("amq.mine~"))
    m("declare a reserved name, passive", ("queue.declare", dict(queue="amq.mine~", passive=True)))
    m("declare a reserved exchange", ("exchange.declare", dict(exchange="amq.mine~", type="direct", durable=True)))
    m("declare a predeclared exchange", ("exchange.declare", dict(exchange="amq.direct", type="direct", durable=True)))
    m("e2e from the default exchange", ("exchange.bind", dict(destination="r-x~", source="")))
    m("e2e to the default exchange", ("exchange.bind", dict(destination="", source="c-x~")))
    m("a reserved name and a wrong type", ("queue.declare", dict(queue="amq.mine~", durable=True, arguments={"x-queue-type": "nonsense"})))
    m("default exchange, its type unknown", ("exchange.declare", dict(exchange="", type="nonsense", durable=True)))
    m("a missing exchange it may write to", ("publish", dict(exchange="w-none~", routing_key="k")))
    m("a missing exchange it may not write to", ("publish", dict(exchange="none~", routing_key="k")))
    m("a message rule and a missing permission", ("publish", dict(exchange="r-x~", routing_key="k", props={"expiration": "x"})))
    m("a message rule and a missing exchange", ("publish", dict(exchange="w-none~", routing_key="k", props={"expiration": "x"})))
    m("somebody else's user id", ("publish", dict(exchange="w-x~", routing_key="k", props={"user_id": "guest"})))
    m("its own user id", ("publish", dict(exchange="w-x~", routing_key="k", props={"user_id": "u~"})))
    m("arguments are wrong and it may not", ("queue.declare", dict(queue="none~", durable=True, arguments={"x-queue-type": "quorum", "x-max-length": -1})))
    b.ctl("delete_user", user)


# ---- time, and several of everything ---------------------------------------------------------------

@scenario
def heartbeats(b):
    b.note("a silent client is dropped, without a close")
    c = b.login(heartbeat=1)
    c.recv(timeout=6)
    b.note("one that sends heartbeats stays")
    c = b.login(heartbeat=1)
    for _ in range(8):
        c.push(c.frame(8, 0, b""))
        time.sleep(0.5)
    c.hush(lambda: c.call(1, "basic.qos"))
    b.note("open" if c.is_open else "closed")
    b.note("the server's own come while nothing else does")
    c = b.login(heartbeat=1)
    beats, end = 0, time.monotonic() + 2
    while time.monotonic() < end:
        f = c.read_frame(end)
        beats += f is not None and f[0] == 8
    b.note("yes" if beats in (2, 3, 4) else f"{beats} in 2 s")


@scenario
def recover_with_consumers(b):
    c = b.login(channels=2)
    c.declare("q~")
    c.fill("q~", b"a", b"b", b"c")
    c.call(1, "basic.qos", prefetch_count=2)
    c.call(1, "basic.consume", queue="q~", consumer_tag="c")
    c.recv(), c.recv()
    c.send(1, "basic.recover", requeue=True)
    got = [c.hush(c.recv) for _ in range(3)]
    b.note("recover-ok " + ("and " if any(m.name == "basic.recover-ok" for m in got) else "is missing; ") +
           " ".join(sorted(f"{m.body.decode()}:{int(m.redelivered)}" for m in got if m.name == "basic.deliver")))
    c.silence(0.3)
    b.note("an old tag is unknown")
    c.send(1, "basic.ack", delivery_tag=1)
    c.until("channel.close")


@scenario
def settling_on_the_wrong_channel(b):
    c = b.login(channels=2)
    c.declare("q~")
    c.fill("q~", b"a")
    c.call(1, "basic.get", queue="q~")
    c.send(2, "basic.ack", delivery_tag=1)
    c.until("channel.close")
    b.note("and of a delivery that wanted none")
    c.fill("q~", b"b")
    c.call(1, "basic.get", queue="q~", no_ack=True)
    c.send(1, "basic.ack", delivery_tag=2)
    c.until("channel.close")


@scenario
def several_queues(b):
    """One message to three queues, of which one is full: one nack; deliveries of two queues share tags."""
    c = b.login()
    for q in "ab": c.declare(f"{q}~")
    c.declare("full~", x_max_length=1, x_overflow="reject-publish")
    c.fill("full~", b"1", b"2", b"3")
    c.hush(lambda: [c.call(1, "queue.bind", queue=f"{q}~", exchange="amq.direct", routing_key="all~") for q in ("a", "b", "full")])
    c.call(1, "confirm.select")
    c.publish("amq.direct", "all~", b"m", mandatory=True)
    c.until("basic.ack", "basic.nack")
    c.publish("", "a~", b"n")
    c.until("basic.ack", "basic.nack")
    for q in ("a", "b", "a", "b"): c.call(1, "basic.get", queue=f"{q}~")
    b.note("a multiple ack goes over queues")
    c.send(1, "basic.ack", delivery_tag=2, multiple=True)
    c.send(1, "basic.nack", delivery_tag=3, multiple=True, requeue=True)
    time.sleep(0.25)
    for q in ("a", "b"): c.call(1, "queue.declare", queue=f"{q}~", passive=True)
    for q in ("a", "b"): c.call(1, "queue.delete", queue=f"{q}~")


@scenario
def limits_and_what_is_out(b):
    c = b.login()
    c.declare("q~", x_max_length=2)
    c.fill("q~", b"1", b"2")
    c.call(1, "basic.get", queue="q~")
    c.fill("q~", b"3", b"4")
    time.sleep(0.2)
    c.call(1, "basic.get", queue="q~"), c.call(1, "basic.get", queue="q~"), c.call(1, "basic.get", queue="q~")
    b.note("coming back to a full queue")
    c.declare("r~", x_max_length=2)
    c.fill("r~", b"1", b"2")
    c.call(1, "basic.get", queue="r~")
    c.fill("r~", b"3", b"4")
    c.send(1, "basic.nack", delivery_tag=4, requeue=True)
    time.sleep(0.3)
    for _ in range(4): c.call(1, "basic.get", queue="r~", no_ack=True)
    b.note("0 holds nothing")
    c.declare("zero~", x_max_length=0)
    c.fill("zero~", b"1")
    time.sleep(0.2)
    c.call(1, "basic.get", queue="zero~")


@scenario
def declare_over_and_over(b):
    c = b.login()
    for _ in range(3):
        c.declare("q~")
        c.fill("q~", b"m")
        c.call(1, "basic.consume", queue="q~", consumer_tag="c", no_ack=True)
        c.recv()
        c.call(1, "queue.delete", queue="q~")
        c.silence(0.1)
        c.call(1, "basic.cancel", consumer_tag="c")


@scenario
def default_delivery_limit(b):
    c = b.login()
    c.declare("q~")
    c.fill("q~", b"m")
    c.call(1, "basic.consume", queue="q~", consumer_tag="c")
    count = 0
    def run():
        nonlocal count
        while True:
            m = c.recv(timeout=3, is_silence_fine=True)
            if m is None: return
            count += 1
            c.send(1, "basic.reject", delivery_tag=m.delivery_tag, requeue=True)
    c.hush(run)
    b.note(f"{count} deliveries")


@scenario
def header_of_several_kilobytes(b):
    c = b.login()
    c.declare("q~")
    c.hush(lambda: c.call(1, "confirm.select"))
    c.publish("", "q~", b"m", {"headers": {"b": "x" * 20000, "a": [{"k": ["y" * 1000]}] * 5}})
    c.b.lines.pop()
    c.until("basic.ack")
    m = c.hush(lambda: c.call(1, "basic.get", queue="q~", no_ack=True))
    b.note(f"{len(m.props)} octets of properties")
    b.note("a header larger than frame_max")
    d = b.login(frame_max=8192)
    d.send(1, "basic.publish", routing_key="q~")
    d.raw(d.frame(2, 1, struct.pack(">HHQ", 60, 0, 0) + d.coder.properties({"headers": {"a": "x" * 9000}})), "9000 octets")
    d.recv()
    b.note("32 tables in each other")
    nested = {}
    for _ in range(32): nested = {"t": nested}
    c.hush(lambda: c.publish("", "q~", b"m", {"headers": nested}))
    c.until("basic.ack")
    m = c.hush(lambda: c.call(1, "basic.get", queue="q~", no_ack=True))
    b.note(f"{len(m.props)} octets of properties")


@scenario
def confirms_of_deleted_queues(b):
    c = b.login(channels=2)
    c.declare("q~")
    c.call(1, "confirm.select")
    c.publish("", "q~", b"1")
    c.until("basic.ack")
    c.call(2, "queue.delete", queue="q~")
    c.publish("", "q~", b"2")
    c.until("basic.ack")
    c.publish("", "q~", b"3", mandatory=True)
    c.until("basic.ack")
    c.declare("q~")
    c.publish("", "q~", b"4")
    c.until("basic.ack")
    c.call(1, "basic.get", queue="q~", no_ack=True)
