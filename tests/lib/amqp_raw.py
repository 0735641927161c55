# SPDX-License-Identifier: Apache-2.0
"""AMQP 0-9-1 with nothing hidden: frames as bytes, every method with every field, and a transcript of all of it.

A Broker is a port, a transcript and a mark. Names in scenarios contain "~", which stands for the mark on the wire
(different in each run) and for "~" again in the transcript, so that transcripts of different runs and brokers compare.
"""
import re, socket, struct, time

SPEC = """
10.10 connection.start version_major:o version_minor:o server_properties:t mechanisms:S locales:S
10.11 connection.start-ok client_properties:t mechanism:s response:S locale:s
10.20 connection.secure challenge:S
10.21 connection.secure-ok response:S
10.30 connection.tune channel_max:H frame_max:I heartbeat:H
10.31 connection.tune-ok channel_max:H frame_max:I heartbeat:H
10.40 connection.open virtual_host:s capabilities:s insist:b
10.41 connection.open-ok known_hosts:s
10.50 connection.close reply_code:H reply_text:s class_id:H method_id:H
10.51 connection.close-ok
10.60 connection.blocked reason:s
10.61 connection.unblocked
10.70 connection.update-secret new_secret:S reason:s
10.71 connection.update-secret-ok
20.10 channel.open out_of_band:s
20.11 channel.open-ok channel_id:S
20.20 channel.flow active:b
20.21 channel.flow-ok active:b
20.40 channel.close reply_code:H reply_text:s class_id:H method_id:H
20.41 channel.close-ok
30.10 access.request realm:s exclusive:b passive:b active:b write:b read:b
30.11 access.request-ok ticket:H
40.10 exchange.declare ticket:H exchange:s type:s passive:b durable:b auto_delete:b internal:b nowait:b arguments:t
40.11 exchange.declare-ok
40.20 exchange.delete ticket:H exchange:s if_unused:b nowait:b
40.21 exchange.delete-ok
40.30 exchange.bind ticket:H destination:s source:s routing_key:s nowait:b arguments:t
40.31 exchange.bind-ok
40.40 exchange.unbind ticket:H destination:s source:s routing_key:s nowait:b arguments:t
40.51 exchange.unbind-ok
50.10 queue.declare ticket:H queue:s passive:b durable:b exclusive:b auto_delete:b nowait:b arguments:t
50.11 queue.declare-ok queue:s message_count:I consumer_count:I
50.20 queue.bind ticket:H queue:s exchange:s routing_key:s nowait:b arguments:t
50.21 queue.bind-ok
50.30 queue.purge ticket:H queue:s nowait:b
50.31 queue.purge-ok message_count:I
50.40 queue.delete ticket:H queue:s if_unused:b if_empty:b nowait:b
50.41 queue.delete-ok message_count:I
50.50 queue.unbind ticket:H queue:s exchange:s routing_key:s arguments:t
50.51 queue.unbind-ok
60.10 basic.qos prefetch_size:I prefetch_count:H global:b
60.11 basic.qos-ok
60.20 basic.consume ticket:H queue:s consumer_tag:s no_local:b no_ack:b exclusive:b nowait:b arguments:t
60.21 basic.consume-ok consumer_tag:s
60.30 basic.cancel consumer_tag:s nowait:b
60.31 basic.cancel-ok consumer_tag:s
60.40 basic.publish ticket:H exchange:s routing_key:s mandatory:b immediate:b
60.50 basic.return reply_code:H reply_text:s exchange:s routing_key:s
60.60 basic.deliver consumer_tag:s delivery_tag:Q redelivered:b exchange:s routing_key:s
60.70 basic.get ticket:H queue:s no_ack:b
60.71 basic.get-ok delivery_tag:Q redelivered:b exchange:s routing_key:s message_count:I
60.72 basic.get-empty cluster_id:s
60.80 basic.ack delivery_tag:Q multiple:b
60.90 basic.reject delivery_tag:Q requeue:b
60.100 basic.recover-async requeue:b
60.110 basic.recover requeue:b
60.111 basic.recover-ok
60.120 basic.nack delivery_tag:Q multiple:b requeue:b
60.200 basic.credit ticket:H consumer_tag:s credit:I drain:b
85.10 confirm.select nowait:b
85.11 confirm.select-ok
90.10 tx.select
90.11 tx.select-ok
90.20 tx.commit
90.21 tx.commit-ok
90.30 tx.rollback
90.31 tx.rollback-ok
"""
BY_NAME, BY_ID = {}, {}
for line in SPEC.split("\n"):
    if line:
        number, name, *fields = line.split(" ")
        entry = (name, tuple(map(int, number.split("."))), [tuple(f.split(":")) for f in fields])
        BY_NAME[name] = BY_ID[entry[1]] = entry
