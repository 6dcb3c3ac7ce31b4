"""The page on writing a store: its store passes the contract suite, and a broken one does not."""

from __future__ import annotations

import pytest

from tests.docs.pages import DOCS, blocks

PAGE = DOCS / "how-to" / "writing-a-store.md"
HONEST = "        return messages\n"


@pytest.fixture
def snippet() -> str:
    (block,) = (block for block in blocks(PAGE) if block.language == "python")
    assert block.file == "test_my_store.py"
    assert HONEST in block.text
    return block.text


@pytest.fixture(autouse=True)
def _no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but pytest itself, as in a project without Django."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)


def run(pytester: pytest.Pytester, text: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(test_my_store=text)
    return pytester.runpytest_subprocess("-q", *options)


def test_the_store_of_the_page_passes_the_suite_without_django(
    pytester: pytest.Pytester, snippet: str
) -> None:
    last = "\n\ndef test_no_django():\n    import sys\n    assert 'django.db' not in sys.modules\n"
    outcomes = run(pytester, snippet + last).parseoutcomes()
    assert set(outcomes) == {"passed"}
    assert outcomes["passed"] > 100


def test_a_store_that_claims_in_the_wrong_order_fails_it_with_the_values_shown(
    pytester: pytest.Pytester, snippet: str
) -> None:
    """pytest rewrites the suite's assertions although it is in an installed package."""
    result = run(
        pytester, snippet.replace(HONEST, "        return messages[::-1]\n"), "-k", "claim"
    )
    assert min(result.parseoutcomes()[outcome] for outcome in ("failed", "passed")) > 0
    result.stdout.fnmatch_lines(["*test_a_claim_goes_by_due_time*", "*assert [[]*] == [[]*]*"])
