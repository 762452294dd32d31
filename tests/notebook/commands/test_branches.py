"""`%dd branch`, `switch` and `follow`: cells continue in a branch, and back."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from internals import asked
from IPython.core.completer import provisionalcompleter
from jupyter.shell import Notebook

import nosync
import nosync_nb
from nosync_nb.collections.functions import signing
from nosync_widgets.views.time_slider import TravelView

FLIGHTS = 'flights = nosync.input("flights", "carrier string, delay int")'
DELAYS = '%%dd\nslow = flights.filter("delay > 10")'


@pytest.fixture
def notebook(empty: Notebook) -> Notebook:
    for source in (FLIGHTS, DELAYS, *(f'flights.insert([("AA", {d})])' for d in (5, 20, 30))):
        empty.ok(source)
    return empty


def started() -> Notebook:
    made = Notebook()
    made.ok("%load_ext nosync")
    return made


def rows(notebook: Notebook, name: str = "slow") -> list[tuple[Any, ...]]:
    return [tuple(row) for row in notebook.names[name].rows()]


def views_of(notebook: Notebook) -> Any:
    return notebook.shell.magics_manager.registry["NoSync"].notebook.views


def test_cells_run_on_branch_after_switch_and_return(notebook: Notebook) -> None:
    said = notebook.ok("%dd branch what_if --at 2")
    assert "branch what_if forked at epoch 2: `%dd switch what_if`" in said
    assert rows(notebook) == [("AA", 20), ("AA", 30)]
    said = notebook.ok("%dd switch what_if")
    assert "now on branch what_if, at epoch 2" in said
    assert rows(notebook) == [("AA", 20)]
    notebook.ok('flights.insert([("UA", 99)])')
    assert rows(notebook) == [("AA", 20), ("UA", 99)]
    assert "this notebook" in notebook.ok("%dd branch")
    assert "at epoch 3" in notebook.ok("%dd switch")
    assert rows(notebook) == [("AA", 20), ("AA", 30)]
    table = notebook.ok("%dd branch")
    assert "what_if" in table
    assert "this notebook" not in table
    assert "dropped branch" in notebook.ok("%dd branch --drop what_if")
    assert "there are no branches" in notebook.ok("%dd branch")


def test_branch_with_then_has_definitions_of_epoch(notebook: Notebook) -> None:
    notebook.ok('%%dd\nslow = flights.filter("delay > 25")')
    notebook.ok('flights.insert([("AA", 40)])')
    forked = notebook.ok("%dd branch was --at 2 --then")
    assert "forked at epoch 2 with the definitions of that epoch" in forked
    notebook.ok("%dd switch was")
    assert rows(notebook) == [("AA", 20)]
    notebook.ok("%dd switch")
    assert rows(notebook) == [("AA", 30), ("AA", 40)]
    assert "%dd branch NAME --at EPOCH" in notebook.fails("%dd branch --then").text


def test_branch_on_lost_disk_is_listed_and_switched_to(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "home" / "key"))
    notebook.ok(f"%dd replicas add file://{tmp_path}/copy")
    assert "until then it is on this disk only" in notebook.ok("%dd branch what_if")
    assert "is now replicated to file://" in notebook.ok("%dd switch what_if")
    notebook.ok('flights.insert([("UA", 99)])')
    notebook.ok('nosync.session().sync("replicas", timeout=60)')
    notebook.ok("%dd switch")
    shutil.rmtree(tmp_path / "log" / "branches" / "what_if")
    assert "at replicas only: `%dd switch what_if`" in notebook.ok("%dd branch")
    assert "now on branch what_if, at epoch 4" in notebook.ok("%dd switch what_if")
    assert rows(notebook) == [("AA", 20), ("AA", 30), ("UA", 99)]


def test_switch_reports_branch_and_epoch_only(notebook: Notebook) -> None:
    notebook.ok("%dd branch what_if --at 2")
    said = notebook.ok("%dd switch what_if")
    assert said.text.count("what_if") == 1
    assert "recovered" not in said
    assert f"epoch 2 · branch what_if of log {nosync.session().path[:8]}" in notebook.ok(
        "%dd status"
    )
    assert "at epoch 3" in notebook.ok("%dd switch")
    notebook.ok('%%dd\nfast = flights.filter("delay < 10")')
    notebook.ok("%dd branch earlier --at 2")
    said = notebook.ok("%dd switch earlier")
    assert "recompute: fast: it was not available at epoch 2" in said


def test_handles_follow_switch_and_unnamed_ones_are_reported(notebook: Notebook) -> None:
    notebook.ok("mine, session = slow, nosync.session()\nunnamed = slow.filter('delay > 25')")
    notebook.ok("%dd branch what_if --at 2")
    unnamed = "still from the previous session: unnamed; run their cells again"
    assert unnamed in notebook.ok("%dd switch what_if")
    assert rows(notebook, "mine") == [("AA", 20)]
    assert notebook.names["session"] is nosync.session()
    notebook.ok("unnamed = slow.filter('delay > 25')")
    assert "run their" not in notebook.ok("del unnamed\n%dd switch")
    assert rows(notebook, "mine") == [("AA", 20), ("AA", 30)]


def test_open_views_follow_switch_and_rewind(notebook: Notebook) -> None:
    view = views_of(notebook).travel(nosync.session(), "slow", None, None)
    notebook.ok("%dd branch what_if --at 2")
    notebook.ok("%dd switch what_if")
    assert view.title() == "what_if/slow at epoch 2: +1 −0 since epoch 1"
    notebook.ok('flights.insert([("UA", 99)])')
    assert "what_if/slow at epoch 3: +1" in notebook.ok("%dd travel slow")
    assert view.page["rows"] == [["AA", "20"], ["UA", "99"]]
    notebook.ok("%dd switch")
    assert view.title() == "slow at epoch 3: +1 −0 since epoch 2"
    assert view.page["rows"] == [["AA", "20"], ["AA", "30"]]
    notebook.ok("%dd rewind 2")
    assert view.epoch == 2
    assert view.page["rows"] == [["AA", "20"]]
    notebook.ok("%dd drop slow")
    assert view.comm is None


def test_no_view_reads_closed_session_during_switch(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views read in their own threads; here all of them read just after a session is closed."""
    views = views_of(notebook)
    slider = views.travel(nosync.session(), "slow", None, None)
    grid = views.grid(nosync.session(), "slow", 20, None)
    layers = views.layers(nosync.session(), "slow", None)
    close, told = nosync_nb.Session.close, []
    layers.observe(lambda change: told.append(change.new["error"]), "state")
    for view in (slider, grid):
        view.observe(lambda change: told.append(change.new.get("error", "")), "page")

    def close_and_look(session: nosync_nb.Session) -> None:
        close(session)
        views.layers(session, "slow", None)
        grid.refresh(reload=True)
        slider.refresh(reload=True)

    monkeypatch.setattr(nosync_nb.Session, "close", close_and_look)
    notebook.ok("%dd branch what_if --at 2")
    for name, shown in (("what_if", "what_if/slow"), ("", "slow")):
        told.clear()
        notebook.ok(f"%dd switch {name}")
        assert layers.state["name"] == grid.page["name"] == slider.page["name"] == shown
        assert len(told) >= 3
        assert not any(told)


