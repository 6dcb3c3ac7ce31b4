"""The private parts of Celery, kombu, py-amqp and Django that we use are still what we think.

`make matrix` runs this on every supported combination of versions. If a test fails, a library has
changed: read the `upstream` module that it names and everything that uses the part, before you
change the test. No server is needed; the databases are SQLite in memory.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import amqp
import celery.canvas
import celery.signals
import kombu
import pytest
from amqp.transport import SSLTransport, TCPTransport
from celery import Celery, _state
from celery.bin.base import CeleryOption
from celery.bootsteps import Blueprint
from django.conf import Settings, settings
from django.contrib.admin import AdminSite
from django.db import connections, transaction
from django.db.backends.sqlite3.base import DatabaseWrapper
from django.test import testcases
from kombu.common import maybe_declare
from kombu.utils.url import parse_url

import celery_outbox_steps
import django_integration
from celery_outbox_steps import OutboxRelayStep
from celery_outbox_steps.messages import Message
from celery_outbox_steps.publishers.amqp.channel import ConfirmChannel
from celery_outbox_steps.upstream import amqp as our_amqp
from celery_outbox_steps.upstream import kombu as our_kombu
from celery_outbox_steps.worker.options import STEP
from django_integration import OutboxCelery
from django_integration.enqueue.call_stack import is_called_by_atomic, is_in_hook, running_hooks
from django_integration.enqueue.capture import CapturingProducer
from django_integration.models import CeleryOutbox
from django_integration.upstream import celery as our_celery
from django_integration.upstream import celery_worker
from django_integration.upstream import django as our_django

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

READ = "changed: read {} and what uses it again"
AMQP = "py-amqp has " + READ.format("celery_outbox_steps/upstream/amqp.py")
KOMBU = "kombu has " + READ.format("celery_outbox_steps/upstream/kombu.py")
PRODUCER = "kombu has " + READ.format("django_integration/enqueue/capture.py")
CELERY = "Celery has " + READ.format("django_integration/upstream/celery.py")
WORKER = "Celery has " + READ.format("django_integration/upstream/celery_worker.py")
DJANGO = "Django has " + READ.format("django_integration/upstream/django.py")

needs_kombu_5_7 = pytest.mark.skipif(
    kombu.VERSION[:2] < (5, 7), reason="kombu sends batches to Redis since 5.7"
)


def parameters(function: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def message(**changes: Any) -> Message:
    fields = {
        "body": b"[[], {}, {}]", "content_type": "application/json", "content_encoding": "utf-8",
        "headers": {"id": "x"}, "properties": {"delivery_mode": 2}, "priority": 3, "exchange": "",
        "routing_key": "queue",
    }  # fmt: skip
    return Message(**{**fields, **changes})  # type: ignore[arg-type]


def do_nothing() -> None:
    """As a task."""


def length(text: str) -> int:
    """As a task."""
    return len(text)


UNDOCUMENTED = {
    "atomic_blocks", "bytes_sent", "execute_wrappers", "get_compiler", "inc_thread_sharing",
    "needs_rollback", "queries_log", "run_and_clear_commit_hooks", "run_on_commit", "savepoint_ids",
}  # fmt: skip
"""Attributes without an underscore, which ruff can't tell from public ones."""


def test_undocumented_attributes_are_used_in_upstream_only() -> None:
    for package in (celery_outbox_steps, django_integration):
        for path in Path(package.__path__[0]).rglob("*.py"):
            if path.parent.name != "upstream":
                nodes = ast.walk(ast.parse(path.read_text()))
                used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
                assert not used & UNDOCUMENTED, f"{path}: through upstream only"


# -- py-amqp -------------------------------------------------------------------------------------


def test_amqp_has_the_properties_that_our_frames_encode() -> None:
    assert [name for name, _ in our_amqp.PROPERTIES] == [
        "content_type", "content_encoding", "application_headers", "delivery_mode", "priority",
        "correlation_id", "reply_to", "expiration", "message_id", "timestamp", "type", "user_id",
        "app_id", "cluster_id",
    ], AMQP  # fmt: skip
    assert {kind for _, kind in our_amqp.PROPERTIES} == {"s", "F", "o", "L"}, AMQP


def test_pyamqp_writes_frames_without_a_connection() -> None:
    frames = our_amqp.frames_by_pyamqp(message(body=b"x" * 5000), 7, 4096, mandatory=True)
    assert frames[:3] == b"\x01\x00\x07", AMQP
    assert frames.count(b"x") >= 5000, AMQP
    assert our_amqp.header_size(message()) > 12, AMQP


