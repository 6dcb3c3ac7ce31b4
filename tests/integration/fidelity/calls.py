"""The calls: everything that Celery lets one say in a task call, one way per name.

Each takes a context (see `twins.context`) and makes its call. `REJECTED` are the calls that Celery
refuses; there the two sides must raise the same and leave nothing behind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any
from uuid import UUID

from celery import chain, chord, group
from celery.app import base
from celery.canvas import StampingVisitor
from django.utils.translation import gettext_lazy
from kombu import Exchange, Queue, binding, compression
from kombu.common import Broadcast

from tests.integration.fidelity.twins import NOW
from tests.integration.fidelity.wire import Topic

if TYPE_CHECKING:
    from collections.abc import Callable

COMPRESSIONS = {name.rpartition("-")[2] for name in compression.encoders()} | {"zlib"}
BOTH = ("rabbitmq", "redis")
RABBITMQ = ("rabbitmq",)
REDIS = ("redis",)
DELAYED = Topic("celery_delayed_27", key="#.delayed-{prefix}")


@dataclass(frozen=True)
class Call:
    """One call; `conf` is for the apps, `taps` is what must exist at the broker."""

    run: Callable[[Any], Any]
    conf: dict[str, Any] = field(default_factory=dict)
    taps: tuple[Topic, ...] = ()
    brokers: tuple[str, ...] = BOTH
    native: bool = False
    """Whether Celery leaves delays to the broker: see `native_delay`."""
    expect: int | None = 1
    """How many messages arrive. None: at least one."""


def echo(*args: Any, **kwargs: Any) -> Call:
    """A call whose arguments are what matters."""
    return Call(lambda c: c.echo.apply_async(args, kwargs))


def options(conf: dict[str, Any] | None = None, /, **given: Any) -> Call:
    """A call whose options are what matters."""
    return Call(lambda c: c.add.apply_async((1,), {"y": 2}, **given), conf or {})


def queued(make: Callable[[str], Any]) -> Call:
    return Call(lambda c: c.add.apply_async((1, 2), queue=make(c.q)))


class Jsonable:
    def __json__(self) -> Any:
        return {"is": "jsonable"}

    def __repr__(self) -> str:
        return "Jsonable()"


class Visitor(StampingVisitor):
    def on_signature(self, sig: Any, **headers: Any) -> dict[str, Any]:
        return {"monitoring_id": "m-1", "tags": ["a", "b"]}


PAYLOADS = {
    "delay": Call(lambda c: c.add.delay(1, y=2)),
    "no arguments": Call(lambda c: c.echo.delay()),
    "args as a list": Call(lambda c: c.add.apply_async([1, 2])),
    "args None": Call(lambda c: c.echo.apply_async(None, None)),
    "datetime": echo(datetime(2020, 1, 2, 3, 4, 5, 678), NOW),
    "datetime with offset": echo(datetime(2020, 1, 2, tzinfo=timezone(timedelta(hours=5.5)))),
    "date": echo(date(2020, 1, 2)),
    "time": echo(time(1, 2, 3, 4)),
    "decimal": echo(Decimal("1.10"), x=Decimal("NaN")),
    "uuid": echo(UUID(int=5), x=[UUID(int=2**100)]),
    "bytes": echo(b"text", x=b"\xff\x00"),
    "lazy string": Call(lambda c: c.echo.delay(gettext_lazy("yes"), x=gettext_lazy("no"))),
    "__json__": Call(lambda c: c.echo.delay(Jsonable())),
    "unicode": echo("Grüße, 世界 🐇", x="\u2028\u2029\ufeff"),
    "NUL": echo("a\x00b", k="\x00"),
    "lone surrogates": echo("\ud800", x="a\udfffb"),
    "control characters": echo("".join(map(chr, range(32))), x="\x7f\x80\x9f"),
    "infinity": echo(float("inf"), x=float("-inf")),
    "nan": echo(float("nan")),
    "floats": echo(1e22, 1e-7, -0.0, 0.1 + 0.2, 5e-324, 1.7976931348623157e308),
    "2**80": echo(2**80, -(2**80), 10**4000),
    "dict order": echo({"z": 1, "a": 2, "m": {"b": 1, "a": 2}}, z=1, a=2),
    "keys that are not strings": echo({2: "a", 2.5: "b", None: "c", True: "d"}),
    "keys that collide in JSON": echo({1: "a", "1": "b"}),
    "nested tuples": echo((1, (2, (3, ()))), x=((),)),
    "typed dict that looks like kombu's": echo({"__type__": "unknown", "__value__": 1}),
    "quotes and brackets": echo('"], [', x='}, "callbacks": null'),
    "deep nesting": Call(lambda c: c.echo.delay(_nested(200))),
    "megabyte": Call(lambda c: c.echo.delay("x" * 1_000_000)),
    "empty containers": echo([], {}, "", 0, None, False, ()),
    "pickle": Call(lambda c: c.echo.apply_async(({1, 2}, 3j), {"x": b"\x00"}, serializer="pickle")),
    "pickle of a set": options(serializer="pickle"),
    "msgpack": Call(lambda c: c.echo.apply_async((b"\xff", "ä"), {"x": 1.5}, serializer="msgpack")),
    "yaml": Call(lambda c: c.yaml.delay({"a": [1, "ä", None], "d": date(2020, 1, 1)})),
    "gzip": options(compression="gzip"),
    **{
        name: options(compression=name)
        for name in ("bzip2", "zlib", "lzma", "zstd", "brotli")
        if name in COMPRESSIONS
    },
    "pickle and zlib": options(serializer="pickle", compression="zlib"),
    "task_serializer pickle": options({"task_serializer": "pickle"}),
    "task_compression": options({"task_compression": "gzip"}),
}

OPTIONS = {
    "task_id": options(task_id="my-own-id"),
    "headers": options(headers={"a": 1, "b": "ä", "c": None, "d": [1, "x"], "e": {"f": True}}),
    "headers of every type": options(
        headers={
            "bool": False, "int": 2**31, "negative": -(2**31), "big": 2**62, "float": 1.5,
            "zero": 0.0, "empty": "", "text": "\x00\ud800",
            "none": None, "list": [[], [1, [2]]], "dict": {}, "nested": {"a": {"b": [None]}},
            "tuple": (1, 2), "long": "x" * 70_000, "decimal": Decimal("1.25"),
            "datetime": NOW, "naive": datetime(2020, 1, 1), "bytes": b"\xff\x00", "no bytes": b"",
        }
    ),
    "headers that are no numbers": Call(  # RabbitMQ closes the connection over these
        lambda c: c.add.apply_async((1,), headers={"a": float("nan"), "b": float("-inf")}),
        brokers=REDIS,
    ),
    "native header values in depth": options(headers={"a": {"b": [b"x", {"c": Decimal(1)}]}}),
    "header like our own mark": options(headers={"a": {"\x00": "bytes", "b": 1}, "\x00": "x"}),
    "header names": options(headers={"": 1, "ä" * 60: 2, "a b": 3, "x" * 255: 4}),
    "headers that Celery sets": options(headers={"task": "other", "lang": "c", "id": "x"}),
    "priority": options(priority=7),
    "priority 0": options(priority=0),
    "priority None": options(priority=None),
    "priority 255": options(priority=255),
    "default priority": options({"task_default_priority": 4}),
    "delivery_mode": options(delivery_mode="transient"),
    "delivery_mode 1": options(delivery_mode=1),
    "default delivery mode": options({"task_default_delivery_mode": "transient"}),
    "reply_to": options(reply_to="answers"),
    "correlation_id": options(correlation_id="other"),
    "message properties": options(message_id="m", type="t", app_id="a", cluster_id="c"),
    "user_id": Call(lambda c: c.add.apply_async((1,), user_id="guest")),
    "timestamp property": Call(
        lambda c: c.add.apply_async((1,), timestamp=int(NOW.timestamp())), brokers=RABBITMQ
    ),
    "expires in seconds": options(expires=60),
    "expires as a float": options(expires=1.0015),
    "expires as a time": options(expires=NOW + timedelta(minutes=5)),
    "expires as a naive time": options(expires=datetime(2031, 5, 6, 8)),
    "expires in another zone": options(
        {"timezone": "Asia/Kolkata", "enable_utc": False}, expires=30
    ),
    "expires as a text": options(expires=(NOW + timedelta(hours=1)).isoformat()),
    "expires None over a task's": Call(lambda c: c.configured.apply_async((1,), expires=None)),
    "expiration": options(expiration=12.5),
    "eta": options(eta=NOW + timedelta(hours=1)),
    "eta as a text": options(eta=(NOW + timedelta(hours=1)).isoformat()),
    "eta naive": options(eta=datetime(2031, 5, 6, 8)),
    "eta in the past": options(eta=NOW - timedelta(hours=1)),
    "countdown": options(countdown=90),
    "countdown as a float": options(countdown=0.25),
    "countdown and expires": options(countdown=10, expires=20),
    "shadow": options(shadow="seen.as"),
    "time limits": options(time_limit=10, soft_time_limit=5.5),
    "ignore_result": options(ignore_result=True),
    "argsrepr": options(argsrepr="(…)", kwargsrepr="{hidden}"),
    "argsrepr with NUL": options(serializer="pickle", argsrepr="\x00\ud800", kwargsrepr="🐇"),
    "root and parent": options(root_id="r", parent_id="p"),
    "group ids": options(group_id="g", group_index=3),
    "retries": options(retries=2),
    "mandatory": options(mandatory=True),
    "retry policy": options(retry=True, retry_policy={"max_retries": 1}),
    "no retry": options(retry=False),
    "unknown option": options(something="else"),
    "unknown option that is no JSON": Call(
        lambda c: c.add.apply_async((1,), something=object()), brokers=RABBITMQ
    ),
    "add_to_parent": options(add_to_parent=False),
    "task with options": Call(lambda c: c.configured.delay(1)),
    "task with options, by name": Call(lambda c: c.app.send_task("fidelity.configured", (1,))),
    "bound task": Call(lambda c: c.bound.delay(1)),
    "unregistered name": Call(lambda c: c.app.send_task("some.where.else", (1,), {"a": 2})),
    "all by position": Call(
        lambda c: c.app.send_task("some.where", (1,), {"a": 2}, 10, None, "an-id")
    ),
    "all by name": Call(lambda c: c.app.send_task(name="some.where", args=(1,), task_id="an-id")),
    "weird task name": Call(lambda c: c.app.send_task("x" * 300 + "\x00\ud800🐇", (1,))),
    "empty task name": Call(lambda c: c.app.send_task("", (1,))),
    "protocol 1": options({"task_protocol": 1}, headers={"a": 1}),
    "protocol 1 with times": options({"task_protocol": 1}, countdown=5, expires=50),
    "protocol 1 with callbacks": Call(
        lambda c: c.add.apply_async((1,), link=c.add.s(2)), {"task_protocol": 1}
    ),
    "task-sent event": Call(
        lambda c: c.add.delay(1),
        {"task_send_sent_event": True}, taps=(Topic("{prefix}.ev", key="task.#"),), expect=2,
    ),
    "task-sent event in msgpack": Call(
        lambda c: c.add.delay(1),
        {"task_send_sent_event": True, "event_serializer": "msgpack"},
        taps=(Topic("{prefix}.ev", key="task.#"),), brokers=RABBITMQ, expect=None,
    ),
    "rpc backend": Call(
        lambda c: c.add.delay(1), {"result_backend": "rpc://"}, brokers=RABBITMQ
    ),
    "utc off": options({"enable_utc": False, "timezone": "America/New_York"}, countdown=5),
}  # fmt: skip

ROUTING = {
    "queue by name": queued(lambda q: q + "named"),
    "queue by name, created": Call(
        lambda c: c.add.apply_async((1,), queue=c.q + "made"),
        {"task_default_exchange_type": "topic"},
    ),
    "Queue object": queued(lambda q: Queue(q + "obj")),
    "Queue with arguments": queued(
        lambda q: Queue(
            q + "args", Exchange(q + "ex", type="topic"), routing_key="a.#",
            queue_arguments={"x-max-length": 100, "x-overflow": "reject-publish"},
            binding_arguments={"k": "v"}, max_priority=5, expires=60.5, message_ttl=30,
            max_length_bytes=10**6, durable=False, auto_delete=True,
        )
    ),
    "Queue with a transient exchange": queued(
        lambda q: Queue(
            q + "transient",
            Exchange(q + "tx", durable=False, delivery_mode="transient", auto_delete=True),
            routing_key=q + "transient",
        )
    ),
    "Queue with bindings": queued(
        lambda q: Queue(q + "bound", [binding(Exchange(q + "b", type="topic"), "one.#")])
    ),
    "Queue not declared": Call(
        lambda c: c.add.apply_async(
            (1,), queue=Queue(c.q + "nd", Exchange(c.q + "tap"), "k", no_declare=True)
        ),
        taps=(Topic("{prefix}.tap", "direct", "k"),), brokers=REDIS, expect=None,
    ),
    "topic exchange": queued(
        lambda q: Queue(q + "topic", Exchange(q + "t", type="topic"), routing_key="t.news")
    ),
    "topic exchange, other key": Call(
        lambda c: c.add.apply_async(
            (1,), queue=Queue(c.q + "o", Exchange(c.q + "t", type="topic"), routing_key="n.#"),
            exchange=c.q + "t", routing_key="n.sport",
        )
    ),
    "fanout queue": Call(
        lambda c: c.add.apply_async((1,), queue=Queue(c.q + "f", Exchange(c.q + "fx", "fanout"))),
        brokers=RABBITMQ,
    ),
    "headers exchange": Call(
        lambda c: c.add.apply_async(
            (1,), headers={"kind": "x"},
            queue=Queue(
                c.q + "h", Exchange(c.q + "hx", "headers"),
                binding_arguments={"kind": "x", "x-match": "all"},
            ),
        ),
        brokers=RABBITMQ,
    ),
    "exchange and routing key": Call(
        lambda c: c.add.apply_async((1,), exchange=c.q + "tap", routing_key="some.key"),
        taps=(Topic("{prefix}.tap", "direct", "some.key"),),
    ),
    "exchange object": Call(
        lambda c: c.add.apply_async((1,), exchange=Exchange(c.q + "tap"), routing_key="k"),
        taps=(Topic("{prefix}.tap", "direct", "k"),),
    ),
    "routing key only": Call(lambda c: c.add.apply_async((1,), routing_key="ignored")),
    "declare": Call(
        lambda c: c.add.apply_async((1,), declare=[Exchange(c.q + "d"), Queue(c.q + "default")]),
        brokers=RABBITMQ,
    ),
    "declare nothing": Call(
        lambda c: c.add.apply_async(
            (1,), exchange=c.q + "tap", routing_key="k", declare=[]
        ),
        taps=(Topic("{prefix}.tap", "direct", "k"),),
    ),
    "Broadcast": Call(
        lambda c: c.add.apply_async((1,), queue=Broadcast(c.q + "all")),
        taps=(Topic("{prefix}.all", "fanout", "{prefix}.default"),),
    ),
    "expires in the past": Call(
        lambda c: c.add.apply_async(
            (1,), exchange=c.q + "tap", routing_key="k", expires=NOW - timedelta(hours=1)
        ),
        taps=(Topic("{prefix}.tap", "direct", "k"),),
    ),
    "task route to a queue": options(
        {"task_routes": {"fidelity.*": {"queue": "{prefix}.routed", "priority": 6}}}
    ),
    "task route by function": options(
        {"task_routes": (lambda name, args, kwargs, opts, task=None, **kw: {"priority": 8},)}
    ),
    "route with exchange": Call(
        lambda c: c.add.delay(1),
        {"task_routes": {"fidelity.add": {"exchange": "{prefix}.tap", "routing_key": "k"}}},
        taps=(Topic("{prefix}.tap", "direct", "k"),),
    ),
    "default exchange of type topic": options(
        {"task_default_exchange": "{prefix}.main", "task_default_exchange_type": "topic",
         "task_default_routing_key": "tasks"}
    ),
    "task_queues": Call(
        lambda c: c.add.apply_async((1,), queue=c.q + "two"),
        {"task_queues": [Queue("{prefix}.one", max_priority=3),
                         Queue("{prefix}.two", Exchange("{prefix}.x"), routing_key="rk")]},
    ),
    "max priority": options({"task_queue_max_priority": 10}, priority=5),
    "quorum queue": Call(
        lambda c: c.add.delay(1), {"task_default_queue_type": "quorum"}, brokers=RABBITMQ
    ),
    "native delay by countdown": Call(
        lambda c: c.add.apply_async((1,), countdown=70), native=True,
        taps=(DELAYED,), brokers=RABBITMQ,
    ),
    "native delay by eta": Call(
        lambda c: c.add.apply_async((1,), eta=NOW + timedelta(seconds=100.7)), native=True,
        taps=(DELAYED,), brokers=RABBITMQ,
    ),
    "native delay of one second": Call(
        lambda c: c.add.apply_async((1,), eta=NOW + timedelta(seconds=1.9)), native=True,
        taps=(DELAYED,), brokers=RABBITMQ,
    ),
    "native delay, eta as a text": Call(
        lambda c: c.add.apply_async((1,), eta=(NOW + timedelta(days=30)).isoformat()), native=True,
        taps=(DELAYED,), brokers=RABBITMQ,
    ),
    "native delay, eta in the past": Call(
        lambda c: c.add.apply_async((1,), eta=NOW - timedelta(seconds=5)), native=True,
        brokers=RABBITMQ,
    ),
}  # fmt: skip

CANVAS = {
    "signature": Call(lambda c: c.add.s(1, y=2).apply_async()),
    "immutable signature with options": Call(
        lambda c: c.add.si(1).set(priority=3, queue=c.q + "sig").apply_async()
    ),
    "partial arguments": Call(lambda c: c.echo.s(2).apply_async((1,), {"y": 3}, countdown=1)),
    "link": Call(lambda c: c.add.apply_async((1,), link=c.add.s(2))),
    "links": Call(lambda c: c.add.apply_async((1,), link=[c.add.s(2), c.echo.si(NOW)])),
    "link_error": Call(lambda c: c.add.apply_async((1,), link_error=c.echo.s())),
    "link with binary": Call(lambda c: c.add.apply_async((1,), link=c.echo.si(b"\xff", "\x00"))),
    "chain": Call(lambda c: chain(c.add.s(1), c.add.s(2), c.add.s(3)).apply_async()),
    "chain by pipe": Call(lambda c: (c.add.s(1) | c.add.s(2).set(queue="q2")).delay()),
    "chain with link_error": Call(
        lambda c: chain(c.add.s(1), c.add.s(2)).apply_async(link_error=c.echo.s())
    ),
    "chain of chains": Call(lambda c: chain(chain(c.add.s(1), c.add.s(2)), c.add.s(3))()),
    "chain to group": Call(lambda c: chain(c.add.s(1), group(c.add.s(i) for i in range(3)))()),
    "group": Call(lambda c: group(c.add.s(i) for i in range(5)).apply_async(), expect=5),
    "group with options": Call(
        lambda c: group(c.add.s(1), c.echo.s(2)).apply_async(priority=4, countdown=3), expect=2
    ),
    "group of chains": Call(
        lambda c: group(chain(c.add.s(i), c.add.s(1)) for i in range(2))(), expect=2
    ),
    "nested groups": Call(
        lambda c: group(group(c.add.s(1), c.add.s(2)), c.add.s(3)).apply_async(), expect=3
    ),
    "empty group": Call(lambda c: group([]).apply_async(), expect=0),
    "chord": Call(lambda c: chord([c.add.s(i) for i in range(3)], c.echo.s())(), expect=3),
    "chord that needs an unlock task": Call(
        lambda c: chord([c.add.s(i) for i in range(3)], c.echo.s())(),
        {"result_backend": f"file://{gettempdir()}"}, expect=4,
    ),
    "chord of the redis backend": Call(
        lambda c: chord([c.add.s(i) for i in range(3)], c.echo.s())(),
        {"result_backend": "{redis}",
         "result_backend_transport_options": {"global_keyprefix": "results-{prefix}."}},
        expect=3,
    ),
    "chord of one": Call(lambda c: chord([c.add.s(1)], c.echo.s())(), expect=None),
    "chain with a chord": Call(
        lambda c: chain(group(c.add.s(i) for i in range(2)), c.echo.s(), c.add.si(1))(), expect=None
    ),
    "chunks": Call(lambda c: c.add.chunks(zip(range(6), range(6), strict=True), 2)(), expect=3),
    "map": Call(lambda c: c.echo.map([1, 2, 3]).apply_async()),
    "starmap": Call(lambda c: c.add.starmap([(1, 2), (3, 4)]).apply_async()),
    "stamp": Call(lambda c: _stamped(c.add.s(1), stamp="s-1")),
    "stamping visitor": Call(lambda c: _stamped(c.add.s(1), Visitor())),
    "stamped group": Call(
        lambda c: _stamped(group(c.add.s(1), c.add.s(2)), Visitor()), expect=2
    ),
    "stamped link": Call(lambda c: _stamped(c.add.s(1).on_error(c.echo.s()), Visitor())),
    "replaced nesting": options(replaced_task_nesting=2),
    "on the fly task_type": Call(lambda c: c.app.send_task("x", (1,), task_type=c.configured)),
    "route_name": Call(
        lambda c: c.app.send_task("x", (1,), route_name="routed.x"),
        {"task_routes": {"routed.*": {"priority": 2}}},
    ),
}  # fmt: skip

CALLS = {**PAYLOADS, **OPTIONS, **ROUTING, **CANVAS}

DELAYS = {
    name: call
    for name, call in CALLS.items()
    if name.startswith(("eta", "countdown", "native delay"))
} | {
    name: CALLS[name]
    for name in ("protocol 1 with times", "utc off", "all by position", "partial arguments",
                 "group with options", "chord that needs an unlock task")
} | {
    "task-sent event of a held call": Call(
        lambda c: c.add.apply_async((1,), countdown=30),
        {"task_send_sent_event": True}, taps=(Topic("{prefix}.ev", key="task.#"),), expect=2,
    ),
    "pickle with a countdown": options(serializer="pickle", compression="zlib", countdown=30),
    "signature with an eta": Call(lambda c: c.add.s(1).set(eta=NOW).apply_async()),
    "chain with a countdown": Call(
        lambda c: chain(c.add.s(1), c.add.s(2).set(countdown=9)).apply_async(countdown=5)
    ),
    "chord with a countdown": Call(
        lambda c: chord([c.add.s(i) for i in range(3)], c.echo.s()).apply_async(countdown=5),
        expect=3,
    ),
    "by name": Call(lambda c: c.app.send_task("some.where", (1,), countdown=7)),
    "below a second on quorum queues": Call(
        lambda c: c.add.apply_async((1,), countdown=0.4), native=True, brokers=RABBITMQ
    ),
}  # fmt: skip
"""The calls that are held, if `outbox_hold` is not None."""

REJECTED = {
    "a set in JSON": echo({1, 2}),
    "an object in JSON": Call(lambda c: c.echo.delay(object())),
    "timedelta in JSON": echo(timedelta(1)),
    "complex in JSON": echo(1j),
    "a key that JSON can't have": echo({(1, 2): 3}),
    "circular": Call(lambda c: c.echo.delay(_circular())),
    "bottomless": Call(lambda c: c.echo.delay(_nested(100_000))),
    "an integer with too many digits": Call(lambda c: c.echo.delay(10**5000)),
    "wrong signature": Call(lambda c: c.add.delay()),
    "unknown keyword": Call(lambda c: c.add.delay(1, z=2)),
    "args is no list": Call(lambda c: c.echo.apply_async("abc")),
    "kwargs is no dict": Call(lambda c: c.echo.apply_async((), [1])),
    "no name": Call(lambda c: c.app.send_task()),
    "argument twice": Call(lambda c: c.app.send_task("x", (1,), args=(2,))),
    "unknown serializer": options(serializer="nope"),
    "unknown compression": options(compression="nope"),
    "a lambda in pickle": Call(
        lambda c: c.echo.apply_async((lambda: 1,), serializer="pickle")
    ),
    "bytes that msgpack can't": Call(
        lambda c: c.echo.apply_async((object(),), serializer="msgpack")
    ),
    "countdown far away": options(countdown=10**12),
    "countdown is no number": options(countdown="soon"),
    "expires is no time": options(expires="soon"),
    "eta is no time": options(eta=object()),
    "header of a type that no transport knows": options(headers={"a": object()}),
    "set in headers": options(headers={"a": {1}}),
    "empty set in headers": Call(
        lambda c: c.add.apply_async((1,), headers={"a": set()}), brokers=RABBITMQ
    ),
    "header too large for AMQP": Call(
        lambda c: c.add.apply_async((1,), headers={"a": 2**70}), brokers=RABBITMQ
    ),
    "header name too long for AMQP": Call(
        lambda c: c.add.apply_async((1,), headers={"x" * 256: 1}), brokers=RABBITMQ
    ),
    "header key that is no text": Call(
        lambda c: c.add.apply_async((1,), headers={1: 1}), brokers=RABBITMQ
    ),
    "decimal too large for AMQP": Call(
        lambda c: c.add.apply_async((1,), headers={"a": Decimal(10) ** 30}), brokers=RABBITMQ
    ),
    "priority 256": Call(lambda c: c.add.apply_async((1,), priority=256), brokers=RABBITMQ),
    "priority is no number": Call(
        lambda c: c.add.apply_async((1,), priority="high"), brokers=RABBITMQ
    ),
    "task id too long for AMQP": Call(
        lambda c: c.add.apply_async((1,), task_id="x" * 256), brokers=RABBITMQ
    ),
    "task id is no text": Call(
        lambda c: c.add.apply_async((1,), task_id=17), brokers=RABBITMQ
    ),
    "routing key too long for AMQP": Call(
        lambda c: c.add.apply_async((1,), exchange="x", routing_key="y" * 256), brokers=RABBITMQ
    ),
    "missing queue": Call(
        lambda c: c.add.apply_async((1,), queue="nope"), {"task_create_missing_queues": False}
    ),
    "header that is no dict": options(headers=[1]),
    "stamp without a value": Call(
        lambda c: c.add.apply_async((1,), stamped_headers=["absent"])
    ),
}  # fmt: skip

if hasattr(base, "detect_quorum_queues"):  # Celery 5.5
    REJECTED |= {
        "native delay below a second": Call(
            lambda c: c.add.apply_async((1,), eta=NOW + timedelta(seconds=0.4)), native=True,
            brokers=RABBITMQ,
        ),
        "native delay by a countdown below a second": Call(
            lambda c: c.add.apply_async((1,), countdown=0.4), native=True,
            brokers=RABBITMQ,
        ),
    }  # fmt: skip


def native_delay(prefix: str) -> dict[str, Any]:
    """Quorum queues: Celery then leaves the delay to the broker."""
    exchange = Exchange(f"{prefix}.quorum", type="topic")
    key = f"delayed-{prefix}"
    arguments = {"x-queue-type": "quorum"}
    return {
        "task_queues": [Queue(f"{prefix}.default", exchange, key, queue_arguments=arguments)],
        "task_default_exchange": f"{prefix}.quorum",
        "task_default_exchange_type": "topic",
        "task_default_routing_key": key,
    }


def _nested(depth: int) -> Any:
    value: Any = None
    for _ in range(depth):
        value = [value]
    return value


def _circular() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def _stamped(sig: Any, *args: Any, **kwargs: Any) -> Any:
    sig.stamp(*args, **kwargs)
    return sig.apply_async()