def test_slider_buttons_do_what_commands_do(notebook: Notebook) -> None:
    notebook.ok("%dd travel slow")
    view = views_of(notebook).travel(nosync.session(), "slow", None, None)
    assert view.forks
    asked(view, {"course": True})
    asked(view, {"branch": "  ", "at": 2})
    assert view.said == {"text": "enter a name for the branch first", "bad": True, "number": 1}
    asked(view, {"branch": "what_if", "at": 2})
    assert view.said["text"].startswith("branch what_if forked at epoch 2: `%dd switch what_if`")
    assert [2, "branch what_if forked"] in view.course["marks"]
    asked(view, {"branch": "no name", "at": 2})
    assert view.said["bad"]
    assert "no name" in view.said["text"]
    asked(view, {"rewind": 2})
    assert "rewound from epoch 3 to 2" in view.said["text"]
    assert not view.said["bad"]
    assert (nosync.session().now, view.epoch) == (2, 2)
    asked(view, {"rewind": 77})
    assert view.said["bad"]
    assert nosync.session().now == 2


def test_slider_button_computes_past_of_late_stage(notebook: Notebook) -> None:
    notebook.ok("%%dd\nfew = slow.filter('delay < 25')\nnone = few.filter('false')")
    notebook.ok("%dd travel few slow")
    view = views_of(notebook).travel(nosync.session(), "few", None, None, beside=["slow"])
    asked(view, {"course": -1})
    assert view.course["past"].startswith("few begins at epoch 3")
    view.travel(1)
    assert view.epoch == 3
    asked(view, {"replay": True})
    assert view.said == {"text": "few is readable from epoch 0 on", "bad": False, "number": 1}
    assert view.course["past"] == ""
    view.travel(2)
    assert (view.epoch, view.page["rows"]) == (2, [["AA", "20"]])
    assert view.page["beside"][0]["name"] == "slow"
    assert nosync.session()["none"].rows(at=2) == []
    stages = [*nosync.session().stages]
    asked(view, {"replay": True})
    assert not view.said["bad"]
    assert [*nosync.session().stages] == stages
    assert notebook.ok("%%dd\nfew = slow.filter('delay < 25')")
    notebook.ok("%dd drop none few")
    assert view.comm is None


