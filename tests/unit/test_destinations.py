"""`CELERY_OUTBOX_DESTINATIONS`: every option, every mistake, and that no error shows a URL."""

from __future__ import annotations

from typing import Any

import pytest

from celery_outbox_steps.destinations import OPTIONS, Destination, destinations, masked
from celery_outbox_steps.errors import ConfigurationError
from celery_outbox_steps.kinds import BOOLEAN
from celery_outbox_steps.publishers.broker import connection_for, header_prefix
from celery_outbox_steps.settings import BY_NAME, RelayConfig, read, validate

URL = "amqp://user:hunter2@broker.example//"
EVERY_OPTION: dict[str, Any] = {
    "url": URL,
    "exchange": "domain",
    "exchange_type": "headers",
    "routing_key": "{key}.{name}",
    "serializer": "msgpack",
    "header_prefix": "ce_",
    "mandatory": True,
    "persistent": False,
    "declare": False,
    "transport_options": {"confirm_publish": True},
    "ssl": {"ca_certs": "ca.pem"},
    "batch_size": 10,
    "send_timeout": 1,
    "max_retries": 3,
    "backoff_time": 2,
    "max_backoff": 4,
    "broker_outage_cooldown": 5,
}


def parsed(**options: Any) -> Destination:
    return destinations({"events": {"url": URL, **options}})["events"]


def refusal(value: Any) -> str:
    with pytest.raises(ConfigurationError) as error:
        BY_NAME["destinations"].parse(value)
    return str(error.value)


def test_a_url_is_enough() -> None:
    found = parsed()
    assert (found.name, found.url, found.exchange, found.routing_key) == (
        "events", URL, "", "{name}",
    )  # fmt: skip
    assert (found.persistent, found.mandatory, found.declare) == (True, False, None)


def test_every_option_is_taken() -> None:
    assert {*EVERY_OPTION, "queue"} == set(OPTIONS)
    found = parsed(**EVERY_OPTION)
    own = {name for name in EVERY_OPTION if hasattr(found, name)}
    assert all(getattr(found, name) == EVERY_OPTION[name] for name in own)
    relay = {name: EVERY_OPTION[name] for name in EVERY_OPTION if name not in own}
    assert found.relay_options == relay
    config = RelayConfig(batch_size=7).of(found)
    assert {name: getattr(config, name) for name in relay} == relay


def test_options_that_are_left_out_follow_the_settings() -> None:
    assert RelayConfig(batch_size=7, max_retries=9).of(parsed(max_retries=1)).batch_size == 7


@pytest.mark.parametrize(
    ("key", "wanted"), [("order:7", "order.paid/order:7"), (None, "order.paid/")]
)
def test_a_routing_key_is_made_of_name_and_key(key: str | None, wanted: str) -> None:
    assert parsed(routing_key="{name}/{key}").routing_key_of("order.paid", key) == wanted


def test_with_a_queue_every_message_goes_there() -> None:
    assert parsed(queue="in").routing_key_of("order.paid", "order:7") == "in"


