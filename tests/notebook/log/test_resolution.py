"""Resolution of a notebook's log: a table over facts of notebook and logs."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pytest

from nosync.log import notebook_facts
from nosync.log.location import RECORD
from nosync.log.notebook_facts import NotebookFile, cell_identity, read_record, write_record
from nosync.log.resolution import (
    KnownLog,
    LogRecord,
    NotebookFacts,
    is_same_notebook,
    resolution_text,
    resolve_log,
)

LOGS = Path("/w/.nosync")
TUTORIALS = Path(__file__).resolve().parents[3] / "tutorials"
FILE, OTHER_FILE = (1, 10), (1, 11)
K1, K2 = "1b4e28ba-2fa1-11d2-883f-0016d3cca427", "2b4e28ba-2fa1-11d2-883f-0016d3cca427"


def cell_ids(letters: str) -> frozenset[str]:
    """Ids of cells as Jupyter generates them."""
    return frozenset(f"{ord(each):08x}" for each in letters)


def given(name: str = "flights", **known: Any) -> NotebookFacts:
    """A saved notebook with the cells `a` and `b`; arguments override its facts."""
    usual = {"file": FILE, "cells": cell_ids("ab"), "kernel": K1}
    return NotebookFacts(natural=LOGS / name, notebook=f"/w/{name}.ipynb", **{**usual, **known})


def log(name: str = "flights", *, lives: str = "", brought: bool = False, **known: Any) -> KnownLog:
    """A log that recorded cell `a` of its notebook in an earlier kernel."""
    usual = {"notebook": f"/w/{name}.ipynb", "file": FILE, "cells": cell_ids("a"), "kernel": K2}
    record = LogRecord(**{**usual, "log": str(LOGS / name), "seen": 1.0, **known})
    return KnownLog(LOGS / name, record, lives, brought, record.former)


def text_ids(letters: str) -> frozenset[str]:
    """Ids that replace those of numbered cells with these texts."""
    return frozenset(cell_identity("0", each) for each in letters)


SETUP = frozenset({"setup", "load-data"})
"""Ids written by hand, which occur in many notebooks."""

UNKNOWN = KnownLog(LOGS / "flights")
UNTITLED = "Untitled"

CASES = {
    "nothing is there": (given(), [], "flights", "new", ""),
    "the next day": (given(), [log()], "flights", "file", ""),
    "a log of before records": (given(), [UNKNOWN], "flights", "path", ""),
    "the user has chosen": (given(chosen=LOGS / "x"), [log()], "x", "chosen", ""),
    "first save of Untitled, in its kernel": (
        given("quick", cells=frozenset()), [log(UNTITLED, kernel=K1)], UNTITLED, "kernel", "",
    ),
    "first save of Untitled, the next day": (
        given("quick"),
        [log(UNTITLED), log("other", cells=cell_ids("x"), file=OTHER_FILE)],
        UNTITLED,
        "file",
        "",
    ),
    "the next Untitled, in its first cell": (
        given(UNTITLED, file=OTHER_FILE, cells=cell_ids("n")),
        [log(UNTITLED, lives="/w/quick.ipynb")],
        "Untitled-2",
        "new",
        "",
    ),
    "the next Untitled of many": (
        given(UNTITLED, file=(1, 12), cells=cell_ids("n")),
        [
            log(UNTITLED, lives="/w/quick.ipynb"),
            KnownLog(LOGS / "Untitled-2", LogRecord(cells=cell_ids("z"), notebook="/w/b.ipynb")),
        ],
        "Untitled-3",
        "new",
        "",
    ),
    "the next Untitled, of which no cell is known": (
        given(UNTITLED, file=OTHER_FILE, cells=frozenset()),
        [log(UNTITLED, lives="/w/quick.ipynb")],
        "Untitled-2",
        "new",
        "",
    ),
    "deleted and made anew, with the number of the old file": (
        given(cells=cell_ids("n")), [log()], "flights-2", "new", "gone",
    ),
    "deleted and made anew, no cell in it yet": (
        given(cells=frozenset()), [log()], "flights-2", "new", "gone",
    ),
    "the number of a file that is gone went to one of another name": (
        given("fresh", cells=cell_ids("n")), [log()], "fresh", "new", "",
    ),
    "moved with its cells to another disk": (
        given("moved", file=(2, 7)), [log()], "flights", "cells", "",
    ),
    "checked out of git": (given(file=OTHER_FILE), [log()], "flights", "cells", ""),
    "ids written by hand, checked out of git": (
        given(file=OTHER_FILE, cells=SETUP), [log(cells=SETUP)], "flights", "cells", "",
    ),
    "ids written by hand, renamed": (
        given("renamed", cells=SETUP), [log(cells=SETUP)], "flights", "file", "",
    ),
    "one of them, in the number of a file that is gone": (
        given("other", cells=frozenset({"setup", "plot"})),
        [log(cells=SETUP)],
        "other",
        "new",
        "maybe",
    ),
    "ids written by hand, and those of a notebook that is gone": (
        given("other", file=OTHER_FILE, cells=SETUP), [log(cells=SETUP)], "other", "new", "maybe",
    ),
    "one of them, before the notebook was saved": (
        given("other", file=None, cells=frozenset({"setup"})),
        [log(cells=SETUP)],
        "other",
        "new",
        "maybe",
    ),
    "ids written by hand, a copy": (
        given("copy", file=OTHER_FILE, cells=SETUP),
        [log(cells=SETUP, lives="/w/flights.ipynb")],
        "copy",
        "new",
        "copy",
    ),
    "one of them, of a notebook that is there": (
        given("other", file=OTHER_FILE, cells=frozenset({"setup", "plot", "fit"})),
        [log(cells=SETUP, lives="/w/flights.ipynb")],
        "other",
        "new",
        "",
    ),
    "a copy, its original there": (
        given("copy", file=OTHER_FILE), [log(lives="/w/flights.ipynb")], "copy", "new", "copy",
    ),
    "a copy that has its own log by now": (
        given("copy", file=OTHER_FILE),
        [log(lives="/w/flights.ipynb", seen=9.0), log("copy", file=OTHER_FILE)],
        "copy",
        "file",
        "",
    ),
    "the original of a copy, checked out of git": (
        given(file=(1, 12)),
        [log(), log("copy", file=OTHER_FILE, seen=9.0, lives="/w/copy.ipynb")],
        "flights",
        "cells",
        "",
    ),
    "the whole folder was copied, log and all": (
        given(file=OTHER_FILE),
        [log(log="/v/.nosync/flights", brought=True)],
        "flights",
        "cells",
        "",
    ),
    "another log was opened in the notebook last": (
        given(),
        [log(seen=1.0), log("adopted", notebook="/w/flights.ipynb", seen=2.0)],
        "adopted",
        "file",
        "",
    ),
    "another log was opened in this kernel last": (
        given(cells=None),
        [log(seen=1.0, kernel=K1), log("adopted", seen=2.0, kernel=K1)],
        "adopted",
        "kernel",
        "",
    ),
    "a notebook that keeps no ids of cells": (
        given(cells=None), [log(cells=())], "flights", "path", "",
    ),
    "one without ids, and another file than the log knows": (
        given(cells=None, file=OTHER_FILE), [log(cells=())], "flights-2", "new", "gone",
    ),
    "one without ids, renamed": (
        given("renamed", cells=None), [log(cells=())], "renamed", "new", "maybe",
    ),
    "a runner that tells nothing but the path": (
        given(cells=None, file=None, kernel=""), [log()], "flights", "path", "",
    ),
    "one that tells the path of a notebook that was renamed to it": (
        given(cells=None, file=None, kernel=""),
        [log(notebook="/w/before.ipynb")],
        "flights-2",
        "new",
        "gone",
    ),
    "numbered cells, of which one has a text of another notebook's": (
        given("other", file=OTHER_FILE, cells=text_ids("abcd")),
        [log(cells=text_ids("axyz"))],
        "other",
        "new",
        "",
    ),
    "numbered cells, with the texts of a notebook that is there": (
        given("copy", file=OTHER_FILE, cells=text_ids("abcd")),
        [log(cells=text_ids("abx"), lives="/w/flights.ipynb")],
        "copy",
        "new",
        "copy",
    ),
    "numbered cells, checked out of git": (
        given(file=OTHER_FILE, cells=text_ids("abcd")),
        [log(cells=text_ids("abx"))],
        "flights",
        "cells",
        "",
    ),
    "numbered cells, all of them edited": (
        given(cells=text_ids("xyz")), [log(cells=text_ids("ab"))], "flights", "path", "",
    ),
    "cells that were numbered in the file after the log saw them": (
        given(cells=text_ids("ab")), [log()], "flights", "path", "",
    ),
    "numbered cells, renamed and all of them edited": (
        given("renamed", cells=text_ids("xyz")), [log(cells=text_ids("ab"))],
        "renamed", "new", "maybe",
    ),
    "numbered cells, in another file of the name": (
        given(file=OTHER_FILE, cells=text_ids("xyz")),
        [log(cells=text_ids("ab"))],
        "flights-2",
        "new",
        "gone",
    ),
    "a former name of another notebook's log": (
        given(UNTITLED, file=OTHER_FILE, cells=cell_ids("n")),
        [log("sales", former=(str(LOGS / UNTITLED),))],
        "Untitled-2",
        "new",
        "",
    ),
    "another notebook took its log": (
        given("sales", file=OTHER_FILE, cells=cell_ids("xy")),
        [log(lives="/w/flights.ipynb", previous=("/w/sales.ipynb", OTHER_FILE))],
        "sales",
        "new",
        "taken",
    ),
    "a new notebook with the name of one whose log was taken": (
        given("sales", file=(1, 12), cells=cell_ids("n")),
        [log(lives="/w/flights.ipynb", previous=("/w/sales.ipynb", OTHER_FILE))],
        "sales",
        "new",
        "",
    ),
    "nobody tells the name": (NotebookFacts(kernel=K1), [log()], None, "new", ""),
    "nobody tells the name, but the kernel has a log": (
        NotebookFacts(kernel=K1), [log(kernel=K1)], "flights", "kernel", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_notebook_opens_own_log_or_new_one_that_names_other(case: str) -> None:
    facts, logs, name, why, relation = CASES[case]
    for known in (logs, logs[::-1]):
        verdict = resolve_log(facts, known)
        expected = None if name is None else LOGS / name
        assert (verdict.log, verdict.why, verdict.relation) == (expected, why, relation)
    line = resolution_text(verdict, ".nosync/flights", "flights.ipynb")
    assert bool(relation) == ("%dd open .nosync/flights" in line)


RENAMES = {
    "named after the notebook": ("Untitled", True, [], "flights"),
    "named by the user": ("special", False, [], None),
    "has the name already": ("flights", True, [], None),
    "has the name and a number": ("flights-2", True, [], None),
    "the name is taken": ("Untitled-2", True, ["flights"], "flights-2"),
    "the name and the next one are taken": (
        "Untitled",
        True,
        ["flights", "flights-2"],
        "flights-3",
    ),
    "a name that only begins alike": ("flights-old", True, [], "flights"),
}


@pytest.mark.parametrize("case", RENAMES)
def test_log_folder_takes_name_of_notebook(case: str) -> None:
    name, automatic, others, expected = RENAMES[case]
    own = log(name, notebook="/w/flights.ipynb", automatic=automatic)
    taken = [
        log(each, notebook=f"/w/{i}.ipynb", file=(2, i), cells=cell_ids("z"), lives=f"/w/{i}.ipynb")
        for i, each in enumerate(others)
    ]
    verdict = resolve_log(given(), [own, *taken])
    assert verdict.log == own.path
    assert verdict.rename == (None if expected is None else LOGS / expected)


def test_log_folder_chosen_by_user_or_elsewhere_keeps_name() -> None:
    own = log(UNTITLED, notebook="/w/flights.ipynb", automatic=True)
    assert resolve_log(given(chosen=own.path), [own]).rename is None
    elsewhere = own._replace(path=Path("/v/.nosync/Untitled"))
    verdict = resolve_log(given(), [elsewhere])
    assert (verdict.log, verdict.rename) == (elsewhere.path, None)


def test_former_name_of_log_is_free_for_same_log() -> None:
    own = log(UNTITLED, automatic=True, former=(str(LOGS / "flights"),))
    assert resolve_log(given(), [own]).rename == LOGS / "flights"


def test_facts_of_other_notebook_are_dropped_when_log_is_adopted() -> None:
    known = log().record
    assert known is not None
    assert is_same_notebook(given("copy"), known)
    assert is_same_notebook(given("moved", cells=cell_ids("z"), kernel=K2), known)
    assert is_same_notebook(given(cells=None, file=OTHER_FILE), known)
    assert not is_same_notebook(given(cells=cell_ids("z")), known)
    assert not is_same_notebook(given("other", cells=None), known)


def notebook_file(path: Path, *cells: tuple[str, str]) -> Path:
    """A notebook with cells of ids and texts."""
    made = [nbformat.v4.new_code_cell(text, id=known) for known, text in cells]
    nbformat.write(nbformat.v4.new_notebook(cells=made), path)
    return path


def test_cells_are_identified_by_ids_in_file(tmp_path: Path) -> None:
    path = notebook_file(tmp_path / "a.ipynb", ("one", "x = 1\n"), ("two", "y = 2"))
    link = tmp_path / "link.ipynb"
    link.symlink_to(path)
    file = NotebookFile.read(link)
    assert (file.path, file.cells) == (str(path), {"one", "two"})
    assert file.file == (path.stat().st_dev, path.stat().st_ino)
    assert file.cell("three", "x = 1") == "three"
    assert file.cell("vscode-notebook-cell:/a.ipynb#W0sZ", "x = 1") == "one"
    assert file.cell(None, "z = 3") == ""


@pytest.mark.parametrize("known", ["0", "17", "cell-3", "cell_12", "Cell1", "a000012"])
def test_cell_numbered_by_tool_is_identified_by_text(tmp_path: Path, known: str) -> None:
    file = NotebookFile.read(notebook_file(tmp_path / "a.ipynb", (known, "x = 1"), ("z", "y")))
    (one,) = (file.cells or frozenset()) - {"z"}
    assert one.startswith("text-")
    assert one == file.cell(known, "x = 1\n") == file.cell(None, "x = 1")
    assert file.cell(known, "x = 2") != one
    assert file.cell(known, "") == ""


@pytest.mark.parametrize(
    "known", ["1a2b3c4d", "12345678", "abcdef12", "mDgbUHAGgjLW", "load", K1, "x7" * 8]
)
def test_cell_is_identified_only_by_unique_id(known: str) -> None:
    assert cell_identity(known, "x = 1") == known


def test_no_tutorial_is_copy_of_another(tmp_path: Path) -> None:
    read = {path.stem: NotebookFile.read(path) for path in TUTORIALS.glob("*.ipynb")}
    assert len(read) == 7
    for name, file in read.items():
        for other, its in read.items():
            if name == other:
                continue
            known = log(other, cells=tuple(its.cells or ()), lives=its.path)
            assert (
                resolve_log(given(name, file=file.file, cells=file.cells), [known]).relation == ""
            )


def test_file_without_cell_ids_has_no_identified_cells(tmp_path: Path) -> None:
    path = notebook_file(tmp_path / "a.ipynb", ("one", "x = 1"))
    text = json.loads(path.read_text())
    del text["cells"][0]["id"]
    path.write_text(json.dumps(text))
    file = NotebookFile.read(path)
    assert file.cells is None
    assert file.cell("made-up-each-time", "x = 1") == ""


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["", "[]", "{", '{"cells": 5}', '{"cells": [5]}', "[" * 100_000])
def test_unreadable_notebook_or_record_is_unknown(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.ipynb"
    path.write_text(text)
    (tmp_path / RECORD).write_text(text)
    assert NotebookFile.read(path).cells is None
    assert NotebookFile.read(path).file == notebook_facts.file_id(str(path))
    assert read_record(tmp_path) is None
    path.unlink()
    os.mkfifo(path)
    assert NotebookFile.read(path) == NotebookFile(str(path))


def test_record_is_read_as_written_and_retains_last_cells(tmp_path: Path) -> None:
    record = LogRecord("/w/a.ipynb", FILE, tuple(map(str, range(2000))), K1, str(tmp_path), 5.5)
    record = replace(record, automatic=True, former=("/w/b",), previous=("/w/c.ipynb", OTHER_FILE))
    write_record(tmp_path, record)
    known = read_record(tmp_path)
    assert known is not None
    assert replace(known, cells=record.cells) == record
    assert known.cells == tuple(map(str, range(1000, 2000)))
    assert known.seen == 5.5
    assert [tmp_path / RECORD] == list(tmp_path.iterdir())
    assert (tmp_path / RECORD).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("name", "automatic"), [("Untitled-2", True), ("flights", False)])
def test_record_of_earlier_release_has_no_names(tmp_path: Path, name: str, automatic: bool) -> None:
    """Without the record, only a name that users never choose is known to be automatic."""
    folder = tmp_path / name
    folder.mkdir()
    write_record(folder, LogRecord("/w/a.ipynb", FILE, ("a",), K1, str(folder), 5.5))
    known = json.loads((folder / RECORD).read_text())
    for key in ("automatic", "former", "previous"):
        del known[key]
    (folder / RECORD).write_text(json.dumps(known))
    record = read_record(folder)
    assert record is not None
    assert (record.automatic, record.former, record.previous) == (automatic, (), None)


def test_notebook_is_found_by_former_file(tmp_path: Path) -> None:
    path = notebook_file(tmp_path / "a.ipynb", ("one", "x"))
    record = LogRecord(str(path), notebook_facts.file_id(str(path)), ("one",))
    assert notebook_facts.find_notebook(record) == str(path)
    moved = path.rename(tmp_path / "b.ipynb")
    assert notebook_facts.find_notebook(record) == str(moved)
    notebook_file(path, ("two", "y"))
    assert notebook_facts.find_notebook(record) == str(moved)
    moved.unlink()
    assert notebook_facts.find_notebook(record) == ""
    notebook_file(tmp_path / "c.ipynb", ("one", "x")).rename(path)
    assert notebook_facts.find_notebook(record) == str(path)


def test_logs_elsewhere_are_listed_once_until_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "keys" / "key"))
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    for folder in (first, second, first):
        notebook_facts.register_log(folder)
    assert notebook_facts.registered_logs() == [str(first), str(second)]
    first.rmdir()
    notebook_facts.register_log(tmp_path / "c")
    assert notebook_facts.registered_logs() == [str(second), str(tmp_path / "c")]
    listing = tmp_path / "keys" / "logs.json"
    assert listing.stat().st_mode & 0o777 == 0o600
    listing.chmod(0o666)
    assert notebook_facts.registered_logs() == []