def test_slider_without_notebook_has_no_buttons(notebook: Notebook) -> None:
    view = TravelView(nosync.session(), "slow")
    asked(view, {"rewind": 1})
    assert (view.forks, view.said, nosync.session().now) == (False, {}, 3)
    view.close()


def test_rewind_reports_backup_branch(notebook: Notebook) -> None:
    said = notebook.ok("%dd rewind 2")
    assert "rewound from epoch 3 to 2" in said
    assert "`%dd switch before-rewind-1` returns to them" in said
    assert rows(notebook) == [("AA", 20)]
    assert "before-rewind-1" in notebook.ok("%dd branch")
    notebook.ok('flights.insert([("UA", 99)])')
    assert rows(notebook) == [("AA", 20), ("UA", 99)]
    notebook.ok("%dd switch before-rewind-1")
    assert rows(notebook) == [("AA", 20), ("AA", 30)]
    notebook.ok("%dd switch")
    assert rows(notebook) == [("AA", 20), ("UA", 99)]
    assert "already at epoch 3" in notebook.ok("%dd rewind 3")


def test_restarted_notebook_returns_to_its_branch(notebook: Notebook) -> None:
    notebook.ok("%dd branch what_if --at 1")
    notebook.ok("%dd switch what_if")
    notebook.ok('flights.insert([("UA", 50)])')
    notebook.close()
    with closing(Notebook()) as again:
        assert "now on branch what_if" in again.ok("%load_ext nosync")
        assert rows(again) == [("UA", 50)]
        again.ok("%dd switch")
    with closing(Notebook()) as last:
        assert "branch" not in last.ok("%load_ext nosync")
        assert rows(last) == [("AA", 20), ("AA", 30)]


def test_follow_catches_branch_up_with_main_log(notebook: Notebook) -> None:
    notebook.ok("%dd branch what_if --at 1")
    notebook.ok("%dd switch what_if")
    notebook.ok('%%dd\nslow = flights.filter("delay > 25")')
    assert "caught up with the main log: 1 epoch, now at 2" in notebook.ok("%dd follow --upto 2")
    assert rows(notebook) == []
    told = notebook.ok("%dd follow").text
    assert told.strip() == "caught up with the main log: 1 epoch, now at 3"
    assert rows(notebook) == [("AA", 30)]
    told = notebook.ok("%dd follow").text
    assert told.strip() == "caught up with the main log: 0 epochs, now at 3"


def test_branch_names_are_completed(notebook: Notebook) -> None:
    def words(text: str) -> set[str]:
        with provisionalcompleter():
            return {item.text for item in notebook.shell.Completer.completions(text, len(text))}

    notebook.ok("%dd branch what_if --at 2")
    assert words("%dd switch wh") == {"what_if"}
    assert words("%dd branch --drop wh") == {"what_if"}
    assert "what_if" not in words("%dd branch wh")
    assert words("%dd compare what_if/s") == {"what_if/slow"}
    assert {"main/slow", "main/flights"} == words("%dd compare main/")