@pytest.mark.parametrize("hook", our_amqp.CHANNEL_HOOKS)
def test_pyamqp_calls_the_hooks_of_a_channel(hook: str) -> None:
    expected = our_amqp.CHANNEL_HOOKS[hook]
    assert parameters(getattr(amqp.Channel, hook)) == expected, AMQP
    assert parameters(getattr(ConfirmChannel, hook)) == expected, "ours must be called alike"
    assert f"self.{hook}" in inspect.getsource(amqp.Channel._setup_listeners), AMQP


def test_a_channel_of_pyamqp_can_be_dropped_and_written_to() -> None:
    assert "channel_id" in inspect.getsource(amqp.Channel.collect), AMQP
    assert parameters(amqp.Channel._basic_publish)[:5] == (
        "self", "msg", "exchange", "routing_key", "mandatory",
    ), AMQP  # fmt: skip


def test_a_connection_of_pyamqp_can_be_written_to() -> None:
    connection = amqp.Connection()
    assert {"on_blocked", "on_unblocked", "frame_max"} <= set(vars(connection)), AMQP
    assert amqp.Connection.bytes_sent == 0, AMQP
    assert "bytes_sent" in inspect.getsource(amqp.Connection.heartbeat_tick), AMQP
    for transport in (TCPTransport, SSLTransport):
        assert callable(transport.write), AMQP
        assert transport("localhost").sock is None, AMQP


# -- kombu ---------------------------------------------------------------------------------------


def test_the_socket_of_a_connection_is_found_without_connecting() -> None:
    assert kombu.Connection("amqp://")._connection is None, KOMBU
    assert "_transport" in vars(amqp.Connection()), KOMBU


def test_declared_entities_are_known_by_their_hash() -> None:
    queue = kombu.Queue("declared", kombu.Exchange("declared"), routing_key="x")
    with kombu.Connection("memory://") as connection:
        assert hash(queue) not in connection.declared_entities, KOMBU
        maybe_declare(queue, connection.default_channel)
        assert hash(queue) in connection.declared_entities, KOMBU


@pytest.fixture
def redis_channel() -> Any:
    pytest.importorskip("redis")
    transport = kombu.Connection("redis://").transport
    return object.__new__(transport.Channel)  # not connected


def test_the_redis_channel_pushes_as_ours_does(redis_channel: Any) -> None:
    assert our_kombu.pushes_to_lists(redis_channel), KOMBU


@pytest.mark.parametrize(
    ("priority", "name"), [(None, "q"), (0, "q"), (3, "q\x06\x163"), (8, "q\x06\x166")]
)
def test_a_redis_list_is_named_by_queue_and_priority(
    redis_channel: Any, priority: int | None, name: str
) -> None:
    prepared = {"properties": {"priority": priority}}
    assert our_kombu.list_name(redis_channel, "q", prepared) == name, KOMBU


@needs_kombu_5_7
def test_the_redis_channel_knows_the_queues_that_expire(redis_channel: Any) -> None:
    source = inspect.getsource(type(redis_channel))
    assert source.count("self._expires = ") == 1, "ours keeps the dictionary. " + KOMBU
    assert callable(kombu.Producer.batch), KOMBU


def test_a_producer_of_kombu_uses_the_methods_of_its_channel() -> None:
    connection = kombu.Connection("memory://")
    producer = CapturingProducer(connection)
    queue = kombu.Queue("q")
    producer.publish(
        {"a": 1}, serializer="json", routing_key="q", exchange=kombu.Exchange("e"), priority=4,
        headers={"h": 1}, declare=[queue], mandatory=True, retry=True, correlation_id="c",
    )  # fmt: skip
    (captured,) = producer.messages
    assert (captured.body, captured.content_type) == (b'{"a": 1}', "application/json"), PRODUCER
    assert (captured.exchange, captured.routing_key) == ("e", "q"), PRODUCER
    assert (captured.priority, captured.mandatory) == (4, True), PRODUCER
    assert (captured.headers, captured.declare) == ({"h": 1}, (queue,)), PRODUCER
    assert captured.properties["correlation_id"] == "c", PRODUCER
    assert (producer.connection, connection.connected) == (connection, False), PRODUCER


# -- Celery --------------------------------------------------------------------------------------


def test_an_option_of_the_worker_can_have_a_heading() -> None:
    assert CeleryOption(["--flag"], help_group="Heading").help_group == "Heading", CELERY


def test_the_registry_is_found_without_finalizing_the_app() -> None:
    app = Celery("upstream", set_as_current=False)
    assert isinstance(our_celery.registry_of(app), our_celery.TaskRegistry), CELERY
    assert not app.finalized, CELERY
    assert our_celery.registry_of(app) is app.tasks, CELERY


