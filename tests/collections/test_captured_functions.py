"""Captured values of functions: a stage keeps the values of its definition."""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import nosync_nb
from nosync_nb import Session
from nosync_nb.collections.functions import closure
from nosync_nb.collections.functions.closure import CapturedFunction

ROWS = [(1,), (5,), (9,), (12,)]

# What a cell defines, what a later cell does, and what `keep` then would say otherwise.
CAPTURED = {
    "a global": ("LIMIT = 4\nkeep = lambda r: r.x > LIMIT", "LIMIT = 10"),
    "a global of a helper": (
        "LIMIT = 4\ndef big(x): return x > LIMIT\ndef keep(r): return big(r.x)",
        "LIMIT = 10",
    ),
    "a helper": (
        "def big(x): return x > 4\ndef keep(r): return big(r.x)",
        "def big(x): return x > 10",
    ),
    "a deleted global": ("LIMIT = 4\nkeep = lambda r: r.x > LIMIT", "del LIMIT"),
    "a list": ("some = [5, 9, 12]\nkeep = lambda r: r.x in some", "some.remove(9)"),
    "a dict in a dict": (
        "some = {'a': {'limit': 4}}\nkeep = lambda r: r.x > some['a']['limit']",
        "some['a']['limit'] = 10",
    ),
    "a default": ("def keep(r, some=[5, 9, 12]): return r.x in some", "keep.__defaults__[0].pop()"),
    "a keyword default": (
        "def keep(r, *, some={5, 9, 12}): return r.x in some",
        "keep.__kwdefaults__['some'].clear()",
    ),
    "a cell": (
        "def make(limit):\n"
        "    def keep(r): return r.x > limit\n"
        "    def move(to):\n"
        "        nonlocal limit\n"
        "        limit = to\n"
        "    return keep, move\n"
        "keep, move = make(4)",
        "move(10)",
    ),
    "a partial": (
        "import functools\n"
        "some = [5, 9, 12]\n"
        "keep = functools.partial(lambda some, r: r.x in some, some)",
        "some.pop()",
    ),
    "a function with a cache": (
        "import functools\n"
        "LIMIT = 4\n"
        "@functools.lru_cache\n"
        "def big(x): return x > LIMIT\n"
        "keep = lambda r: big(r.x)",
        "LIMIT = 10\nbig.cache_clear()",
    ),
    "a recursive function with a cache": (
        "import functools\n"
        "LIMIT = 4\n"
        "@functools.cache\n"
        "def big(x): return big(x - 1) or x == LIMIT + 1 if x > 0 else False\n"
        "keep = lambda r: big(r.x)",
        "LIMIT = 10\nbig.cache_clear()",
    ),
    "a method with a cache": (
        "import functools\n"
        "class Above:\n"
        "    limit = 4\n"
        "    @functools.lru_cache(maxsize=8)\n"
        "    def keep(self, x): return x > self.limit\n"
        "    def __call__(self, r): return self.keep(r.x) and self.keep.cache_info().maxsize == 8\n"
        "keep = Above()",
        "Above.limit = 10\nAbove.keep.cache_clear()",
    ),
    "a class": (
        "class Config:\n    limit = 4\nkeep = lambda r: r.x > Config.limit",
        "Config.limit = 10",
    ),
    "a method": (
        "class Above:\n"
        "    def __init__(self, limit): self.limit = limit\n"
        "    def keep(self, r): return r.x > self.limit\n"
        "above = Above(4)\nkeep = above.keep",
        "above.limit = 10",
    ),
    "a dataclass": (
        "import dataclasses\n"
        "@dataclasses.dataclass\n"
        "class Config:\n    limit: int\n"
        "config = Config(4)\nkeep = lambda r: r.x > config.limit",
        "config.limit = 10",
    ),
    "an array": (
        "import numpy as np\nsome = np.array([5, 9, 12])\nkeep = lambda r: r.x in some",
        "some[:] = 0",
    ),
}


def run_cells(*texts: str) -> dict[str, Any]:
    """The names of a notebook after running cells."""
    space: dict[str, Any] = {"__name__": "__main__"}
    for text in texts:
        exec(text, space)
    return space


@pytest.mark.parametrize(("cell", "later"), CAPTURED.values(), ids=CAPTURED)
def test_retraction_uses_captured_values(session: Session, cell: str, later: str) -> None:
    space = run_cells(cell)
    t = session.input("t", "x int")
    big = session.stage("big", t.filter(space["keep"]))
    t.insert(ROWS)
    session.commit()
    assert [r.x for r in big.rows()] == [5, 9, 12]
    exec(later, space)
    t.insert([(7,), (10,)])
    t.remove([(5,), (12,)])
    session.commit()
    assert [r.x for r in big.rows()] == [r.x for r in t.filter(run_cells(cell)["keep"]).rows()]
    t.remove([(1,), (7,), (9,), (10,)])
    session.commit()
    assert big.rows() == []


def test_values_are_captured_when_function_is_passed(session: Session) -> None:
    t = session.input("t", "x int")
    t.insert(ROWS)
    session.commit()
    made = [t.filter(lambda r: r.x == limit) for limit in (1, 5)]  # noqa: B023 - that is it
    assert [[r.x for r in c.rows()] for c in made] == [[1], [5]]