def test_copy_names_branch_and_expands_tilde(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOSYNC_KEY_FILE", signing.key_path())
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "copied the log up to epoch 3 to ~/whole" in notebook.ok("%dd copy ~/whole")
    notebook.ok("%dd branch what_if --at 2")
    notebook.ok("%dd switch what_if")
    said = notebook.ok("%dd copy ~/part").text.replace("\n", " ")
    assert "copied branch what_if up to epoch 2 to ~/part" in said
    with nosync_nb.open(tmp_path / "part") as copied:
        assert [tuple(row) for row in copied["slow"].rows()] == [("AA", 20)]


def test_refused_branch_command_leaves_cells_where_they_are(
    notebook: Notebook, tmp_path: Path
) -> None:
    assert "there is no branch 'nowhere'" in notebook.fails("%dd switch nowhere")
    assert "must be an identifier" in notebook.fails("%dd branch 2nd")
    assert "epoch 99 is not readable" in notebook.fails("%dd branch other --at 99")
    assert "%dd branch: write" in notebook.fails("%dd branch other --drop one")
    assert "is not a branch of" in notebook.fails("%dd follow")
    notebook.ok("%dd branch taken")
    assert "branch 'taken' exists already" in notebook.fails("%dd branch taken")
    code = (
        "import sys, nosync_nb; s = nosync_nb.open(sys.argv[1]); print('open', flush=True);"
        "sys.stdin.read()"
    )
    path = tmp_path / "log" / "branches" / "taken"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        assert f"process {other.pid}" in notebook.fails("%dd switch taken")
        assert f"process {other.pid}" in notebook.fails("%dd branch --drop taken")
        assert str(other.pid) in notebook.ok("%dd branch")
        assert nosync.session().path == str(tmp_path / "log")
        notebook.ok('flights.insert([("UA", 11)])')
        other.communicate()
    notebook.ok("%dd switch taken")
    assert os.path.basename(nosync.session().path) == "taken"


def test_dropped_branch_falls_back_to_main_log(notebook: Notebook, tmp_path: Path) -> None:
    notebook.ok("%dd branch what_if")
    notebook.ok("%dd switch what_if")
    notebook.close()
    with nosync_nb.open(tmp_path / "log") as main:
        main.drop_branch("what_if")
    with closing(started()) as again:
        again.ok("slow.count()")
        assert nosync.session().path == str(tmp_path / "log")


def test_compare_takes_stage_of_another_branch(notebook: Notebook) -> None:
    notebook.ok("%dd branch what_if --at 2")
    shown = notebook.ok("%dd compare what_if/slow slow")
    assert "what_if/slow at epoch 2 and slow at epoch 3: 1 only in slow, 1 in both" in shown
    notebook.ok("%dd switch what_if")
    notebook.ok('flights.insert([("UA", 99)])')
    shown = notebook.ok("%dd compare main/slow slow")
    assert "1 only in main/slow, 1 only in slow, 1 in both" in shown
    assert "no difference" in notebook.ok("%dd compare main/slow slow --at 2 2")
    count = '%%dd\nhow_many = slow.group_by("carrier").count()'
    notebook.ok(count)
    notebook.ok("%dd switch")
    notebook.ok(count)
    for sides in ("what_if/how_many how_many", "how_many what_if/how_many"):
        shown = notebook.ok(f"%dd compare {sides}")
        assert "1 changed, 1 only in what_if/how_many" in shown
        assert "rows matched on carrier" in shown
    notebook.ok("%dd switch what_if")
    assert "branches: main, what_if" in notebook.fails("%dd compare other/slow slow")
    assert "'fast'" in notebook.fails("%dd compare main/fast slow")


def test_branch_is_forked_from_current_branch(notebook: Notebook, tmp_path: Path) -> None:
    notebook.ok("%dd branch outer --at 2")
    notebook.ok("%dd switch outer")
    notebook.ok('flights.insert([("UA", 99)])')
    said = notebook.ok("%dd branch inner")
    assert "branch outer/inner forked at epoch 3: `%dd switch outer/inner`" in said
    assert "now on branch outer/inner, at epoch 3" in notebook.ok("%dd switch outer/inner")
    notebook.ok('flights.insert([("DL", 50)])')
    assert rows(notebook) == [("AA", 20), ("DL", 50), ("UA", 99)]
    listed = notebook.ok("%dd branch")
    assert "outer/inner" in listed
    assert "this notebook" in listed
    compared = notebook.ok("%dd compare outer/slow outer/inner/slow")
    assert "1 only in outer/inner/slow, 2 in both" in compared
    notebook.ok("%dd switch outer")
    assert rows(notebook) == [("AA", 20), ("UA", 99)]
    notebook.ok('flights.insert([("B6", 70)])')
    notebook.ok("%dd switch outer/inner")
    assert "caught up with branch outer: 1 epoch, now at 5" in notebook.ok("%dd follow")
    assert ("B6", 70) in rows(notebook)
    assert "branch outer/inner/before-rewind-1: `%dd switch outer/inner/before" in notebook.ok(
        "%dd rewind 4"
    )
    notebook.close()
    with closing(started()) as again:
        again.ok(FLIGHTS)
        assert again.names["slow"].count() == 3
        assert "epoch 4 · branch outer/inner of log" in again.ok("%dd status")
        assert "has branches of its own" in again.fails("%dd branch --drop outer").text
        assert "no branch 'outer/none'" in again.fails("%dd switch outer/none").text
        again.ok("%dd switch outer/inner")
        again.ok("%dd branch --drop outer/inner/before-rewind-1")
        again.ok("%dd switch")
        again.ok("%dd branch --drop outer/inner")
        assert "inner" not in again.ok("%dd branch")
        again.ok("%dd branch --drop outer")
        assert os.listdir(tmp_path / "log" / "branches") == [".in-use"]
