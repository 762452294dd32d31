"""Hostile text in a log: no output contains its HTML, control codes or graph syntax.

One hostile text is in every name, label, value, key and error. Every subcommand, report, view,
warning and error runs, and everything for a front end or a terminal is checked.
"""

from __future__ import annotations

import builtins
import json
import re
import shlex
import shutil
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from internals import notices_of
from IPython.utils.capture import capture_output
from jupyter.shell import Notebook

import nosync_nb
from nosync.commands import dispatch
from nosync.log.notebook_memo import NotebookMemo
from nosync.variables import Variables
from nosync_nb import RecoveryReport, errors
from nosync_nb.collections import definition
from nosync_nb.rows.ddl import quote
from nosync_nb.session import session as session_module
from nosync_nb.session.definitions import define
from nosync_nb.store.catalog import validation
from nosync_widgets import formats
from nosync_widgets.recovery_report import report_html
from nosync_widgets.tables import Table
from nosync_widgets.views.graph_view import GraphPicture
from nosync_widgets.views.time_slider import TravelView

HOSTILE = (
    "<script>alert(1)</script></summary></pre></table><img src=x onerror=alert(2)>\"'><b>"
    "\x1b]0;title\x07\x1b[2J\x9b5m\u202ecod.exe\u2066\u200f\r\n"
    '`rm`\\N\\L"];a->b [label=<<b>x</b>>]&lt;%s'
)
ELEMENTS = {
    *("b", "caption", "details", "div", "em", "p", "pre", "span", "summary"),
    *("table", "tbody", "td", "th", "thead", "tr"),
}
ATTRIBUTES = {"class", "scope", "style", "title"}
FOLDER = HOSTILE.replace("/", "")  # the name of a folder, as a branch is
OURS = re.compile("\x1b\\[(31|0)m")  # the colours of an error's name
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)


class Reader(HTMLParser):
    """Parses HTML like a browser, and fails at an element that is not ours."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.shown = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ELEMENTS, tag
        assert {name for name, _ in attrs} <= ATTRIBUTES, attrs
        for _, value in attrs:
            assert_plain(value or "")
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.shown += data
        assert_plain(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)


def assert_plain(text: str) -> None:
    found = HIDDEN.search(text)
    assert found is None, f"{found[0]!r} in {text!r}" if found else ""


def assert_html(text: str) -> None:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []


def assert_svg(text: str) -> None:
    for node in ET.fromstring(text).iter():
        tag = node.tag.rpartition("}")[2]
        assert tag in {"svg", "g", "title", "polygon", "ellipse", "path", "text"}, tag
        assert not any(name.startswith("on") or name.endswith("href") for name in node.attrib)
        assert_plain(node.text or "")


def assert_strings(value: Any) -> None:
    """Checks every string of a trait, which the script shows by `textContent`."""
    if isinstance(value, dict):
        for part in (*value.keys(), *value.values()):
            assert_strings(part)
    elif isinstance(value, list | tuple):
        for part in value:
            assert_strings(part)
    elif isinstance(value, str):
        assert_plain(value)


def assert_harmless(bundle: dict[str, Any]) -> None:
    """Checks one output of a cell in every form."""
    for kind, data in bundle.items():
        if kind == "text/html":
            assert_html(data)
        elif kind == "image/svg+xml":
            assert_svg(data)
        elif kind == "text/plain":
            assert_plain(data)
        else:
            assert kind == "application/vnd.jupyter.widget-view+json", kind
            assert_strings(json.loads(json.dumps(data)))


class Watched(Notebook):
    """A notebook whose outputs are checked; `seen` collects them."""

    seen = ""

    def run(self, source: str, *, fails: bool | None = False) -> str:
        with capture_output() as captured:
            result = self.shell.run_cell(source, store_history=True)
        streams = OURS.sub("", captured.stdout + captured.stderr)
        error = result.error_before_exec or result.error_in_exec
        if fails is not None:
            assert (error is not None) is fails, f"{source}: {streams}"
        assert_plain(streams)
        bundles = [output.data for output in captured.outputs]
        for bundle in bundles:
            assert_harmless(bundle)
        shown = streams + "".join(str(each) for each in bundles)
        self.seen += shown
        return shown

    def dd(self, *words: str, fails: bool | None = False) -> str:
        self.names["LINE"] = shlex.join(words)
        return self.run("get_ipython().find_line_magic('dd')(LINE)", fails=fails)


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """A notebook with a log in which every name, label, key and value is hostile."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NOSYNC_SESSION", "log")
    # Names of stages are validated; the patches simulate a log with a hostile one.
    for module in (session_module, define, definition):
        monkeypatch.setattr(module, "check_name", lambda name, what: name)
    monkeypatch.setattr(validation, "stage_name", lambda name, frozen: name)
    watched = Watched()
    watched.names.update(H=HOSTILE, quote=quote)
    watched.run("%load_ext nosync")
    watched.run(
        "import pyarrow as pa\n"
        "data = nosync.input(H, pa.table({H: [H], 'n': [1]}))\n"
        "keyed = nosync.input('keyed', pa.table({'id': [H], H: [1]}), key='id')"
    )
    watched.run("data.insert([(H, 1), (H, 2), ('plain', 3)], once=H)\nnosync.commit(label=H)")
    watched.run("data.insert([(H, 2), (H, 1), ('plain', 3)], once=H)\nkeyed.insert([(H, 1)])")
    watched.run(
        "def f(row):\n"
        "    if row[1] > 8:\n"
        "        raise ValueError(H)\n"
        "    return row[0], row[1]\n"
        "f.__name__ = f.__qualname__ = H\n"
        "nosync.session().stage('Z' + H, data.filter('n > 0'))\n"
        "nosync.session().stage('Y' + H, data.map(f, f'{quote(H)} string, m bigint'))"
    )
    watched.run("%%dd\nsome = data.filter('n > 1')")
    watched.run("nosync.session().commit(label='2' + H)")
    yield watched
    watched.close()


