"""docs/reference/sql shows the statements that are really executed."""

from __future__ import annotations

import pytest

from tests.contract.sql_layout import laid_out
from tests.contract.statements import (
    BACKENDS,
    REGENERATE,
    SQL_FILES,
    Recording,
    as_file,
    without_white_space,
)


def test_the_files_hold_what_is_executed(database):
    if database.name not in BACKENDS.values():
        pytest.skip("recorded with the database's first driver; the statements are the same")
    written = (SQL_FILES / f"{database.vendor}.sql").read_text()
    executed = as_file(Recording(database).run())
    same = without_white_space(written) == without_white_space(executed)
    assert same, f"{database.vendor}.sql is out of date, run: {REGENERATE}"


@pytest.mark.parametrize("sql", ["SELECT a FROM b WHERE c = 'x  y' AND d IN (1, 2)", "COMMIT"])
def test_the_layout_changes_white_space_only(sql):
    assert " ".join(laid_out(sql).split()) == " ".join(sql.split())