def test_urls_to_try_in_turn() -> None:
    assert parsed(url=["redis://a", "redis://b"]).is_amqp is False
    assert parsed(url=(URL, "amqps://b")).is_amqp is True


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (["events"], 'a dictionary such as {"events": {"url": "amqp://…"'),
        ({"events": URL}, "must be a dictionary such as"),
        ({"events": {}}, 'needs a "url"'),
        ({"events": {"url": ""}}, '"url"'),
        ({"events": {"url": "hunter2"}}, 'wrong "url"'),
        ({"events": {"url": []}}, 'wrong "url"'),
        ({"events": {"url": [URL, 5]}}, 'wrong "url"'),
        ({"events": {"url": 5}}, 'wrong "url"'),
        ({"events": {"url": URL, "exchnage": "x"}}, 'Did you mean "exchange"?'),
        ({"events": {"url": URL, "zzz": "x"}}, "There are backoff_time, batch_size"),
        ({"events": {"url": URL, 5: "x"}}, "unknown option 5"),
        ({"events": {"url": URL, "exchange": None}}, "the name of an exchange"),
        ({"events": {"url": URL, "exchange_type": 1}}, "the type of an exchange"),
        ({"events": {"url": URL, "routing_key": 1}}, "{name} and {key} as placeholders"),
        ({"events": {"url": URL, "routing_key": "{id}"}}, "placeholders are {name} and {key}"),
        ({"events": {"url": URL, "routing_key": "{"}}, "placeholders are {name} and {key}"),
        ({"events": {"url": URL, "routing_key": "{}"}}, "placeholders are {name} and {key}"),
        ({"events": {"url": URL, "routing_key": "{name.x}"}}, "placeholders are {name} and {key}"),
        ({"events": {"url": URL, "routing_key": "{name:d}"}}, "placeholders are {name} and {key}"),
        ({"events": {"url": URL, "queue": 1}}, "the name of a queue"),
        ({"events": {"url": URL, "queue": "q", "exchange": "x"}}, 'can\'t have an "exchange"'),
        ({"events": {"url": URL, "queue": "q", "routing_key": "{key}"}}, 'or a "routing_key"'),
        ({"events": {"url": URL, "serializer": 1}}, "a serializer of kombu"),
        ({"events": {"url": URL, "serializer": "no-such"}}, "a serializer of kombu"),
        ({"events": {"url": URL, "serializer": "raw"}}, "a serializer of kombu"),
        ({"events": {"url": URL, "header_prefix": 1}}, "header_prefix"),
        ({"events": {"url": URL, "mandatory": 1}}, BOOLEAN.words),
        ({"events": {"url": URL, "persistent": "yes"}}, BOOLEAN.words),
        ({"events": {"url": URL, "declare": "no"}}, BOOLEAN.words),
        ({"events": {"url": URL, "transport_options": []}}, "a dictionary"),
        ({"events": {"url": URL, "ssl": "yes"}}, "True, False or a dictionary"),
        ({"events": {"url": URL, "batch_size": 0}}, "a whole number of at least 1"),
        ({"events": {"url": URL, "send_timeout": "1"}}, "a number of seconds above 0"),
        ({"events": {"url": URL, "max_retries": -1}}, "a whole number of at least 0"),
        ({"events": {"url": URL, "backoff_time": 0}}, "a number of seconds above 0"),
        ({"events": {"url": URL, "max_backoff": None}}, "a number of seconds above 0"),
        ({"events": {"url": URL, "broker_outage_cooldown": True}}, "a number of seconds above 0"),
        ({"": {"url": URL}}, "letters, digits"),
        ({"a b": {"url": URL}}, "letters, digits"),
        ({"-a": {"url": URL}}, "letters, digits"),
        ({"é": {"url": URL}}, "letters, digits"),
        ({"x" * 101: {"url": URL}}, "at most 100"),
        ({5: {"url": URL}}, "has the name 5"),
    ],
    ids=str,
)  # fmt: skip
def test_a_mistake_is_named_and_nothing_secret_is_shown(value: Any, words: str) -> None:
    text = refusal(value)
    assert "CELERY_OUTBOX_DESTINATIONS" in text
    assert words in text
    assert "hunter2" not in text
    (name, options) = next(iter(value.items())) if isinstance(value, dict) else (None, None)
    if name == "events":
        assert "['events']" in text
    if isinstance(options, dict) and len(options) == 2:
        assert str(list(options)[-1]) in text


def test_names_that_a_database_may_take_for_the_same_are_refused() -> None:
    text = refusal({"lake": {"url": URL}, "events": {"url": URL}, "Events": {"url": URL}})
    assert "CELERY_OUTBOX_DESTINATIONS has 'events' and 'Events'" in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    "options",
    [{"send_timeout": 60}, {"backoff_time": 7200}, {"max_backoff": 1}],
    ids=str,
)
def test_values_that_do_not_go_with_the_settings_are_refused_at_start(
    options: dict[str, Any],
) -> None:
    conf = {"outbox_destinations": {"events": {"url": URL, **options}}, "outbox_stale_timeout": 30}
    with pytest.raises(ConfigurationError, match=r"CELERY_OUTBOX_DESTINATIONS\['events'\]"):
        validate(conf)


def test_neither_repr_nor_mask_shows_a_secret() -> None:
    secret = {
        "url": [URL, "sqs://id:hunter2@?region=hunter2"],
        "transport_options": {"a": 1},
    }
    assert "hunter2" not in repr(destinations({"events": secret}))
    shown = masked({"events": secret, "lake": "hunter2", "bad": {"url": "hunter2"}})
    assert "hunter2" not in str(shown)
    assert shown["events"]["url"][0] == "amqp://user:********@broker.example//"
    assert "hunter2" not in str(masked("hunter2"))


def test_no_destinations_by_default() -> None:
    assert read({}, "destinations") == {}


def test_a_library_that_is_missing_is_named_without_the_url() -> None:
    (found,) = destinations({"lake": {"url": "nosuch://u:hunter2@h"}}).values()
    with pytest.raises(ConfigurationError, match=r"DESTINATIONS\['lake'\] can't be used") as error:
        connection_for(found)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "prefix"),
    [
        ({}, "cloudEvents_"),
        ({"url": "redis://h"}, "ce-"),
        ({"header_prefix": "cloudEvents:"}, "cloudEvents:"),
    ],
    ids=str,
)
def test_the_prefix_of_attributes_is_that_of_the_protocols_binding(
    options: dict[str, Any], prefix: str
) -> None:
    found = parsed(**options)
    assert header_prefix(found, connection_for(found)) == prefix