def test_name_bound_later_is_captured_when_stage_is_defined(session: Session) -> None:
    space = run_cells("keep = lambda r: r.x > LIMIT")
    t = session.input("t", "x int")
    t.insert(ROWS)
    session.commit()
    kept = t.filter(space["keep"])
    space["LIMIT"] = 4
    big = session.stage("big", kept)
    space["LIMIT"] = 10
    t.remove(ROWS[1:])
    session.commit()
    assert big.rows() == []


def test_rerun_cell_with_other_value_is_new_version(session: Session) -> None:
    space = run_cells("LIMIT = 4\nkeep = lambda r: r.x > LIMIT")
    t = session.input("t", "x int")
    t.insert(ROWS)
    session.commit()
    session.stage("big", t.filter(space["keep"]))
    space["LIMIT"] = 10
    (report,) = session.define({"big": t.filter(space["keep"])})
    assert (report.status, report.version) == ("changed", 2)
    assert [r.x for r in session["big"].rows()] == [12]
    assert [r.x for r in session["big@1"].rows()] == [5, 9, 12]
    space["LIMIT"] = 4
    (report,) = session.define({"big": t.filter(space["keep"])})
    assert (report.status, report.version) == ("changed", 3)
    t.remove([(5,), (12,)])
    session.commit()
    assert [r.x for r in session["big"].rows()] == [9]


def test_captured_values_survive_restart(tmp_path: Path) -> None:
    space = run_cells("some = [5, 9, 12]\nkeep = lambda r: r.x in some")

    def described(session: Session) -> Any:
        return session.input("t", "x int").filter(space["keep"])

    with nosync_nb.open(tmp_path / "log") as session:
        kept = described(session)
        space["some"].remove(12)
        session.stage("big", kept)
        session["t"].insert(ROWS)
        session.commit()
    with nosync_nb.open(tmp_path / "log") as session:
        assert [r.x for r in session["big"].rows()] == [5, 9, 12]
        session["t"].remove([(12,)])
        session.commit()
        assert [r.x for r in session["big"].rows()] == [5, 9]
        (report,) = session.define({"big": described(session)})
        assert report.status == "changed"


def test_restart_in_same_process_leaves_classes_of_user_unchanged(tmp_path: Path) -> None:
    space = run_cells("class Config:\n    limit = 4\nkeep = lambda r: r.x > Config.limit")
    with nosync_nb.open(tmp_path / "log") as session:
        session.stage("big", session.input("t", "x int").filter(space["keep"]))
        session["t"].insert(ROWS)
        session.commit()
    space["Config"].limit = 10
    with nosync_nb.open(tmp_path / "log") as session:
        session["t"].remove(ROWS)
        session.commit()
        assert session["big"].rows() == []
    assert space["Config"].limit == 10


def test_reloaded_module_of_user_changes_no_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "captured_helpers.py"
    file.write_text("LIMIT = 4\ndef big(x):\n    return x > LIMIT\n")
    space = run_cells("import captured_helpers\nkeep = lambda r: captured_helpers.big(r.x)")
    try:
        with nosync_nb.open(tmp_path / "log") as session:
            t = session.input("t", "x int")
            big = session.stage("big", t.filter(space["keep"]))
            t.insert(ROWS)
            session.commit()
            file.write_text("LIMIT = 10\ndef big(x):\n    return x >= LIMIT\n")
            importlib.reload(space["captured_helpers"])
            t.remove(ROWS)
            session.commit()
            assert big.rows() == []
    finally:
        del sys.modules["captured_helpers"]


def test_installed_code_is_not_copied() -> None:
    assert CapturedFunction(Counter).function is Counter
    assert CapturedFunction(re.escape).function is re.escape
    space = run_cells("import re\nkeep = lambda r: re.match('a', r.x)")
    assert CapturedFunction(space["keep"]).function.__globals__["re"] is re  # type: ignore[attr-defined]


def test_uncopyable_function_runs_with_warning(session: Session) -> None:
    text = "class Any:\n    __reduce__ = None\nitem = Any()\nkeep = lambda r: item is not None"
    t = session.input("t", "x int")
    with pytest.warns(UserWarning, match="identity: this kernel; .* do not change"):
        kept = session.stage("kept", t.filter(run_cells(text)["keep"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        t.insert(ROWS)
        session.commit()
    assert len(kept.rows()) == len(ROWS)


def test_cached_function_keeps_name_and_docstring_in_log() -> None:
    space = run_cells(
        "import functools\n@functools.lru_cache(maxsize=3)\n"
        "def big(x):\n    'Says much.'\n    return x > 4"
    )
    again = closure.deserialize_function(closure.serialize_function(space["big"], ("__main__",)))
    assert (again.__name__, again.__doc__) == ("big", "Says much.")
    assert [again(4), again(5), again(5)] == [False, True, True]
    assert again.cache_info()[:3] == (1, 2, 3)
    assert again.cache_parameters()["maxsize"] == 3
