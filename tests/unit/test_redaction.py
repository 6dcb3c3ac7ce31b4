"""Redaction by itself: every signature under its own name, and never the original by accident."""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_integration.enqueue.redaction import PLACEHOLDER, redact, visible_options


def stars(task_name: str, args: Any, kwargs: Any) -> Any:
    return [f"*{task_name}*"], {}


def fail(task_name: str, args: Any, kwargs: Any) -> Any:
    raise ValueError(args)


def signature(task: str, **options: Any) -> dict[str, Any]:
    return {"task": task, "args": ["secret"], "kwargs": {"k": "secret"}, "options": options,
            "subtask_type": None, "immutable": False}  # fmt: skip


def test_args_and_kwargs_are_what_the_redactor_says() -> None:
    assert redact(stars, "t", lambda: (["secret"], {"a": "secret"})) == ('["*t*"]', "{}")


def test_signatures_inside_of_what_it_says_are_redacted_too() -> None:
    nested = {"deep": [signature("inner", link=[signature("innermost")])]}
    shown, _ = redact(
        lambda name, args, kwargs: (args, kwargs) if name == "t" else stars(name, args, kwargs),
        "t", lambda: ([nested], {}),
    )  # fmt: skip
    assert "secret" not in shown
    assert "*inner*" in shown
    assert "*innermost*" in shown


def only_inner(task_name: str, args: Any, kwargs: Any) -> Any:
    return stars(task_name, args, kwargs) if task_name == "inner" else (args, kwargs)


@pytest.mark.parametrize(
    ("mapping", "items"),
    [("celery.map", ["secret"]), ("celery.map", [["secret"]]), ("celery.starmap", [["secret"]]),
     ("celery.chunks", [["secret"]])],
)  # fmt: skip
def test_the_many_calls_of_a_map_are_redacted_under_the_name_of_its_task(
    mapping: str, items: list[Any]
) -> None:
    kwargs = {"task": signature("inner"), "it": items}
    _, shown = redact(only_inner, mapping, lambda: ([], kwargs))
    assert json.loads(shown)["it"] == [["*inner*"]]
    inside = {"task": mapping, "args": [], "kwargs": kwargs}
    shown, _ = redact(only_inner, "outer", lambda: ([inside], {}))
    assert "secret" not in shown


def test_a_map_that_the_redactor_has_emptied_stays_so() -> None:
    def hide(task_name: str, args: Any, kwargs: Any) -> Any:
        return "[hidden]", "[hidden]"

    kwargs = {"task": signature("inner"), "it": ["secret"]}
    assert redact(hide, "celery.map", lambda: ([], kwargs)) == ('"[hidden]"', '"[hidden]"')


def broken() -> Any:
    raise RecursionError


@pytest.mark.parametrize("redactor", [fail, lambda *_: None, lambda *_: 5])
def test_a_failure_shows_a_placeholder(redactor: Any) -> None:
    assert redact(redactor, "t", lambda: (["secret"], {})) == (json.dumps(PLACEHOLDER),) * 2


def test_arguments_that_cannot_be_copied_show_a_placeholder() -> None:
    assert redact(stars, "t", broken) == (json.dumps(PLACEHOLDER),) * 2


def options(**more: Any) -> str:
    embed = {"callbacks": [signature("callback")], "errbacks": None, "chain": None, "chord": None}
    headers = {"argsrepr": "('secret',)", "kwargsrepr": "{'a': 'secret'}", "task": "t"}
    return json.dumps({"headers": headers, "embed": json.dumps(embed),
                       "event": {"body": "secret"}, **more})  # fmt: skip


def test_people_see_routing_and_headers_but_no_arguments() -> None:
    shown = visible_options(options(exchange="e"), stars)
    assert (shown["exchange"], shown["headers"]) == ("e", {"task": "t"})
    assert shown["embed"]["callbacks"][0]["args"] == ["*callback*"]
    assert "secret" not in json.dumps(shown)


def test_a_failing_redactor_hides_the_callbacks() -> None:
    assert visible_options(options(), fail)["embed"] == PLACEHOLDER


def test_without_a_redactor_callbacks_are_shown() -> None:
    assert visible_options(options(), None)["embed"]["callbacks"][0]["args"] == ["secret"]


def test_callbacks_that_kombu_cannot_read_are_hidden() -> None:
    hostile = options(embed=json.dumps({"callbacks": [{"__type__": "x", "__value__": "secret"}]}))
    assert visible_options(hostile, stars)["embed"] == PLACEHOLDER
    assert "callbacks" in visible_options(hostile, None)["embed"]
