"""What a single row can provoke: how to make it, on which brokers, and why it is dead in the end.

Made by a call where Celery accepts the call; otherwise written as an older release or a hostile
writer could have left it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kombu import Exchange, Queue

from tests.poison.brokers import FORBIDDEN, LARGEST, TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.poison.bench import Bench

RABBIT, REDIS, FILES, MEMORY = ("rabbitmq",), ("redis",), ("filesystem",), ("memory",)
VIRTUAL = REDIS + FILES + MEMORY
ALL = RABBIT + VIRTUAL


@dataclass(frozen=True)
class Poison:
    """One kind of row that can't be published."""

    name: str
    brokers: tuple[str, ...]
    make: Callable[[Bench], str]
    reason: str
    """Part of the dead letter's reason."""
    prepare: Callable[[Bench], Any] = lambda bench: None
    """What the broker must hold before; done once per bench."""


# -- ways to make one ------------------------------------------------------------------------------


def called(**options: Any) -> Callable[[Bench], str]:
    return lambda bench: bench.call(**options)


def headers(**values: Any) -> Callable[[Bench], str]:
    """A row with these headers, whatever enqueue thinks of them."""
    return lambda bench: bench.edited(lambda options: options["headers"].update(values))


def properties(**values: Any) -> Callable[[Bench], str]:
    return lambda bench: bench.edited(lambda options: options["properties"].update(values))


def options(**values: Any) -> Callable[[Bench], str]:
    return lambda bench: bench.edited(lambda options: options.update(values))


def raw(text: str) -> Callable[[Bench], str]:
    return lambda bench: bench.raw(text)


def marked(kind: str, value: str) -> dict[str, str]:
    """How a row holds a value that JSON has no type for."""
    return {"\x00": kind, "value": value}


def declaring(**fields: Any) -> Callable[[Bench], str]:
    """A row with a queue to declare that no call could have described."""
    return options(declare=[json.dumps({"kind": "queue", **fields})])


def to_queue(name: str, exchange: dict[str, Any] | None = None, **more: Any) -> Any:
    """A call to a queue that the relay declares. `{}` in a name is the bench's own prefix."""

    def make(bench: Bench) -> str:
        full = name.format(bench.prefix)
        fields = {"name": full, "type": "direct", **(exchange or {})}
        fields["name"] = fields["name"].format(bench.prefix)
        return bench.call(queue=Queue(full, Exchange(**fields), routing_key=full, **more))

    return make


def to_exchange(name: str, key: str = "key") -> Callable[[Bench], str]:
    """A call to an exchange that the relay does not declare."""
    return lambda bench: bench.edited(
        lambda options: options.update(
            exchange=name.format(bench.prefix), routing_key=key, declare=[]
        )
    )


# -- what the broker must hold before --------------------------------------------------------------


def admin(work: Callable[[Any, str], Any]) -> Callable[[Bench], None]:
    """Do something on a channel without limits; its connection lives as long as the bench."""

    def prepare(bench: Bench) -> None:
        connection = bench.kept.enter_context(bench.broker.admin())
        work(connection.default_channel, bench.prefix)

    return prepare


def set_string(key: str) -> Callable[[Bench], Any]:
    return lambda bench: bench.broker.client.set(key.format(bench.prefix), "text")  # type: ignore[attr-defined]


def bound_string(bench: Bench) -> None:
    """A list that became a string after it was bound."""
    name = bench.name("bound")
    with bench.broker.admin() as connection:
        Queue(name, Exchange(TOPIC, "topic"), name)(connection.default_channel).declare()
    set_string(name)(bench)


def internal_exchange(channel: Any, prefix: str) -> None:
    from amqp import spec

    # py-amqp has no argument for it: ticket, name, type, passive, durable, auto-delete, internal.
    arguments: Any = (0, f"{prefix}.internal", "direct", False, False, True, True, False, {})
    channel.send_method(spec.Exchange.Declare, "BssbbbbbF", arguments, wait=spec.Exchange.DeclareOk)


def full_queue(channel: Any, prefix: str) -> None:
    limits = {"x-max-length": 0, "x-overflow": "reject-publish"}
    channel.queue_declare(f"{prefix}.full", arguments=limits, auto_delete=False)


NAN, INFINITE = float("nan"), float("inf")
LARGE = "x" * (LARGEST + 1024)

