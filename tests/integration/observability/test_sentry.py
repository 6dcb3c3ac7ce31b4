"""Sentry with a transport of the tests: one trace from caller to task, one event per error."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any, cast

import pytest
import sentry_sdk
from django.db import transaction
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.integrations.django import DjangoIntegration
from sentry_sdk.integrations.logging import LoggingIntegration

from celery_outbox_steps.errors import StoreError
from celery_outbox_steps.observe.journal import Journal
from celery_outbox_steps.observe.recorder import Recorders
from celery_outbox_steps.observe.recorders.sentry import Sentry, initialised_sdk, streams
from tests.docs.pages import DOCS, blocks
from tests.helpers import wait_for
from tests.integration.observability.running import count_claims, run_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.observability.conftest import Envelopes

pytestmark = pytest.mark.postgresql


@pytest.fixture
def sentry(make_sentry: Callable[..., Envelopes]) -> Envelopes:
    return make_sentry()


def call(app: Any, *names: str) -> str:
    """A request that calls tasks; its trace id."""
    with sentry_sdk.start_transaction(name="request", op="http.server") as request:
        with transaction.atomic():
            for name in names:
                app.send_task(name)
        return str(request.trace_id)


def traces(messages: list[Any]) -> list[str]:
    """The trace ids in the message headers, as the worker's side will read them."""
    inner = [message.headers["headers"] for message in messages]
    return [headers["sentry-trace"].partition("-")[0] for headers in inner]


@pytest.mark.usefixtures("postgresql")
class TestTrace:
    def test_one_trace_from_the_request_through_the_relay_to_the_task(
        self, app: Any, watch: Callable[..., Any], sentry: Envelopes
    ) -> None:
        trace_id = call(app, "shop.ship_order")
        relay = watch(app)
        relay.counted("published", 1)
        (message,) = relay.publisher.published
        run_task(app, message)

        assert traces([message]) == [trace_id]
        assert [event["contexts"]["trace"]["trace_id"] for event in sentry.transactions] == [
            trace_id  # request, relay, task
        ] * 3
        assert [event["transaction"] for event in sentry.transactions] == [
            "request", "celery_outbox.relay", "shop.ship_order",
        ]  # fmt: skip

    def test_the_enqueue_is_a_span_of_the_request(self, app: Any, sentry: Envelopes) -> None:
        call(app, "shop.ship_order")
        (request,) = sentry.named("request")
        (span,) = [each for each in request["spans"] if each["op"] == "queue.submit"]
        assert span["description"] == "celery_outbox.enqueue"
        assert span["data"]["messaging.batch.message_count"] == 1

    def test_without_sentrys_celery_integration_the_trace_goes_on_all_the_same(
        self,
        app: Any,
        watch: Callable[..., Any],
        make_sentry: Callable[..., Envelopes],
    ) -> None:
        make_sentry(auto_enabling_integrations=False)
        trace_id = call(app, "shop.ship_order")
        relay = watch(app)
        relay.counted("published", 1)
        assert traces(relay.publisher.published) == [trace_id]

    def test_a_project_that_wants_separate_traces_gets_them(
        self, app: Any, watch: Callable[..., Any], make_sentry: Callable[..., Envelopes]
    ) -> None:
        make_sentry(integrations=[CeleryIntegration(propagate_traces=False)])
        call(app, "shop.ship_order")
        relay = watch(app)
        relay.counted("published", 1)
        assert "sentry-trace" not in relay.publisher.published[0].headers

    def test_a_batch_of_many_callers_is_a_trace_of_its_own(
        self, app: Any, watch: Callable[..., Any], sentry: Envelopes
    ) -> None:
        callers = [call(app, "shop.ship_order"), call(app, "shop.bill_order")]
        relay = watch(app)
        relay.counted("published", 2)
        assert traces(relay.publisher.published) == callers
        (batch,) = sentry.named("celery_outbox.relay")
        assert batch["contexts"]["trace"]["trace_id"] not in callers
        assert batch["contexts"]["trace"]["data"]["messaging.batch.message_count"] == 2

    def test_an_sdk_that_streams_its_spans(
        self, app: Any, watch: Callable[..., Any], make_sentry: Callable[..., Envelopes]
    ) -> None:
        sentry = make_sentry(trace_lifecycle="stream")
        if not streams(sentry_sdk):
            pytest.skip("this SDK does not stream spans")
        with sentry_sdk.traces.start_span(name="request") as request:
            with transaction.atomic():
                app.send_task("shop.ship_order")
            trace_id = request.trace_id
        relay = watch(app)
        relay.counted("published", 1)
        assert traces(relay.publisher.published) == [trace_id]
        sentry_sdk.flush()
        spans = sentry.spans()
        assert {"request", "celery_outbox.enqueue", "celery_outbox.relay"} <= spans.keys()
        assert set(spans.values()) == {trace_id}

    def test_an_idle_relay_sends_nothing(
        self, app: Any, watch: Callable[..., Any], sentry: Envelopes
    ) -> None:
        relay = watch(app)
        call(app, "shop.ship_order")
        relay.counted("published", 1)
        sent = len(sentry.envelopes)
        looks = count_claims(relay)
        wait_for(lambda: looks() >= 5)
        assert len(sentry.envelopes) == sent

    @pytest.mark.parametrize("lifecycle", ["static", "stream"])
    def test_an_idle_relay_sends_no_spans_of_its_statements(
        self,
        app: Any,
        watch: Callable[..., Any],
        make_sentry: Callable[..., Envelopes],
        lifecycle: str,
    ) -> None:
        sentry = make_sentry(trace_lifecycle=lifecycle, integrations=[DjangoIntegration()])
        looks = count_claims(watch(app))
        wait_for(lambda: looks() >= 5)
        sentry_sdk.flush()
        assert sentry.envelopes == []

    @pytest.mark.parametrize(
        ("rate", "sampled", "count"),
        [(None, None, 0), (0.0, None, 0), (1.0, False, 0), (0.0, True, 1), (1.0, None, 1)],
        ids=["no tracing", "a rate of 0", "a parent that is not", "a parent that is", "a rate"],
    )
    def test_a_transaction_is_started_only_where_it_may_be_sampled(
        self,
        app: Any,
        watch: Callable[..., Any],
        make_sentry: Callable[..., Envelopes],
        monkeypatch: pytest.MonkeyPatch,
        rate: float | None,
        sampled: bool | None,
        count: int,
    ) -> None:
        make_sentry(traces_sample_rate=rate)
        with sentry_sdk.start_transaction(name="request", sampled=sampled), transaction.atomic():
            app.send_task("shop.ship_order")
        started: list[Any] = []
        start = sentry_sdk.start_transaction
        monkeypatch.setattr(
            sentry_sdk, "start_transaction", lambda *args: started.append(args) or start(*args)
        )
        watch(app).counted("published", 1)
        assert len(started) == count

    def test_a_sampler_can_drop_the_relays_transactions_and_keep_the_tasks(
        self, app: Any, watch: Callable[..., Any], make_sentry: Callable[..., Envelopes]
    ) -> None:
        sentry = make_sentry(traces_sample_rate=None, traces_sampler=documented_sampler())
        trace_id = call(app, "shop.ship_order")
        relay = watch(app)
        relay.counted("published", 1)
        run_task(app, relay.publisher.published[0])
        assert [(event["transaction"], event["contexts"]["trace"]["trace_id"])
                for event in sentry.transactions] == [
            ("request", trace_id), ("shop.ship_order", trace_id),
        ]  # fmt: skip

    def test_not_initialised_means_no_columns_and_no_headers(
        self, app: Any, watch: Callable[..., Any]
    ) -> None:
        assert initialised_sdk() is None
        with transaction.atomic():
            app.send_task("shop.ship_order")
        relay = watch(app)
        relay.counted("published", 1)
        assert "sentry-trace" not in relay.publisher.published[0].headers