def test_every_task_passes_through_the_registrys_setitem() -> None:
    seen: list[str] = []

    class Registry(our_celery.TaskRegistry):
        def __setitem__(self, name: str, task: Any) -> None:
            seen.append(name)
            super().__setitem__(name, task)

    class App(Celery):
        registry_cls = Registry

    app = App("upstream", set_as_current=False)
    app.task(name="upstream.one", shared=False)(do_nothing)
    app.register_task(type("Two", (celery.Task,), {"name": "upstream.two", "run": print})())
    app.finalize()
    assert {"upstream.one", "upstream.two"} <= set(seen), CELERY


def test_settings_are_looked_up_as_ours_look_them_up() -> None:
    assert our_celery.LOOKS_MAP_BY_MAP or celery.VERSION < (5, 7), CELERY
    if not our_celery.LOOKS_MAP_BY_MAP:
        pytest.skip("this Celery looks up settings by itself")
    maps = [{"CELERY_TASK_DEFAULT_QUEUE": "a", "broker_url": "b"}, {"task_default_queue": "c"}]
    for prefix in (None, "CELERY_"):
        theirs = our_celery.CelerySettings({}, maps, prefix=prefix)
        ours = our_celery.MapByMapSettings({}, maps, prefix=prefix)
        for name in ("task_default_queue", "broker_url", "CELERY_BROKER_URL", "nothing"):
            assert ours.get(name) == theirs.get(name), CELERY


def test_the_class_of_an_apps_settings_can_be_replaced() -> None:
    app = Celery("upstream", set_as_current=False, broker="memory://")
    app.conf.broker_url  # noqa: B018  Celery makes its settings when one is read
    source = app._conf
    our_celery.replace_settings_class(source, our_celery.MapByMapSettings)
    assert type(source) is our_celery.MapByMapSettings, CELERY
    assert app.conf.broker_url == "memory://", CELERY


def test_groups_ask_the_app_for_one_producer() -> None:
    assert "app.producer_or_acquire(" in inspect.getsource(celery.canvas.group._apply_tasks), CELERY
    assert parameters(Celery.producer_or_acquire) == ("self", "producer"), CELERY


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "rpc://"])
def test_a_result_backend_subscribes_where_ours_intercepts_it(url: str) -> None:
    backend = Celery("upstream", set_as_current=False, broker="memory://", backend=url).backend
    assert parameters(backend.on_task_call) == ("producer", "task_id"), CELERY
    consumer = backend.result_consumer
    assert parameters(consumer.consume_from) == ("task_id",), CELERY
    assert parameters(consumer.cancel_for) == ("task_id",), CELERY
    assert callable(consumer.on_wait_for_pending), CELERY
    assert hasattr(backend, "binding") == url.startswith("rpc"), CELERY


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "rpc://"])
def test_a_call_does_not_connect_to_the_result_backend(url: str) -> None:
    assert parse_url(url)["port"] in {1, None}, "nothing listens there"
    app = OutboxCelery("upstream", set_as_current=False, backend=url, broker="amqp://127.0.0.1:1//")
    producer = CapturingProducer(app.connection_for_write())
    app.backend.on_task_call(producer, "id")
    app.backend.add_pending_result(app.AsyncResult("id"))


@pytest.mark.parametrize("url", ["cache+memory://", "redis://127.0.0.1:1/0", "rpc://"])
@pytest.mark.parametrize(
    ("name", "wait"),
    [
        ("wait_for_pending", lambda app: app.AsyncResult("x").get()),
        ("iter_native", lambda app: app.ResultSet([app.AsyncResult("x")]).join_native()),
    ],
)
def test_results_wait_in_their_backend(name: str, wait: Any, url: str) -> None:
    app = Celery("upstream", set_as_current=False, broker="memory://", backend=url)
    with (
        patch.object(app.backend, name, side_effect=LookupError(name)),
        patch.object(app.backend, "add_pending_result"),
        pytest.raises(LookupError, match=name),
    ):
        wait(app)


def test_the_app_of_shared_tasks_is_found_without_creating_one() -> None:
    before = _state._tls.current_app, _state.default_app
    app = Celery("upstream", set_as_current=False)
    _state._tls.current_app = _state.default_app = None
    try:
        assert our_celery.app_of_shared_tasks() is None, CELERY
        assert our_celery.default_app() is None, CELERY
        app.set_default()
        assert our_celery.app_of_shared_tasks() is our_celery.default_app() is app, CELERY
        other = Celery("other")
        assert our_celery.app_of_shared_tasks() is other, CELERY
        assert our_celery.default_app() is app, CELERY
    finally:
        _state._tls.current_app, _state.default_app = before