def test_every_subcommand_escapes_hostile_text(notebook: Watched) -> None:
    calls = [
        ["status"],
        ["show", HOSTILE],
        ["show", HOSTILE, "--at", HOSTILE],
        ["diff", HOSTILE],
        ["diff", "Y" + HOSTILE, "0", "1"],
        ["compare", HOSTILE, "Z" + HOSTILE],
        ["compare", "Y" + HOSTILE, HOSTILE],
        ["travel", HOSTILE],
        ["travel", "Y" + HOSTILE, "--at", HOSTILE],
        ["layers"],
        ["logs"],
        ["panel"],
        ["graph"],
        ["help"],
        ["help", "show"],
        ["sql", "SELECT", "*", "FROM", f"`{HOSTILE}`"],
        ["sql", "SHOW", "TABLES"],
        ["explain", HOSTILE],
        ["explain", "Y" + HOSTILE],
        ["sql", "SELECT", f"'{HOSTILE}'", "AS", f"`{HOSTILE}`"],
        ["commit", "--label", "3" + HOSTILE],
        ["discard"],
        ["sync"],
        ["open", "log"],
        ["recover"],
        ["trust"],
        ["replicas"],
        ["replicas", "add", "file:///" + HOSTILE],
        ["replicas", "remove", HOSTILE],
        ["replicas", "remove", "file:///" + HOSTILE],  # which ends its keeper
        ["retain"],
        ["retain", HOSTILE],
        ["retain", "1000"],
        ["pin", HOSTILE, HOSTILE],
        ["pin"],
        ["pin", "0", HOSTILE],
        ["pin", "--drop", HOSTILE],
        ["copy", FOLDER],
        ["copy", HOSTILE],
        ["branch", FOLDER, "--at", HOSTILE],
        ["branch"],
        ["branch", FOLDER],
        ["compare", f"{FOLDER}/keyed", "keyed"],
        ["compare", f"not {HOSTILE}/keyed", "keyed"],
        ["switch", FOLDER],
        ["follow"],
        ["follow", "--upto", HOSTILE],
        ["status"],
        ["compare", "main/keyed", "keyed"],
        ["branch", "inner"],
        ["rewind", HOSTILE],
        ["branch", "--drop", FOLDER],
        ["switch", HOSTILE],
        ["switch"],
        ["branch", "--drop", FOLDER],
        ["branch", "--drop", HOSTILE],
        ["rewind", HOSTILE],
        ["rename", HOSTILE, "X" + HOSTILE],
        ["drop", "Z" + HOSTILE],
        ["verify"],
        ["reset"],
    ]
    missing = set(dispatch.COMMANDS) - {words[0] for words in calls}
    assert not missing, f"look at the outputs of these as well: {missing}"
    for words in calls:
        if words[0] in dispatch.COMMANDS:
            notebook.dd(*words, fails=None)
    assert notebook.seen.count("\\x1b") > 50  # the text was shown, escaped
    assert "&lt;script&gt;" in notebook.seen