def documented_sampler() -> Callable[[Any], float]:
    """The one on the page about tracing, with a rate that leaves nothing to chance."""
    (block,) = [each for each in blocks(DOCS / "how-to/tracing.md") if "sampler" in each.text]
    defined: dict[str, Any] = {}
    exec(block.text.partition("sentry_sdk.init")[0].replace("return 0.1", "return 1.0"), defined)
    return cast("Callable[[Any], float]", defined["traces_sampler"])


class Bug(Exception):
    """An unexpected error."""


SECRET = uuid.uuid4().hex


def broken() -> Exception:
    """An error as the loop catches it, with a payload among the locals of its frames."""
    args = [SECRET]
    try:
        raise Bug(f"{len(args)} rows")
    except Bug as error:
        return error


def journal_with_sentry() -> Journal:
    return Journal("default", "relay-1", Recorders([Sentry()]))


class TestErrors:
    @pytest.fixture(
        params=[
            {},
            {"default_integrations": False},
            {"integrations": [LoggingIntegration(event_level=None)]},
            {"integrations": [LoggingIntegration(event_level=logging.WARNING)]},
            {"default_integrations": False, "integrations": [LoggingIntegration()]},
        ],
        ids=["default", "bare", "no log events", "warnings too", "no dedupe"],
    )
    def transport(self, request: Any, make_sentry: Callable[..., Envelopes]) -> Envelopes:
        return make_sentry(**request.param)

    def test_an_error_is_one_event_however_often_it_happens(self, transport: Envelopes) -> None:
        journal = journal_with_sentry()
        for failures in range(1, 6):
            journal.failed(broken(), failures, 0.5)
        (event,) = transport.events
        assert event["exception"]["values"][-1]["type"] == "Bug"
        assert event["tags"] == {"database": "default", "relay": "relay-1"}
        assert SECRET not in str(event)

    def test_another_error_is_another_event(self, sentry: Envelopes) -> None:
        journal = journal_with_sentry()
        journal.failed(broken(), 1, 0.5)
        journal.failed(KeyError("headers"), 2, 0.5)
        journal.failed(broken(), 3, 0.5)
        assert len(sentry.events) == 2

    def test_a_database_that_restarts_is_no_event_and_one_that_stays_away_is_one(
        self, sentry: Envelopes
    ) -> None:
        journal = journal_with_sentry()
        journal.failed(StoreError("server closed the connection"), 1, 0.5)
        journal.recovered(1)
        assert sentry.events == []
        for failures in range(1, 10):
            journal.failed(StoreError("connection refused"), failures, 0.5)
        assert len(sentry.events) == 1

    def test_an_error_that_comes_and_goes_is_not_an_event_each_time(
        self, sentry: Envelopes
    ) -> None:
        journal = journal_with_sentry()
        for _ in range(3):
            journal.failed(broken(), 1, 0.5)
            journal.recovered(1)
        assert len(sentry.events) == 1

    def test_without_sentry_nothing_happens(self) -> None:
        journal_with_sentry().failed(broken(), 1, 0.5)


def test_a_sentry_that_breaks_does_not_stop_the_relay(
    app: Any, watch: Callable[..., Any], sentry: Envelopes, postgresql: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("sentry is broken")

    for name in ("continue_trace", "get_current_span"):
        monkeypatch.setattr(sentry_sdk, name, refuse)
    with transaction.atomic():
        app.send_task("shop.ship_order")
    watch(app).counted("published", 1)