PROPERTIES = [("content_type", "s"), ("content_encoding", "s"), ("headers", "t"), ("delivery_mode", "o"), ("priority", "o"),
              ("correlation_id", "s"), ("reply_to", "s"), ("expiration", "s"), ("message_id", "s"), ("timestamp", "Q"),
              ("type", "s"), ("user_id", "s"), ("app_id", "s"), ("cluster_id", "s")]
CONTENT = ("basic.return", "basic.deliver", "basic.get-ok")
FIXED = {"t": "?", "b": "b", "B": "B", "s": "h", "u": "H", "I": "i", "i": "I", "l": "q", "L": "q", "f": "f", "d": "d", "T": "Q"}
GUEST = b"\0guest\0guest"
HEADER = b"AMQP\0\0\x09\x01"


class Coder:
    """Values to bytes and back; `mark` is what "~" is on the wire."""

    def __init__(self, mark):
        self.mark = mark

    def text(self, v):
        return v.replace("~", self.mark).encode() if isinstance(v, str) else v

    def value(self, v):
        """A table value: (letter, value), or a Python value with the letter clients usually choose."""
        if not isinstance(v, tuple):
            v = (("t", v) if isinstance(v, bool) else ("I", v) if isinstance(v, int) else ("S", v) if isinstance(v, (str, bytes)) else
                 ("F", v) if isinstance(v, dict) else ("A", v) if isinstance(v, list) else ("d", v) if isinstance(v, float) else ("V", None))
        letter, v = v
        out = letter.encode()
        if letter in FIXED: return out + struct.pack(">" + FIXED[letter], v)
        if letter in "Sx":
            b = self.text(v)
            return out + struct.pack(">I", len(b)) + b
        if letter == "F": return out + self.table(v)
        if letter == "A":
            b = b"".join(map(self.value, v))
            return out + struct.pack(">I", len(b)) + b
        if letter == "D": return out + struct.pack(">BI", *v)
        if letter == "V": return out
        return out + (v or b"")  # A letter that does not exist, with whatever follows.

    def table(self, t):
        if isinstance(t, bytes): return t
        b = b"".join(struct.pack("B", len(self.text(k))) + self.text(k) + self.value(v) for k, v in (t.items() if isinstance(t, dict) else t))
        return struct.pack(">I", len(b)) + b

    def field(self, kind, v):
        if kind == "o": return struct.pack("B", v or 0)
        if kind in "HIQ": return struct.pack(">" + kind, v or 0)
        if kind == "t": return self.table(v if v is not None else {})
        b = self.text(v if v is not None else "")
        return struct.pack("B" if kind == "s" else ">I", len(b)) + b

    def method(self, name, args):
        _, number, fields = BY_NAME[name]
        args = dict(args)
        out, bits, used = struct.pack(">HH", *number), 0, 0
        for field, kind in fields:
            v = args.pop(field, None)
            if kind == "b":
                bits |= bool(v) << used
                used += 1
                continue
            if used:
                out, bits, used = out + bytes([bits]), 0, 0
            out += self.field(kind, v)
        if args: raise KeyError(f"{name} has no {args}")
        return out + (bytes([bits]) if used else b"")

    def properties(self, props):
        flags, out = 0, b""
        for i, (name, kind) in enumerate(PROPERTIES):
            if name in props:
                flags |= 0x8000 >> i
                out += self.field(kind, props[name])
        return struct.pack(">H", flags) + out

    # ---- back ----

    def show(self, b):
        s = b.decode("utf-8", "backslashreplace") if isinstance(b, bytes) else b
        s = re.sub(r"\n +", "", s)  # RabbitMQ breaks long terms into lines.
        s = s.replace(self.mark, "~") if self.mark else s
        s = re.sub(r"amq\.ctag-[-\w]{22}", "amq.ctag-*", s)
        s = re.sub(r"amq\.gen-[-\w]{22}", "amq.gen-*", s)
        return repr(s)

    def read_value(self, b, at):
        letter = chr(b[at]); at += 1
        if letter in FIXED:
            n = struct.calcsize(">" + FIXED[letter])
            return f"{letter}:{struct.unpack_from('>' + FIXED[letter], b, at)[0]}", at + n
        if letter == "V": return "V", at
        if letter == "D": return "D:%d/%d" % struct.unpack_from(">BI", b, at), at + 5
        n, = struct.unpack_from(">I", b, at); at += 4
        if letter in "Sx": return f"{letter}:{self.show(b[at:at + n])}", at + n
        if letter == "F": return "F:" + self.read_table(b[at:at + n]), at + n
        end, items = at + n, []
        while at < end:
            v, at = self.read_value(b, at)
            items.append(v)
        return "A:[" + ", ".join(items) + "]", end

    def read_table(self, b):
        at, items = 0, []
        while at < len(b):
            n = b[at]
            key = b[at + 1:at + 1 + n].decode("utf-8", "backslashreplace")
            v, at = self.read_value(b, at + 1 + n)
            items.append(f"{key}={v}")
        return "{" + ", ".join(items) + "}"

    def read_field(self, kind, b, at):
        if kind == "o": return b[at], str(b[at]), at + 1
        if kind in "HIQ":
            v, = struct.unpack_from(">" + kind, b, at)
            return v, str(v), at + struct.calcsize(">" + kind)
        n = b[at] if kind == "s" else struct.unpack_from(">I", b, at)[0]
        at += 1 if kind == "s" else 4
        raw = b[at:at + n]
        return raw, self.read_table(raw) if kind == "t" else self.show(raw), at + n

    def read_method(self, b):
        number = struct.unpack_from(">HH", b)
        if number not in BY_ID: return f"{number[0]}.{number[1]}", {}, b[4:].hex()
        name, _, fields = BY_ID[number]
        at, used, values, texts = 4, 0, {}, []
        for field, kind in fields:
            if kind == "b":
                values[field] = bool(b[at] >> used & 1)
                texts.append(f"{field}={int(values[field])}")
                used += 1
                continue
            if used: at, used = at + 1, 0
            values[field], text, at = self.read_field(kind, b, at)
            texts.append(f"{field}={text}")
        return name, values, " ".join(texts)

    def read_properties(self, b):
        flags, = struct.unpack_from(">H", b)
        at, texts = 2, []
        for i, (name, kind) in enumerate(PROPERTIES):
            if flags & 0x8000 >> i:
                _, text, at = self.read_field(kind, b, at)
                texts.append(f"{name}={text}")
        return " ".join(texts) + (f" flags={flags:#06x}" if flags & 3 else "") + (f" trailing={b[at:].hex()}" if at < len(b) else "")


