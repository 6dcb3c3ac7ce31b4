"""What AMQP can encode and RabbitMQ answers by closing the connection is refused at the call."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from kombu.exceptions import EncodeError

from tests.proj.relaying import messages, rows

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.postgresql, pytest.mark.usefixtures("postgresql")]

NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    "value",
    [NAN, INFINITY, -INFINITY, Decimal("nan"), Decimal("inf"), [1, NAN], ({"a": [INFINITY]},),
     {"a": {"b": [0.5, NAN]}}],
)  # fmt: skip
def test_a_header_that_is_not_finite_is_refused_by_name(add: Any, value: Any) -> None:
    with pytest.raises(EncodeError, match="'ratio'"):
        add.apply_async((1,), headers={"fine": 1, "ratio": value})
    assert rows() == []


def test_a_time_limit_that_is_not_finite_is_refused(add: Any) -> None:
    with pytest.raises(EncodeError, match="'timelimit'"):
        add.apply_async((1,), time_limit=NAN)
    assert rows() == []


def test_finite_headers_of_every_shape_are_stored(add: Any) -> None:
    headers = {"ratio": 0.5, "price": Decimal("1.5"), "nested": {"a": [1.5, {"b": 2.5}]}}
    add.apply_async((1,), headers=headers)
    assert len(rows()) == 1


def test_arguments_may_be_infinite(add: Any) -> None:
    add.delay(INFINITY, y=NAN)
    assert len(rows()) == 1


@pytest.mark.parametrize("broker", ["redis://127.0.0.1:1/0", "memory://"])
def test_other_transports_carry_it(make_app: Callable[..., Any], broker: str) -> None:
    add = make_app(broker=broker).tasks["enqueue.add"]
    add.apply_async((1,), headers={"ratio": INFINITY}, delivery_mode=7)
    assert messages(datetime.now(timezone.utc))[0].headers["ratio"] == INFINITY


@pytest.mark.parametrize("mode", [3, 7, 255, -1])
def test_a_delivery_mode_that_does_not_exist_is_refused(add: Any, mode: int) -> None:
    with pytest.raises(EncodeError, match="delivery_mode"):
        add.apply_async((1,), delivery_mode=mode)
    assert rows() == []


@pytest.mark.parametrize(("mode", "number"), [(1, 1), (2, 2), ("transient", 1), ("persistent", 2)])
def test_delivery_modes_that_exist_are_stored(add: Any, mode: Any, number: int) -> None:
    add.apply_async((1,), delivery_mode=mode)
    assert messages(datetime.now(timezone.utc))[0].properties["delivery_mode"] == number