def test_every_error_escapes_hostile_text(notebook: Watched) -> None:
    for words in (
        ["show", "not " + HOSTILE],
        ["show", HOSTILE, "--at", "not " + HOSTILE],
        ["diff", HOSTILE, HOSTILE, "0"],
        [HOSTILE],
        ["help", HOSTILE],
        ["status", HOSTILE],
        ["commit", "--label", HOSTILE],
        ["commit", "--wait", HOSTILE],
        ["drop", HOSTILE],
        ["rename", HOSTILE, "keyed"],
        ["show", "'" + HOSTILE],
    ):
        notebook.dd(*words, fails=True)
    for source in (
        "data.insert([(H, 9)])",
        "data.insert([(H, H)])",
        "data.insert([(1, 1)])",
        "data.insert([{H: H, 'x' + H: 1}])",
        "data.insert({H: H})",
        "data.insert(H)",
        "data.insert([(H, 1)], once={H: object()})",
        "keyed.insert([(H, 1)])",
        "keyed.insert([(None, 1)])",
        "data.select(H)",
        "data.filter('n > ' + H)",
        'data.filter(f"`{H}` = {H!r} and m > 1")',
        "data.group_by(H + 'x').count()",
        "data.join(keyed, on=H + 'x')",
        "data.rows(at=H + 'x')",
        "data.head(by=H)",
        "data.with_columns({H: 'n +'})",
        "data.filter('n > 1').rows(at=9)",
        "nosync.input(H, 'x string')",
        "nosync.input('z', {H: [object()]})",
        "nosync.session()['not ' + H]",
        "nosync.session().branch(H)",
        "nosync.session().pin(0, name=' ')",
        "nosync.session().follow(nosync.session(), upto=H)",
        "nosync.session().drop('not ' + H)",
        "data.remove([(H, 77)])\nnosync.commit()\ndata.rows()",
        "data.map(f, 'a int, a int').rows()",
    ):
        notebook.run(source, fails=True)
    notebook.dd("status")
    notebook.dd("travel", HOSTILE)


def test_cell_values_reports_and_plans_escape_hostile_text(notebook: Watched) -> None:
    for source in (
        "data",
        "some",
        "keyed",
        "nosync.session()",
        "data.schema",
        "nosync.session().epochs()",
        "list(nosync.session().epochs())",
        "nosync.session().frontiers",
        "nosync.session().recovery",
        "data.rows()",
        "data.head(1)",
        "print(nosync.session()['Y' + H].explain())",
        "print(data, nosync.session())",
        "print(nosync.session().recovery)",
        "data.filter('n > 1')",
    ):
        notebook.run(source)
    assert "\\x1b" in notebook.seen


