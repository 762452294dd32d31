"""Variables of a notebook: no command overwrites a variable of the user."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from jupyter.shell import Notebook

import nosync

OTHER = """
src = nosync.open("other", mode="r")
flights, daily, other_name = src["flights"], src["daily"], src["daily"]
total, rates, when = 5, [1, 2], lambda: 0
import math as delays
"""
"""A cell of a colleague: stages of another log, one of them renamed, and values."""

HELD = ("src", "flights", "daily", "other_name", "total", "rates", "when", "delays")

BEGIN = [
    'nosync.input("mine", "id int")',
    '%%dd\nmine = nosync.input("mine", "id int")\nbig = mine.filter("id > 5")',
    '%%dd\nbig = daily.filter("id > 5")',
    "%%dd\nraise ValueError('no')",
    "nosync.session()",
    "%dd open log",
    "%dd open third",
    "%dd open other --mode r",
    "%dd status",
]
"""Cells that open the notebook's log, or another one, for the first time in a kernel."""

CHANGE = [
    "nosync.session().close()\nnosync.session()",
    "%dd open third",
    "%dd open other --mode r",
    "%dd branch b\n%dd switch b",
    "%dd branch b\n%dd switch b\n%dd switch",
    "%dd rewind 1",
    "%dd drop daily",
    "%dd rename daily later",
    "%dd drop flights --cascade",
    "%reload_ext nosync",
    "%unload_ext nosync",
]
"""Cells that leave or change a log whose stages have the names of the variables."""


@pytest.fixture
def other(tmp_path: Path, plain: Notebook) -> Path:
    return _log(tmp_path / "other", [(1,), (2,)])


def _log(folder: Path, rows: list[tuple[int]]) -> Path:
    with nosync.open(folder) as session:
        flights = session.input("flights", "id int")
        session.stage("daily", flights.filter("id > 1"))
        session.stage("total", flights.filter("id > 2"))
        flights.insert(rows)
        session.commit()
    return folder


def _run(notebook: Notebook, source: str) -> str:
    cells = [source] if source.startswith("%%") else source.splitlines()
    return "".join(notebook.cell(cell).text for cell in cells)


def _held_values(notebook: Notebook) -> dict[str, Any]:
    return {name: notebook.names.get(name) for name in HELD}


@pytest.mark.parametrize("log", ["new", "of the same names"])
@pytest.mark.parametrize("source", BEGIN)
def test_open_replaces_no_variable_of_user(
    plain: Notebook, other: Path, tmp_path: Path, source: str, log: str
) -> None:
    for name in ("log", "third") if log != "new" else ():
        _log(tmp_path / name, [(7,), (8,), (9,)])
    plain.ok("import nosync" + OTHER)
    before = _held_values(plain)
    plain.ok("%load_ext nosync")
    _run(plain, source)
    assert _held_values(plain) == before
    assert [tuple(row) for row in plain.names["daily"].rows()] == [(2,)]
    _run(plain, "zz = 1")
    assert _held_values(plain) == before


@pytest.mark.parametrize("source", CHANGE)
def test_closing_or_changing_log_removes_no_variable_of_user(
    plain: Notebook, other: Path, tmp_path: Path, source: str
) -> None:
    _log(tmp_path / "log", [(7,), (8,), (9,)])
    plain.ok("%load_ext nosync")
    plain.ok(OTHER)
    before = _held_values(plain)
    _run(plain, source)
    assert _held_values(plain) == before


def test_log_reports_stages_hidden_by_variables(
    plain: Notebook, other: Path, tmp_path: Path
) -> None:
    _log(tmp_path / "log", [(7,), (8,), (9,)])
    plain.ok("import nosync" + OTHER)
    shown = plain.ok("%load_ext nosync")
    for name in ("flights", "daily", "total"):
        assert f'{name} is your variable; the stage is session["{name}"]' in shown
    assert [tuple(row) for row in nosync.session()["daily"].rows()] == [(7,), (8,), (9,)]


def test_stage_of_another_session_is_not_restored_as_local_one(
    plain: Notebook, other: Path, tmp_path: Path
) -> None:
    """After a restart the name is missing, and the report names the cell that bound it."""
    _log(tmp_path / "log", [(7,), (8,), (9,)])
    plain.ok("%load_ext nosync")
    plain.ok('src = nosync.open("other", mode="r")\nelsewhere = src["daily"]\nmine = daily')
    plain.close()
    with closing(Notebook()) as again:
        again.ok("%load_ext nosync")
        assert "elsewhere" not in again.names
        assert "elsewhere" in nosync.session().recovery.not_restored
        assert [tuple(row) for row in again.names["mine"].rows()] == [(7,), (8,), (9,)]


def test_stage_of_another_session_is_no_alias(plain: Notebook, other: Path) -> None:
    plain.ok("%load_ext nosync")
    plain.ok("nosync.session()" + OTHER)
    shown = plain.fails('%%dd\nmore = src["daily"]')
    assert "'more': the collection belongs to another session" in shown