POISONS = [
    # headers and properties
    Poison("nan-header", RABBIT, headers(x=NAN), "INTERNAL_ERROR"),
    Poison("infinite-header", RABBIT, headers(x=-INFINITE), "INTERNAL_ERROR"),
    Poison("nan-in-a-list", RABBIT, headers(x=[1, {"y": NAN}]), "INTERNAL_ERROR"),
    Poison("headers-over-frame-max", RABBIT, called(headers={"x": "y" * 200_000}), "frame_max"),
    Poison("long-header-name", RABBIT, headers(**{"n" * 256: 1}), "error"),
    Poison("huge-integer-header", RABBIT, headers(x=2**80), "error"),
    Poison("decimal-nan-header", RABBIT, headers(x=marked("decimal", "NaN")), "Error"),
    Poison("decimal-exponent", RABBIT, headers(x=marked("decimal", "1E+400")), "error"),
    Poison("date-before-1970", RABBIT, headers(x=marked("datetime", "1960-01-01")), "error"),
    Poison("delivery-mode-7", RABBIT, properties(delivery_mode=7), "PRECONDITION_FAILED"),
    Poison("delivery-mode-300", RABBIT, properties(delivery_mode=300), "error"),
    Poison("priority-256", RABBIT, options(priority=256), "error"),
    Poison("priority-negative", RABBIT, options(priority=-1), "error"),
    Poison("priority-text", RABBIT, options(priority="high"), "rror"),
    Poison("expiration-negative", RABBIT, properties(expiration="-5"), "PRECONDITION_FAILED"),
    Poison("expiration-no-number", RABBIT, properties(expiration="soon"), "PRECONDITION_FAILED"),
    Poison("expiration-huge", RABBIT, properties(expiration="9" * 15), "PRECONDITION_FAILED"),
    Poison("user-id", RABBIT, called(user_id="guest"), "PRECONDITION_FAILED"),
    Poison("cc-is-a-text", RABBIT, called(headers={"CC": "text"}), "PRECONDITION_FAILED"),
    Poison("bcc-is-a-number", RABBIT, called(headers={"BCC": 7}), "PRECONDITION_FAILED"),
    Poison(
        "direct-reply-to", RABBIT, called(reply_to="amq.rabbitmq.reply-to"), "PRECONDITION_FAILED"
    ),
    Poison("reply-to-300-bytes", RABBIT, properties(reply_to="x" * 300), "error"),
    Poison("timestamp-text", RABBIT, properties(timestamp="soon"), "rror"),
    # what the relay declares
    Poison(
        "x-delayed-message", RABBIT,
        to_queue("{}.delayed", {"name": "{}.delayed", "type": "x-delayed-message"}),
        "COMMAND_INVALID",
    ),
    Poison(
        "exchange-type-unknown", RABBIT,
        to_queue("{}.odd", {"name": "{}.odd", "type": "x-no-such-type"}), "COMMAND_INVALID",
    ),
    Poison(
        "queue-type-unknown", RABBIT,
        to_queue("{}.qt", queue_arguments={"x-queue-type": "x-no-such-type"}), "PRECONDITION",
    ),
    Poison(
        "queue-length-negative", RABBIT,
        to_queue("{}.ql", queue_arguments={"x-max-length": -1}), "PRECONDITION_FAILED",
    ),
    Poison(
        "quorum-not-durable", RABBIT,
        to_queue("{}.qd", durable=False, queue_arguments={"x-queue-type": "quorum"}),
        "PRECONDITION_FAILED",
    ),
    Poison(
        "queue-mismatch", RABBIT, to_queue("{}.mismatch", max_length=5), "PRECONDITION_FAILED",
        admin(lambda channel, prefix: channel.queue_declare(f"{prefix}.mismatch", durable=True)),
    ),
    Poison(
        "exchange-redeclared", RABBIT,
        to_queue("{}.re", {"name": "{}.re", "type": "topic"}), "PRECONDITION_FAILED",
        admin(lambda channel, prefix: channel.exchange_declare(f"{prefix}.re", "fanout")),
    ),
    Poison(
        "queue-exclusive", RABBIT, to_queue("{}.mine"), "RESOURCE_LOCKED",
        admin(lambda channel, prefix: channel.queue_declare(f"{prefix}.mine", exclusive=True)),
    ),
    Poison("queue-reserved", RABBIT, to_queue("amq.mine"), "ACCESS_REFUSED"),
    Poison("exchange-reserved", RABBIT, to_queue("{}.r", {"name": "amq.mine"}), "NOT_FOUND"),
    Poison(
        "binding-arguments", RABBIT,
        to_queue(
            "{}.b", {"name": "amq.headers", "type": "headers"},
            binding_arguments={"x-match": "perhaps"},
        ),
        "PRECONDITION_FAILED",
    ),
    Poison("queue-forbidden", RABBIT, to_queue(f"{FORBIDDEN}-q"), "ACCESS_REFUSED"),
    Poison("queue-name-too-long", RABBIT, declaring(name="q" * 300), "error"),
    # where it goes
    Poison("exchange-missing", RABBIT, to_exchange("{}.nowhere"), "NOT_FOUND"),
    Poison(
        "exchange-internal", RABBIT, to_exchange("{}.internal"), "ACCESS_REFUSED",
        admin(internal_exchange),
    ),
    Poison(
        "exchange-forbidden", RABBIT, to_exchange(f"{FORBIDDEN}-x"), "ACCESS_REFUSED",
        admin(lambda channel, prefix: channel.exchange_declare(f"{FORBIDDEN}-x", "fanout")),
    ),
    Poison(
        "topic-forbidden", RABBIT, to_exchange(TOPIC, f"{FORBIDDEN}.x"), "ACCESS_REFUSED",
        admin(lambda channel, prefix: Exchange(TOPIC, "topic")(channel).declare()),
    ),
    Poison("unroutable", RABBIT, to_exchange("", "no-such-queue"), "NO_ROUTE"),
    Poison(
        "queue-full", RABBIT,
        lambda bench: to_exchange("", f"{bench.prefix}.full")(bench), "basic.nack",
        admin(full_queue),
    ),
    Poison("routing-key-300-bytes", RABBIT, to_exchange("", "x" * 300), "error"),
    Poison("body-too-large", RABBIT, called(kwargs={"x": LARGE}), "PRECONDITION_FAILED"),
    # Redis
    Poison(
        "list-of-wrong-type", REDIS, to_queue("{}.string"), "WRONGTYPE", set_string("{}.string")
    ),
    Poison("list-without-rights", REDIS, to_queue(f"{FORBIDDEN}-q"), "no permissions"),
    Poison(
        "topic-binding-of-wrong-type", REDIS,
        to_queue("{}.t", {"name": "{}.t", "type": "topic"}), "WRONGTYPE",
        set_string("_kombu.binding.{}.t"),
    ),
    Poison(
        "fanout-without-rights", REDIS,
        to_queue("{}.f", {"name": f"{FORBIDDEN}-f", "type": "fanout"}), "no permissions",
    ),
    Poison(
        "published-to-binding-of-wrong-type", REDIS, to_exchange("{}.p"), "WRONGTYPE",
        set_string("_kombu.binding.{}.p"),
    ),
    Poison(
        "topic-list-of-wrong-type", REDIS,
        to_queue("{}.tl", {"name": TOPIC, "type": "topic"}), "WRONGTYPE", set_string("{}.tl"),
    ),
    Poison(
        "bound-list-of-wrong-type", REDIS,
        lambda bench: to_exchange(TOPIC, bench.name("bound"))(bench), "WRONGTYPE", bound_string,
    ),
    Poison("value-too-large", REDIS, called(kwargs={"x": LARGE}), "Error"),
    Poison(
        "priority-list-of-wrong-type", REDIS,
        lambda bench: bench.edited(
            lambda options: options.update(routing_key=f"{bench.prefix}.p", priority=9, declare=[])
        ),
        "WRONGTYPE", set_string("{}.p\x06\x169"),
    ),
    # file names
    Poison("file-name-too-long", FILES, to_queue("q" * 300), "File name too long"),
    Poison("file-name-with-a-slash", FILES, to_queue("a/b"), "No such file"),
    Poison("file-name-with-a-nul", FILES, to_queue("a\x00b"), "null"),
    # every broker
    Poison(
        "virtual-exchange-type", VIRTUAL,
        to_queue("{}.v", {"name": "{}.v", "type": "x-no-such-type"}), "x-no-such-type",
    ),
    Poison("garbage", ALL, raw("{"), "does not hold a message"),
    Poison("no-object", ALL, raw("[]"), "options must be an object"),
    Poison("headers-are-a-list", ALL, options(headers=[1]), "headers and properties must be"),
    Poison("exchange-is-an-object", ALL, options(exchange={"name": "x"}), "exchange must be"),
    Poison("declare-is-a-number", ALL, options(declare=7), "does not hold a message"),
    Poison("mark-of-no-type", ALL, headers(x={"\x00": "nope", "value": 1}), "does not hold"),
    Poison("exchange-is-a-number", RABBIT + FILES, options(exchange=5), "rror"),
    Poison("key-is-an-object", RABBIT + REDIS + MEMORY, options(routing_key={"a": 1}), "rror"),
    Poison("routing-key-unencodable", RABBIT, to_exchange("", "\ud800"), "NO_ROUTE"),
    Poison("list-unencodable", REDIS, to_exchange("", "\ud800"), "UnicodeEncodeError"),
]  # fmt: skip
CASES = [(poison, broker) for poison in POISONS for broker in poison.brokers]
IDS = [f"{broker}-{poison.name}" for poison, broker in CASES]