def test_the_first_use_of_an_apps_tasks_is_announced() -> None:
    seen: list[Any] = []
    our_celery.on_tasks_used(seen.append)
    try:
        app = Celery("upstream", set_as_current=False)
        assert app not in seen, CELERY
        assert app.tasks is app.tasks
        assert seen.count(app) == 1, CELERY
    finally:
        _state._on_app_finalizers.discard(seen.append)


def test_a_step_may_be_given_by_its_path_and_once_more_as_a_class() -> None:
    blueprint = Blueprint(steps={STEP, OutboxRelayStep})
    assert list(blueprint.claim_steps().values()) == [OutboxRelayStep], CELERY


def test_no_task_is_running_here() -> None:
    assert our_celery.task_join_will_block() is False, CELERY


def test_a_task_can_be_run_by_celerys_tracer() -> None:
    app = Celery("upstream", set_as_current=False, broker="memory://")
    task = app.task(name="upstream.length", shared=False)(length)
    tracer = our_celery.build_tracer(task.name, task, eager=True, app=app)
    ended = tracer("id", ("four",), {}, {"is_eager": True, "delivery_info": {}})
    assert (ended.retval, ended.info) == (4, None), CELERY


def test_a_failing_task_has_the_message_that_it_came_in() -> None:
    app = Celery("upstream", set_as_current=False, broker="memory://")
    seen = []

    def fail(items: list[int]) -> None:
        items.append(2)
        raise ValueError("no")

    task = app.task(name="upstream.fail", shared=False)(fail)

    def receive(**_: Any) -> None:
        seen.append(celery_worker.delivered_message(task))

    headers = {"id": "x", "task": task.name, "lang": "py", "retries": 1, "custom": "a"}
    body, kind = b"[[[1]], {}, {}]", ("application/json", "utf-8")
    nested = {**headers, "headers": {"custom": "a"}}
    celery.signals.task_failure.connect(receive)
    try:
        for given in (headers, nested):
            celery_worker.trace_task_ret(task.name, "x", dict(given), body, *kind, app=app)
        task.apply(([1],))
    finally:
        celery.signals.task_failure.disconnect(receive)
    first, second, eager = seen
    assert first[1:] == (headers, body, *kind), WORKER
    assert second[1:] == (nested, body, *kind), WORKER
    assert (eager.body, eager.headers["task"]) == (None, task.name), WORKER
    assert [each.request.is_eager for each in seen] == [False, False, True], WORKER


def test_the_main_process_reports_a_lost_child_with_its_request() -> None:
    assert parameters(celery_worker.Request.on_failure)[:2] == ("self", "exc_info"), WORKER
    for name in ("request_dict", "body", "content_type", "content_encoding"):
        assert isinstance(vars(celery_worker.Request)[name], property), WORKER


# -- Django --------------------------------------------------------------------------------------


@pytest.fixture
def connection(django_db_blocker: Any) -> Iterator[DatabaseWrapper]:
    """A database in memory, under an alias of its own."""
    options = {**connections["default"].settings_dict, "NAME": ":memory:", "OPTIONS": {}}
    wrapper = DatabaseWrapper(options, "upstream")
    connections["upstream"] = wrapper
    with django_db_blocker.unblock():
        yield wrapper
        wrapper.close()
    del connections["upstream"]


def atomic() -> Any:
    return transaction.atomic(using="upstream")


def test_the_depth_of_atomic_blocks(connection: DatabaseWrapper) -> None:
    depths = [our_django.atomic_depth(connection)]
    with atomic():
        depths.append(our_django.atomic_depth(connection))
        with atomic():
            depths.append(our_django.atomic_depth(connection))
    assert depths == [0, 1, 2], DJANGO


def test_the_newest_hook_of_an_atomic_block(connection: DatabaseWrapper) -> None:
    def hook() -> None:
        """Nothing."""

    with atomic():
        assert our_django.last_commit_hook(connection) is None, DJANGO
        connection.on_commit(hook, robust=True)
        assert our_django.last_commit_hook(connection) is hook, DJANGO
        with atomic():
            assert our_django.last_commit_hook(connection) is None, DJANGO


def test_running_hooks_are_seen_on_the_call_stack(connection: DatabaseWrapper) -> None:
    seen: list[int] = []
    with atomic():
        connection.on_commit(lambda: seen.append(running_hooks()))
        seen.append(running_hooks())
    assert seen == [0, 1], DJANGO