def test_warnings_escape_hostile_text(notebook: Watched) -> None:
    notebook.run(
        "def bad(epoch, changes):\n"
        "    raise type(H, (ValueError,), {'__repr__': lambda self: H})(H)\n"
        "data.inspect(bad)\n"
        "nosync.session().subscribe(lambda epoch: bad(epoch, None))"
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        shown = notebook.run("data.insert([(H, 1)])")
        shown += notebook.run("data.insert([(H, 7)], once=H)")
    warned = [str(each.message) for each in caught]
    for part in ("the inspector of", "a subscriber raised", "its rows differ"):
        assert any(part in text for text in (shown, *warned))
    for text in warned:
        assert "\\x1b" in text
        assert_plain(text)


def test_recovery_escapes_hostile_text_and_binds_no_python_names(
    notebook: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook.run(
        "for name in ('print', 'input', 'eval', 'get_ipython', 'fine'):\n"
        "    nosync.session().stage(name, data.filter('n > 1'))"
    )
    notebook.names["note"] = 1
    notebook.run("def " + "leftover" + "(): pass\nx = 5")
    notebook.run("%unload_ext nosync")
    for name in ("fine", "x", "leftover", "note"):
        notebook.names.pop(name, None)
    shell = notebook.names["get_ipython"]
    shown = notebook.run("%load_ext nosync")
    assert "recovered" in shown
    assert "\\x1b" in shown
    assert notebook.names["fine"].count() == 2
    assert notebook.names["get_ipython"] is shell
    for name in ("print", "input", "eval"):
        assert name not in notebook.names
        assert f"{name} is a name of Python" in shown


def test_log_binds_no_name_of_python_or_shell(notebook: Watched) -> None:
    bindings = Variables(notebook.shell)
    for name in [*dir(builtins), "In", "Out", "nosync", "class", "__file__", "__builtins__"]:
        before = notebook.names.get(name)
        assert not bindings.set(name, object()), name
        assert notebook.names.get(name) is before


def test_memo_binds_no_alias_over_python_names(notebook: Watched) -> None:
    memo = NotebookMemo(aliases={"print": HOSTILE, "other": HOSTILE})
    variables = Variables(notebook.shell)
    variables.switch_memo(memo, None, own=True)
    variables.bind(notebook.names["nosync"].session())
    assert "print" not in notebook.names
    assert notebook.names["other"].name == HOSTILE


def test_reports_tables_and_pictures_escape_hostile_text() -> None:
    report = RecoveryReport(
        fresh=False,
        clean=False,
        resumed_at=3,
        lost=[4],
        stages={HOSTILE: "stale", "b" + HOSTILE: "read", "c" + HOSTILE: "extend"},
        reasons={HOSTILE: HOSTILE},
        not_restored={HOSTILE: HOSTILE},
        running=f"{HOSTILE} — {HOSTILE}",
        inputs=[HOSTILE],
        spark=HOSTILE,
        seconds={HOSTILE: 1.0},
        notes=[HOSTILE],
    )
    assert_html(report_html(report))
    assert_plain(str(report))
    assert_plain(repr(report))
    table = Table(HOSTILE, [HOSTILE], [[HOSTILE], [None]], [HOSTILE], [HOSTILE])
    assert_html(table.html())
    assert_plain(table.text())
    assert len(table.text().splitlines()) == 5 + HOSTILE.count("\n")
    for details in ({HOSTILE: HOSTILE, "b": "<b>x</b>"}, {}):
        picture = GraphPicture({HOSTILE: [], "b": [HOSTILE], "<i>x</i>": []}, details=details)
        assert_plain(picture.text())
        if shutil.which("dot"):
            svg = picture._repr_mimebundle_()["image/svg+xml"]
            assert_svg(svg)
            shown = "".join(ET.fromstring(svg).itertext())
            assert errors.one_line(HOSTILE) in shown.replace("\xa0", " ")
            assert "<i>x</i>" in shown
    for item in (HOSTILE, [HOSTILE], {HOSTILE: HOSTILE}):
        assert_plain(str(formats.value(item)))


def test_static_view_and_traits_escape_hostile_text(
    notebook: Watched,
) -> None:
    session = notebook.names["nosync"].session()
    view = TravelView(session, HOSTILE, at=1)
    try:
        for epoch in (1, 0, 2):
            view.travel(epoch)
            assert_strings(view.page)
            assert_harmless(dict(zip(("text/plain", "text/html"), view.static(), strict=True)))
            assert_plain(view.title())
        session.drop(HOSTILE, cascade=True)
        view.refresh(reload=True)
        view.travel(1)
        assert "error" in view.page
        assert_strings(view.page)
        assert_harmless(dict(zip(("text/plain", "text/html"), view.static(), strict=True)))
        assert_plain(view.title())
    finally:
        view.close()


def test_program_errors_and_notices_escape_hostile_text(tmp_path: Path) -> None:
    with nosync_nb.open(str(tmp_path / "log")) as session:
        data = session.input("data", "a string")
        data.insert([(HOSTILE,)], once=HOSTILE)
        data.insert([(HOSTILE,)], once=HOSTILE)
        session.commit(label=HOSTILE)
        for notice in notices_of(session):
            assert_plain(notice)
        with pytest.raises(nosync_nb.TimeError) as caught:
            data.rows(at="x" + HOSTILE)
    assert_plain(str(caught.value))
    assert_plain(str(caught.value.hint))
    assert_plain("".join(caught.value.__notes__))


@pytest.mark.parametrize("text", ["plain", "naïve ☃ 𝒳 שלום", "👩‍👩‍👧 می‌خواهم", "two\nlines\tx", ""])
def test_visible_text_is_unchanged(text: str) -> None:
    assert errors.visible(text) == text
    assert errors.visible(errors.visible(HOSTILE)) == errors.visible(HOSTILE)


def test_hidden_characters_are_spelled_out() -> None:
    assert errors.visible("\x1b[0m\u202e\x9b\r") == "\\x1b[0m\\u202e\\x9b\\x0d"
    assert errors.one_line("a\r\nb\nc") == "a⏎b⏎c"
    assert errors.html('<\x1b">') == "&lt;\\x1b&quot;&gt;"