class Frame:
    def __init__(self, name, channel, values, props=None, body=None):
        self.name, self.channel, self.values, self.props, self.body = name, channel, values, props, body

    def __getattr__(self, name):
        return self.values[name]


class Connection:
    """One socket. Everything sent and received goes into the broker's transcript."""

    def __init__(self, broker, timeout=8):
        self.b, self.coder, self.timeout = broker, broker.coder, timeout
        self.s = socket.create_connection(("127.0.0.1", broker.port), timeout=timeout)
        self.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buf, self.is_open, self.frame_max, self.sent_at = b"", True, 131072, time.monotonic()
        self.is_quiet = False

    def log(self, line):
        if not self.is_quiet: self.b.lines.append(line)

    # ---- sending ----

    def raw(self, data, label=None):
        self.log(f"> {label or 'bytes ' + data.hex(' ')}")
        self.push(data)

    def push(self, data):
        self.sent_at = time.monotonic()
        try: self.s.sendall(data)
        except OSError: pass  # Seen when reading.

    def frame(self, kind, channel, payload, size=None, end=0xCE):
        return struct.pack(">BHI", kind, channel, len(payload) if size is None else size) + payload + bytes([end])

    def send(self, channel, name, **args):
        payload = self.coder.method(name, args)
        self.log(f"> {channel} {name}" + "".join(f" {k}={self.shown(v)}" for k, v in args.items()))
        self.push(self.frame(1, channel, payload))

    def shown(self, v):
        return self.coder.show(v) if isinstance(v, (str, bytes)) else str(v)

    def content(self, props, body, split=None, **more):
        head = struct.pack(">HHQ", more.get("class_id", 60), more.get("weight", 0), more.get("size", len(body)))
        out = self.frame(2, more.get("channel", 1), head + (props if isinstance(props, bytes) else self.coder.properties(props)))
        step = split or self.frame_max - 8
        for at in range(0, len(body), step):
            out += self.frame(3, more.get("channel", 1), body[at:at + step])
        self.log("> content " + (f"bytes {props.hex(' ')}" if isinstance(props, bytes) else str(props)) + f" {self.short(body)}" +
                 "".join(f" {k}={v}" for k, v in more.items()))
        self.push(out)

    def publish(self, exchange="", routing_key="", body=b"m", props=None, channel=1, mandatory=False, immediate=False):
        self.send(channel, "basic.publish", exchange=exchange, routing_key=routing_key, **({"mandatory": True} if mandatory else {}),
                  **({"immediate": True} if immediate else {}))
        self.content(props if props is not None else {}, body, channel=channel)

    def short(self, body):
        return self.coder.show(body) if len(body) < 60 else f"{len(body)} octets"

    # ---- receiving ----

    def more(self, until):
        left = until - time.monotonic()
        if left <= 0: return False
        self.s.settimeout(left)
        try: data = self.s.recv(1 << 20)
        except (TimeoutError, socket.timeout): return False
        except OSError: data = b""
        if not data: self.is_open = False
        self.buf += data
        return bool(data)

    def read_frame(self, until):
        while True:
            if self.buf[:4] == b"AMQP" and len(self.buf) >= 8:
                head, self.buf = self.buf[:8], self.buf[8:]
                return ("header", 0, head)
            if len(self.buf) >= 7 and self.buf[:4] != b"AMQP":
                kind, channel, size = struct.unpack_from(">BHI", self.buf)
                if len(self.buf) >= 8 + size:
                    payload, end = self.buf[7:7 + size], self.buf[7 + size]
                    self.buf = self.buf[8 + size:]
                    assert end == 0xCE
                    return (kind, channel, payload)
            if not self.more(until): return None

    def recv(self, timeout=None, is_silence_fine=False):
        """The next method (with its content), or None at the end of the connection or of the time."""
        until = time.monotonic() + (timeout or self.timeout)
        while True:
            f = self.read_frame(until)
            if f is None:
                if not self.is_open:
                    is_slow = time.monotonic() - self.sent_at > 1.5
                    self.log("< end of connection" + (" after a while" if is_slow else ""))
                elif not is_silence_fine:
                    self.log("< nothing")
                return None
            kind, channel, payload = f
            if kind == "header":
                self.log(f"< header {payload.hex(' ')}")
                return Frame("header", 0, {})
            if kind == 8: continue
            if kind != 1:
                self.log(f"< {channel} frame of type {kind}")
                continue
            name, values, text = self.coder.read_method(payload)
            text = f"< {channel} {name} {text}".rstrip()
            m = Frame(name, channel, values)
            if name in CONTENT:
                m.props, m.body, sizes = self.read_content(until)
                text += f" | {self.coder.read_properties(m.props)} | {self.short(m.body)}"
                if len(sizes) > 1: text += f" in frames of {sizes}"
            self.log(text)
            return m

    def read_content(self, until):
        kind, _, payload = self.read_frame(until)
        assert kind == 2
        _, _, size = struct.unpack_from(">HHQ", payload)
        body, sizes = b"", []
        while len(body) < size:
            kind, _, part = self.read_frame(until)
            assert kind == 3
            body, sizes = body + part, sizes + [len(part)]
        return payload[12:], body, sizes

    def until(self, *names):
        """Reads up to a method of one of these names; None if the connection ends."""
        while True:
            m = self.recv()
            if m is None or m.name in names: return m

    def call(self, channel, name, **args):
        self.send(channel, name, **args)
        return self.recv()

    def silence(self, seconds=0.3):
        """Logs whatever comes in this time."""
        end = time.monotonic() + seconds
        while self.is_open and time.monotonic() < end:
            self.recv(max(0.01, end - time.monotonic()), is_silence_fine=True)

    # ---- what most scenarios need ----

    def start(self, client_properties=None, mechanism="PLAIN", response=GUEST, locale="en_US"):
        self.raw(HEADER, "header")
        self.recv()
        self.send(0, "connection.start-ok", client_properties=client_properties or {}, mechanism=mechanism, response=response, locale=locale)
        return self.recv()

    def login(self, capabilities=None, frame_max=131072, channel_max=2047, heartbeat=0, vhost="/", channels=1, response=GUEST):
        """The whole handshake, outside of the transcript."""
        was, self.is_quiet = self.is_quiet, True
        self.start({"capabilities": capabilities or {}, "connection_name": "raw"}, response=response)
        self.send(0, "connection.tune-ok", channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat)
        self.frame_max = frame_max or 131072
        m = self.call(0, "connection.open", virtual_host=vhost)
        for ch in range(1, channels + 1): self.call(ch, "channel.open")
        self.is_quiet = was
        assert m and m.name == "connection.open-ok", m and m.values
        return self

    def hush(self, fn):
        was, self.is_quiet = self.is_quiet, True
        try: return fn()
        finally: self.is_quiet = was

    def declare(self, queue, channel=1, **arguments):
        self.hush(lambda: self.call(channel, "queue.declare", queue=queue, durable=True,
                                    arguments={"x-queue-type": "quorum", **{k.replace("_", "-"): v for k, v in arguments.items()}}))

    def fill(self, queue, *bodies, props=None):
        """Puts messages into a queue, on a connection of its own, confirmed one by one."""
        c = Connection(self.b).login()
        c.is_quiet = True
        c.call(1, "confirm.select")
        for body in bodies:
            c.publish("", queue, body, props)
            c.until("basic.ack", "basic.nack")
        c.close()

    def close(self):
        def run():
            if self.is_open:
                self.send(0, "connection.close", reply_code=200, reply_text="bye")
                self.until("connection.close-ok")
            self.s.close()
        self.hush(run)

    def drop(self):
        self.s.close()
        self.is_open = False


class Broker:
    def __init__(self, port, mark, ctl=None):
        self.port, self.coder, self.lines, self.open, self.ctl = port, Coder(mark), [], [], ctl

    def connect(self, **more):
        c = Connection(self, **more)
        self.open.append(c)
        return c

    def login(self, **more):
        return self.connect().login(**more)

    def note(self, text):
        self.lines.append(f"-- {text}")

    def end(self):
        for c in self.open:
            try: c.s.close()
            except OSError: pass