def test_hooks_that_a_testcase_runs_are_seen_on_the_call_stack(connection: DatabaseWrapper) -> None:
    seen: list[bool] = []
    with (
        atomic(),
        testcases.TestCase.captureOnCommitCallbacks(using="upstream", execute=True),
    ):
        connection.on_commit(lambda: seen.append(is_in_hook()))
        seen.append(is_in_hook())
        assert len(our_django.commit_hooks(connection)) == 1, DJANGO
    assert seen[:2] == [False, True], DJANGO


def test_a_savepoint_of_atomic_is_seen_on_the_call_stack(connection: DatabaseWrapper) -> None:
    seen: list[tuple[str, bool]] = []

    def watch(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        seen.append((sql.split()[0], is_called_by_atomic()))
        return execute(sql, *rest)

    our_django.watch_statements(connection, watch)
    with atomic(), connection.cursor() as cursor:
        with atomic():
            cursor.execute("SELECT 1")
        cursor.execute("SAVEPOINT by_hand")
    our_django.unwatch_statements(connection, watch)
    with connection.cursor() as cursor:
        cursor.execute("SELECT 2")
    inside = [each for each in seen if each[0] != "BEGIN"]
    assert inside == [
        ("SAVEPOINT", True), ("SELECT", False), ("RELEASE", True), ("SAVEPOINT", False),
    ], DJANGO  # fmt: skip


def test_a_watcher_stays_when_a_callers_wrapper_ends(connection: DatabaseWrapper) -> None:
    def pass_on(execute: Callable[..., Any], *rest: Any) -> Any:
        return execute(*rest)

    with connection.execute_wrapper(lambda execute, *rest: execute(*rest)):
        our_django.watch_statements(connection, pass_on)
    assert connection.execute_wrappers == [pass_on], DJANGO


def test_a_broken_transaction_is_known(connection: DatabaseWrapper) -> None:
    assert not our_django.will_roll_back(connection), DJANGO
    with atomic():
        assert not our_django.will_roll_back(connection), DJANGO
        transaction.set_rollback(True, using="upstream")
        assert our_django.will_roll_back(connection), DJANGO


def test_the_transaction_of_a_testcase_is_known(connection: DatabaseWrapper) -> None:
    with atomic():
        assert not our_django.is_in_testcase(connection), DJANGO
    block = atomic()
    block._from_testcase = True
    with block:
        assert our_django.is_in_testcase(connection), DJANGO
        assert our_django.is_of_testcase(our_django.atomic_blocks(connection)[-1]), DJANGO
        with atomic():
            assert our_django.is_in_testcase(connection), DJANGO
            assert not our_django.is_of_testcase(our_django.atomic_blocks(connection)[-1]), DJANGO
    assert "._from_testcase = True" in inspect.getsource(testcases.TestCase), DJANGO


def test_a_new_connection_may_change_threads_and_keeps_no_statements(
    connection: DatabaseWrapper,
) -> None:
    new = our_django.new_connection("upstream", connection.settings_dict, like=connection)
    assert new.allow_thread_sharing, DJANGO
    new.force_debug_cursor = True
    with new.cursor() as cursor:
        cursor.execute("SELECT 1")
        cursor.execute("SELECT 2")
    assert [each["sql"] for each in new.queries_log] == ["SELECT 2"], DJANGO
    new.close()


def test_settings_are_where_ours_look_for_them() -> None:
    assert type(settings._wrapped) is Settings, DJANGO
    fast = our_django.FastDjangoSettings(settings)
    assert "DATABASES" in fast, DJANGO
    assert "CELERY_BROKER_URL" in fast, DJANGO
    assert "CELERY_NOT_THERE" not in fast, DJANGO


def test_the_admin_of_a_model_is_found() -> None:
    site = AdminSite()
    assert our_django.admin_of(site, CeleryOutbox) is None, DJANGO
    site.register(CeleryOutbox)
    page = our_django.admin_of(site, CeleryOutbox)
    assert page is not None, DJANGO
    assert page.model is CeleryOutbox, DJANGO


def test_a_query_is_compiled_with_its_parameters(connection: DatabaseWrapper) -> None:
    rows = CeleryOutbox.objects.using("upstream").filter(task_name="a name", retries=2)
    where, params = our_django.where_clause_of(rows)
    assert where.count("%s") == len(params) == 2, DJANGO
    sql, params = our_django.statement_of(rows)
    assert sql.startswith("SELECT"), DJANGO
    assert sorted(map(str, params)) == ["2", "a name"], DJANGO
