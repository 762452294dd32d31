"""The `%dd` commands: through a real shell and the real engine."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from internals import services_of
from IPython.core.completer import provisionalcompleter
from IPython.core.error import UsageError
from IPython.utils.capture import capture_output
from jupyter.kernels import package_path
from jupyter.shell import Notebook

import nosync
from nosync_nb.spark import spark_session
from nosync_nb.spark.staging.staging import StagingService

FLIGHTS = 'flights = nosync.input("flights", "carrier string, delay int")'
LOAD = 'flights.insert([("AA", 10), ("AA", 30), ("UA", 5)])'
DELAYS = '%%dd\ndelays = flights.group_by("carrier").agg(n="count(*)", worst="max(delay)")'


@pytest.fixture
def notebook(empty: Notebook) -> Notebook:
    """A notebook with an input of three rows and a stage."""
    for source in (FLIGHTS, LOAD, DELAYS):
        empty.ok(source)
    return empty


def rows(notebook: Notebook, name: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in notebook.names[name].rows()]


def label(epoch: int) -> str | None:
    return next(e.label for e in nosync.session().epochs() if e.number == epoch)


# -- loading ---------------------------------------------------------------------------------------


def test_import_of_nosync_loads_no_engine_and_no_notebook() -> None:
    program = (
        "import sys, nosync\n"
        "heavy = {'pyspark', 'pyarrow', 'numpy', 'ipywidgets', 'IPython', 'nosync_nb'}\n"
        "sys.exit(','.join(sorted(heavy & set(sys.modules))))"
    )
    environ = {**os.environ, "PYTHONPATH": package_path()}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.stderr.strip() == ""


def test_loading_extension_opens_no_log(empty: Notebook, tmp_path: Path) -> None:
    assert nosync is empty.names["nosync"]
    assert not (tmp_path / "log").exists()
    empty.ok("%dd help")
    assert not (tmp_path / "log").exists()


def test_unload_removes_all_hooks_and_variables(notebook: Notebook) -> None:
    shell = notebook.shell
    notebook.ok("flights")
    notebook.ok("%unload_ext nosync")
    assert {"flights", "delays", "nosync"}.isdisjoint(notebook.names)
    assert not hasattr(builtins, "__nosync_end__")
    assert shell.ast_transformers == []
    assert "NoSync" not in shell.magics_manager.registry
    assert "dd" not in shell.magics_manager.magics["cell"]
    assert "NoSync" not in {type(item).__name__ for item in shell.configurables}
    assert shell.custom_exceptions == ()
    assert all("nosync" not in str(call) for call in shell.events.callbacks["pre_run_cell"])
    assert "not found" in notebook.fails("%dd status")
    notebook.ok("%load_ext nosync")
    assert rows(notebook, "delays") == [("AA", 2, 30), ("UA", 1, 5)]


def test_reload_keeps_state(notebook: Notebook) -> None:
    notebook.ok("%reload_ext nosync")
    notebook.ok('flights.insert([("DL", 1)])')
    assert rows(notebook, "delays")[1] == ("DL", 1, 1)
    assert nosync.session().now == 2


def test_status_lists_failed_background_work_until_it_succeeds(notebook: Notebook) -> None:
    session = nosync.session()
    worker, error = services_of(session).worker, RuntimeError("a fault of ours")
    worker.failures.fail("writing a checkpoint", error)
    assert "background: writing a checkpoint failed at" in notebook.ok("%dd status").text
    with pytest.warns(UserWarning, match="background work failed: writing a checkpoint"):
        notebook.ok('flights.insert([("DL", 1)])')
    services_of(session).maintenance.plan_checkpoint()
    worker.drain()
    assert "background: " not in notebook.ok("%dd status").text


def test_function_outside_notebook_names_remedy() -> None:
    with pytest.raises(nosync.NosyncError, match="no notebook") as raised:
        nosync.commit()
    assert "load_ext" in raised.value.__notes__[0]


# -- a cell is a transaction -----------------------------------------------------------------------


def test_cell_commits_its_inserts(empty: Notebook) -> None:
    empty.ok(FLIGHTS)
    assert "epoch 1: flights 3 rows" in empty.ok(LOAD)
    assert nosync.session().now == 1
    assert len(nosync.session()["flights"]) == 3


def test_commit_precedes_display_of_last_value(notebook: Notebook) -> None:
    shown = notebook.ok('flights.insert([("UA", 50)])\ndelays')
    assert "UA" in shown.text
    assert "50" in shown.text


def test_cell_that_loads_extension_commits_before_display(empty: Notebook) -> None:
    empty.ok("%unload_ext nosync")
    hook = sys.displayhook
    shown = empty.ok(f"%load_ext nosync\n{FLIGHTS}\n{LOAD}\naa = flights.select('carrier')\naa")
    assert "UA" in shown
    assert "epoch 1: flights 3 rows" in shown
    assert "not committed" not in shown
    assert sys.displayhook is hook
    empty.ok("%unload_ext nosync")
    failed = empty.fails(f"%load_ext nosync\n{LOAD}\n1 / 0")
    assert "3 pending rows (flights) discarded" in failed
    assert nosync.session().now == 1


def test_input_created_from_data_warns_that_it_has_no_rows(empty: Notebook) -> None:
    empty.ok("import pyarrow as pa\ntable = pa.table({'n': [1, 2]})")
    line = "ts has the columns of the data, but no rows yet: `ts.insert(...)` adds rows"
    assert line not in empty.ok("ts = nosync.input('ts', table)")  # the next cell may load it
    assert line in empty.ok("ts")
    assert line not in empty.ok("ts = nosync.input('ts', table)\nts")
    fed = (
        "a = nosync.input('a', table)\na.insert(table)",
        "b = nosync.input('b', table)\nwith nosync.epoch():\n    b.insert(table)",
        "b2 = nosync.input('b2', table)",
        "b2.insert(table)",
        "c = nosync.input('c', table.schema)",
        "d = nosync.input('d', table.slice(0, 0))",
        "e = nosync.input('e', 'n int')",
    )
    for cell in (*fed, "1"):
        assert "no rows yet" not in empty.ok(cell)


def test_status_shows_error_and_repair_of_unreadable_input(notebook: Notebook) -> None:
    notebook.ok('import warnings; warnings.simplefilter("ignore")\nflights.remove([("XX", 1)])')
    shown = notebook.ok("%dd status").text
    assert "flights: input 'flights': row ('XX', 1) has a count of -1 at epoch 2" in shown
    repair = "input flights cannot be read; repair it: "
    assert repair in shown
    notebook.ok(shown.partition(repair)[2].partition("\n")[0])
    assert repair not in notebook.ok("%dd status").text
    assert "NegativeMultiplicityError" not in notebook.ok("flights").text


def test_read_of_pending_changes_raises_with_hint(notebook: Notebook) -> None:
    shown = notebook.fails('flights.insert([("UA", 50)])\nx = delays.rows()')
    assert "Hint" in shown.text
    assert "discarded" in shown.text
    assert nosync.session().now == 1


def test_failed_cell_discards_its_changes(notebook: Notebook) -> None:
    shown = notebook.fails('flights.insert([("B6", 1), ("B6", 2)])\n1 / 0')
    assert "2 pending rows (flights)" in shown
    assert "ZeroDivisionError" in shown
    assert not nosync.session().pending
    notebook.ok('flights.insert([("DL", 1)])')
    assert nosync.session().now == 2
    assert {"AA", "DL", "UA"} == {row[0] for row in rows(notebook, "flights")}


def test_cell_with_refused_rows_defines_no_new_stage(notebook: Notebook) -> None:
    stages = list(nosync.session().stages)
    refused = (
        'shares = flights.map(lambda row: (1 // (row.delay - 7),), "n int")\n'
        'more = shares.filter("n > 0")\n'
        'flights.insert([("B6", 7)])'
    )
    shown = notebook.fails("%%dd\n" + refused)
    assert "ZeroDivisionError" in shown
    assert "the cell failed, so it did not define shares, more" in shown
    assert list(nosync.session().stages) == stages
    assert "shares" not in notebook.names
    notebook.ok('flights.insert([("B6", 7)])')  # nothing refuses it any more
    notebook.ok('%%dd\nshares = flights.filter("delay > 7")')
    shown = notebook.fails("%%dd\n" + refused.replace("7", "8"))
    assert "did not define more" in shown
    assert "the edit of shares is committed" in shown


def test_failed_cell_reports_epochs_committed_before(notebook: Notebook) -> None:
    shown = notebook.fails(
        'with nosync.epoch():\n    flights.insert([("B6", 1)])\nflights.insert([("B6", 2)])\n1 / 0'
    )
    assert "1 pending row (flights) discarded, epoch 2 committed before that" in shown
    assert "nothing was committed" not in shown.text
    assert nosync.session().now == 2


def test_reader_reports_no_commit(notebook: Notebook) -> None:
    notebook.ok("%dd open log --mode r")
    notebook.names["writer"] = writer = nosync.open("log")
    shown = notebook.ok(
        "with writer.epoch():\n    writer['flights'].insert([('B6', 1)])\nflights.count()"
    )
    writer.close()
    assert shown.value == 4
    assert "committed" not in shown.text


def test_cell_with_syntax_error_discards_nothing(notebook: Notebook) -> None:
    notebook.fails("flights.insert(")
    notebook.ok('flights.insert([("DL", 1)])')
    assert nosync.session().now == 2


def test_inserts_of_one_cell_become_one_epoch(notebook: Notebook) -> None:
    shown = notebook.ok('for i in range(365):\n    flights.insert([("B6", i)])')
    assert "365 inserts became one epoch" in shown
    assert "with nosync.epoch()" in shown
    assert nosync.session().now == 2


def test_epoch_blocks_commit_separate_epochs(notebook: Notebook) -> None:
    notebook.ok(
        "for i in range(3):\n"
        '    with nosync.epoch(label=f"day {i}"):\n'
        '        flights.insert([("B6", i)])'
    )
    assert nosync.session().now == 4
    assert label(3) == "day 1"


def test_code_run_inside_cell_belongs_to_it(notebook: Notebook, tmp_path: Path) -> None:
    (tmp_path / "more.ipy").write_text('flights.insert([("B6", 1)])\n')
    notebook.ok('flights.insert([("DL", 1)])\n%run -i more.ipy')
    assert nosync.session().now == 2
    notebook.ok('%time flights.insert([("DL", 2)])')
    notebook.ok(
        'get_ipython().run_cell("flights.insert([(\'DL\', 3)])")\nflights.insert([("DL", 4)])'
    )
    assert nosync.session().now == 4


def test_failed_nested_cell_does_not_end_outer_cell(notebook: Notebook) -> None:
    notebook.ok(
        'get_ipython().run_cell("1/0")\nget_ipython().run_cell("")\nflights.insert([("DL", 4)])'
    )
    assert nosync.session().now == 2


def test_autocommit_can_be_disabled(notebook: Notebook) -> None:
    notebook.ok("%config NoSync.autocommit = False")
    notebook.ok('flights.insert([("DL", 1)])')
    assert nosync.session().now == 1
    notebook.ok("nosync.commit(label='by hand')")
    assert nosync.session().now == 2
    notebook.ok('flights.insert([("DL", 1)])')
    assert "1 pending row discarded" in notebook.ok("%dd discard")


def test_commit_inside_cell_leaves_later_rows_to_cell_end(notebook: Notebook) -> None:
    notebook.ok('flights.insert([("DL", 1)])\nnosync.commit()\nflights.insert([("DL", 2)])')
    assert nosync.session().now == 3


def test_rows_inserted_between_cells_are_committed_by_next_cell(notebook: Notebook) -> None:
    notebook.names["flights"].insert([("DL", 1), ("DL", 2)])
    shown = notebook.ok("flights")
    assert "epoch 2: flights 2 rows" in shown
    assert shown.text.count("DL") == 2
    notebook.names["flights"].insert([("B6", 1)])
    notebook.fails("1/0")
    assert nosync.session().now == 3
    notebook.ok("%config NoSync.autocommit = False")
    notebook.ok('flights.insert([("DL", 1)])')
    notebook.ok("%config NoSync.autocommit = True")
    assert "epoch 4: flights 1 row" in notebook.ok("%dd status")


def test_rows_between_cells_that_fail_to_commit_stay_until_discarded(notebook: Notebook) -> None:
    notebook.ok('%%dd\nodd = flights.map(lambda r: (1 // (r.delay - 7),), "x int")')
    notebook.names["flights"].insert([("DL", 7)])
    shown = notebook.ok("1 + 1")
    assert "StageError" in shown
    assert "1 pending row (flights)" in shown
    assert notebook.ok("nosync.session().pending['flights'].rows").value == 1
    assert "1 pending row discarded" in notebook.ok("%dd discard")
    assert "epoch 2: flights 1 row" in notebook.ok('flights.insert([("DL", 1)])')


def test_pending_rows_prevent_open_and_survive_reload(notebook: Notebook) -> None:
    notebook.ok("%config NoSync.autocommit = False")
    notebook.ok('flights.insert([("DL", 1), ("DL", 2)])')
    shown = notebook.fails("%dd open elsewhere")
    assert "2 pending rows (flights)" in shown
    assert "%dd discard" in shown
    assert "already open" in notebook.ok("%dd open log")
    assert "2 pending rows (flights)" in notebook.ok("%reload_ext nosync")
    assert len(notebook.names["flights"]) == 3


def test_unload_commits_rows_inserted_between_cells(notebook: Notebook) -> None:
    notebook.ok('flights.insert([("DL", 1)])')
    notebook.ok(
        "import threading\n"
        "late = threading.Thread(target=lambda: flights.insert([('DL', 2)]))\n"
        "late.start()\nlate.join()"
    )
    notebook.names["flights"].insert([("DL", 3)])
    notebook.close()
    with nosync.open("log") as session:
        assert (session.now, len(session["flights"])) == (4, 6)


# -- stages ----------------------------------------------------------------------------------------


def test_dd_cell_defines_stages(notebook: Notebook) -> None:
    shown = notebook.ok('%%dd\nworst = delays.filter("worst > 20")\nslow = worst.select("carrier")')
    assert "worst" in shown
    assert "new" in shown
    assert rows(notebook, "slow") == [("AA",)]
    notebook.ok('flights.insert([("UA", 99)])')
    assert rows(notebook, "slow") == [("AA",), ("UA",)]


def test_equivalent_cell_leaves_stage_unchanged(notebook: Notebook) -> None:
    shown = notebook.ok(
        "%%dd\n# the same, written in other words\ndelays = (flights\n"
        '  .group_by("carrier").agg(n="count(*)", worst="max(delay)"))'
    )
    assert "unchanged" in shown


def test_edited_stage_becomes_new_version(notebook: Notebook) -> None:
    notebook.ok('%%dd\nslow = delays.filter("worst > 20")')
    shown = notebook.ok(
        '%%dd\ndelays = flights.group_by("carrier").agg(n="count(*)", worst="min(delay)")'
    )
    assert "changed, version 2" in shown
    assert rows(notebook, "delays") == [("AA", 2, 10), ("UA", 1, 5)]
    assert rows(notebook, "slow") == []


def test_replay_option_computes_past_of_stage(notebook: Notebook) -> None:
    notebook.ok('flights.insert([("UA", 99)])')
    notebook.ok('%%dd --replay 0\nslow = flights.filter("delay > 20")')
    assert [len(notebook.names["slow"].rows(at=epoch)) for epoch in range(3)] == [0, 1, 2]


def test_every_kind_of_binding_defines_stage(notebook: Notebook) -> None:
    notebook.ok(
        "%%dd\n"
        'a, b = flights.filter("delay > 5"), flights.filter("delay <= 5")\n'
        "if True:\n"
        "    c = a.concat(b)\n"
        "for _i in range(2):\n"
        "    d = c.distinct()\n"
        "(e := d.select('carrier'))\n"
        "_hidden = e.distinct()\n"
        "kept = [e.distinct()]\n"
        "def f():\n"
        "    inner = e.distinct()\n"
        "    return inner\n"
    )
    assert {"a", "b", "c", "d", "delays", "e"} == set(nosync.session().stages)


def test_last_value_of_name_is_stage(notebook: Notebook) -> None:
    notebook.ok('%%dd\nx = flights.filter("delay > 5")\nx = x.select("carrier")')
    assert rows(notebook, "x") == [("AA",), ("AA",)]


def test_second_name_of_stage_is_alias(notebook: Notebook) -> None:
    shown = notebook.ok("%%dd\nother = delays\nf = flights")
    assert "other is another name of delays" in shown
    assert list(nosync.session().stages) == ["delays"]


def test_stage_is_not_redefined_over_itself(notebook: Notebook) -> None:
    shown = notebook.fails('%%dd\ndelays = delays.filter("n > 1")')
    assert "name the result differently" in shown
    assert rows(notebook, "delays") == [("AA", 2, 30), ("UA", 1, 5)]
    assert notebook.names["delays"].name == "delays"


def test_input_is_not_replaced_by_stage(notebook: Notebook) -> None:
    notebook.fails('%%dd\nflights = flights.filter("delay > 1")')
    assert "flights" in nosync.session().inputs
    notebook.ok('flights.insert([("DL", 1)])')


def test_failed_dd_cell_defines_nothing(notebook: Notebook) -> None:
    notebook.ok("keep = 1")
    shown = notebook.fails(
        "%%dd\nnew = flights.distinct()\nkeep = 2\ndelays = flights.distinct()\n1 / 0"
    )
    assert "ZeroDivisionError" in shown
    assert list(nosync.session().stages) == ["delays"]
    assert "new" not in notebook.names
    assert notebook.names["keep"] == 1
    assert rows(notebook, "delays") == [("AA", 2, 30), ("UA", 1, 5)]


def test_traceback_of_dd_cell_points_into_cell(notebook: Notebook) -> None:
    shown = notebook.fails("%%dd --on local\n# a comment\nx = 1\nraise KeyError('here')")
    assert "line 4" in shown
    assert "raise KeyError('here')" in shown
    assert "stages.py" not in shown
    assert "body.py" not in shown


def test_syntax_error_in_dd_cell_points_at_its_line(notebook: Notebook) -> None:
    shown = notebook.fails("%%dd\nx = 1\ny = = 2")
    assert "SyntaxError" in shown
    assert "line 3" in shown
    assert "y = = 2" in shown
    assert ".py" not in shown.text
    assert isinstance(shown.error, SyntaxError)
    assert ".py" not in notebook.fails("%%dd\nx = 1\nreturn x").text
    assert "ast.py" in notebook.fails("import ast\nast.parse('y = = 2')")


def test_dd_cell_runs_ipython_syntax_and_displays_last_value(notebook: Notebook) -> None:
    shown = notebook.ok('%%dd\nhere = %pwd\nslow = delays.filter("worst > 20")\nslow')
    assert isinstance(notebook.names["here"], str)
    assert shown.value.name == "slow"
    assert "30" in shown.text


def test_dd_cell_without_collections_reports_it(notebook: Notebook) -> None:
    assert "no top-level name" in notebook.ok("%%dd\nx = 5")
    assert notebook.names["x"] == 5


@pytest.mark.parametrize("source", ["spark = 5", "%%dd\nspark = flights.distinct()"])
def test_variable_spark_that_is_no_session_is_ignored(notebook: Notebook, source: str) -> None:
    notebook.ok(source)
    assert "no temp views" not in notebook.ok("%%dd\nslow = flights.filter('delay > 9')").text
    assert "slow" in nosync.session().stages


def test_stage_keeps_captured_value_until_cell_runs_again(notebook: Notebook) -> None:
    cell = "%%dd\nlate = flights.filter(lambda row: row.delay > LIMIT)"
    notebook.ok("LIMIT = 8")
    notebook.ok(cell)
    assert rows(notebook, "late") == [("AA", 10), ("AA", 30)]
    notebook.ok("LIMIT = 20")
    notebook.ok('flights.remove([("AA", 10)])')
    assert rows(notebook, "late") == [("AA", 30)]
    notebook.ok('flights.insert([("UA", 15)])')
    assert rows(notebook, "late") == [("AA", 30), ("UA", 15)]
    assert "changed" in notebook.ok(cell)
    assert rows(notebook, "late") == [("AA", 30)]
    assert [r.delay for r in nosync.session()["late@1"].rows()] == [30, 15]
    assert "unchanged" in notebook.ok(cell)


# -- looking ---------------------------------------------------------------------------------------


def test_spark_setting_turns_spark_off_and_on(notebook: Notebook) -> None:
    """The setting also applies before the session opens, and to the next session."""
    assert not nosync.session().spark_off
    notebook.ok('%config NoSync.spark = "off"')
    assert nosync.session().spark_off
    notebook.ok('%%dd --on spark\nlate = flights.filter("delay > 5")')
    assert "in process" in nosync.session()["late"].explain()
    notebook.ok("%dd open elsewhere")
    assert nosync.session().spark_off
    notebook.ok('%config NoSync.spark = "auto"')
    assert not nosync.session().spark_off


def test_collection_displays_first_rows(notebook: Notebook) -> None:
    notebook.ok("%config NoSync.limit = 2")
    shown = notebook.ok("flights")
    assert "the first 2 of 3 rows" in shown
    assert (
        "<td" in notebook.shell.display_formatter.format(notebook.names["flights"])[0]["text/html"]
    )
    notebook.ok("%config NoSync.limit = 3")
    assert "the first" not in notebook.ok("flights")
    assert len(notebook.ok("[flights]").text.strip().splitlines()) == 1


def test_top_displays_epoch_and_order(notebook: Notebook) -> None:
    notebook.ok("%%dd\nworst = flights.group_by('carrier').top(2, by='delay desc')")
    for source in ("worst", "%dd show worst"):
        shown = notebook.ok(source).text
        assert "worst at epoch 1 by carrier, delay desc" in shown, source
        assert [line.split()[-1] for line in shown.strip().splitlines()[-3:]] == ["30", "10", "5"]
    formatter = notebook.shell.display_formatter
    html = formatter.format(notebook.names["worst"])[0]["text/html"]
    assert "worst at epoch 1 by carrier, delay desc</caption>" in html
    assert html.index(">30<") < html.index(">10<")


def test_status_lists_inputs_and_stages(notebook: Notebook) -> None:
    shown = notebook.ok("%dd status")
    assert "epoch 1" in shown
    assert "input" in shown
    assert "delays" in shown
    assert "if the kernel dies: nothing lost" in shown.text
    assert "if the disk is lost: the only epoch lost" in shown.text
    notebook.ok('flights.insert([("B6", 1)])')
    assert "if the disk is lost: all 2 epochs lost" in notebook.ok("%dd status").text


def test_persist_option_reports_durability_of_stage(notebook: Notebook) -> None:
    shown = notebook.ok('%%dd --persist memory\nlate = flights.filter("delay > 5")')
    assert "in memory" in shown.text
    assert "live, in memory only" in notebook.ok("%dd status").text
    shown = notebook.ok('%%dd --persist disk\nlate = flights.filter("delay > 5")')
    assert "durable through" in shown.text
    shown = notebook.fails('%%dd --persist replicas\nlate = flights.filter("delay > 5")')
    assert "this log has no replicas" in shown
    shown = notebook.fails('%%dd --persist memory\nlate = flights.filter("delay > 5")')
    assert "persist cannot be lowered from 'disk' to 'memory'" in shown


def test_verify_reports_damaged_file(notebook: Notebook) -> None:
    assert "whole, epoch 1" in notebook.ok("%dd verify").text
    (segment,) = Path("log").rglob("segment-*.log")
    data = segment.read_bytes()
    segment.write_bytes(data[:200] + bytes([data[200] ^ 1]) + data[201:])
    shown = notebook.ok("%dd verify")
    assert "damaged in 1 file" in shown.text
    assert segment.name in repr(shown.value)
    segment.write_bytes(data)
    assert "whole" in notebook.ok("%dd verify").text


def test_replicas_are_added_listed_and_removed(notebook: Notebook, tmp_path: Path) -> None:
    assert "no replicas" in notebook.ok("%dd replicas").text
    url = f"file://{tmp_path}/copies"
    assert "on 1 of 1" in notebook.ok(f"%dd replicas add {url}").text
    notebook.ok("%dd sync replicas")
    shown = notebook.ok("%dd replicas").text
    assert "epoch 1 is on 1 of 1" in shown
    assert "up to date" in shown
    assert "if the disk is lost: nothing lost" in notebook.ok("%dd status").text
    assert "is not a replica" in str(notebook.fails(f"%dd replicas remove {url}x"))
    stricter = "2 of the 3 replicas must answer; with --quorum 3 it is 1"
    assert "must answer" not in notebook.ok(f"%dd replicas add {url}-b").text
    assert stricter in notebook.ok(f"%dd replicas add {url}-c").text
    assert "must answer" not in notebook.ok("%dd replicas --quorum 3").text
    for other in ("b", "c"):
        notebook.ok(f"%dd replicas remove {url}-{other}")
    assert "no replicas" in notebook.ok(f"%dd replicas remove {url}").text


def test_show_reads_epoch(notebook: Notebook) -> None:
    notebook.ok('flights.insert([("UA", 99)])')
    assert "99" in notebook.ok("%dd show delays")
    assert "99" not in notebook.ok("%dd show delays --at 1").text
    assert "delays at epoch 1" in notebook.ok("%dd show delays --at -1")


def test_diff_shows_added_and_removed_rows(notebook: Notebook) -> None:
    notebook.ok('flights.insert([("UA", 99)])')
    shown = notebook.ok("%dd diff delays")
    assert "from epoch 1 to 2: +1 −1" in shown
    assert "from epoch 0 to 1: +3 −0" in notebook.ok("%dd diff flights 0 1")
    assert "earlier one first" in notebook.fails("%dd diff delays 2 1")


def test_quoted_number_is_label(notebook: Notebook) -> None:
    notebook.ok('with nosync.epoch(label="1"): flights.insert([("UA", 99)])')
    notebook.ok('with nosync.epoch(label="2013"): flights.insert([("UA", 100)])')
    assert "delays at epoch 1" in notebook.ok("%dd show delays --at 1")
    for written in ('--at "1"', "--at '1'", '--at="1"'):
        assert "delays at epoch 2" in notebook.ok(f"%dd show delays {written}"), written
    assert "from epoch 2 to 3: +1 −0" in notebook.ok('%dd diff flights "1"')
    assert "from epoch 1 to 2: +1 −0" in notebook.ok("""%dd diff flights 1 '1'""")
    assert "2013 is not readable" in notebook.fails("%dd diff flights 2013")
    assert "no epoch is labelled '7'" in notebook.fails('%dd show delays --at "7"')
    assert "No closing quotation" in notebook.fails('%dd show delays --at "7')


def test_show_and_diff_accept_every_form_of_epoch(notebook: Notebook) -> None:
    notebook.ok('with nosync.epoch(label="day 2"): flights.insert([("UA", 99)])')
    notebook.ok('flights.insert([("UA", 100)])')
    assert "delays at epoch 2" in notebook.ok("%dd show delays --at 'day 2'")
    assert "from epoch 1 to 2: +1 −0" in notebook.ok("%dd diff flights 1 'day 2'")
    assert "from epoch 1 to 2: +1 −0" in notebook.ok("%dd diff flights -2 -1")
    assert "from epoch 2 to 3: +1 −0" in notebook.ok("%dd diff flights 'day 2'")
    times = {e.number: e.committed_at.isoformat() for e in nosync.session().epochs() if e.number}
    assert "delays at epoch 2" in notebook.ok(f"%dd show delays --at {times[2]}")
    spaced = times[2].replace("T", " ")
    assert "from epoch 1 to 2: +1" in notebook.ok(f"%dd diff flights {times[1]} '{spaced}'")
    assert "from epoch 0 to 3: +5" in notebook.ok("%dd diff flights '2001-01-01' 2999-01-01T00:00")
    assert "did you mean 'day 2'?" in notebook.fails("%dd show delays --at 'day 3'")
    assert "labels: day 2" in notebook.fails("%dd diff delays 'June'")
    assert "epochs 0 to 3 are" in notebook.fails("%dd diff delays 1 9")


def test_bulk_setting_names_staging_location(
    notebook: Notebook, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: list[str] = []
    monkeypatch.setattr(StagingService, "name", lambda _, url: named.append(url))
    notebook.ok('%config NoSync.bulk = "file:///mnt/shared"')
    assert named == ["file:///mnt/shared"]
    notebook.ok('%config NoSync.bulk = "/mnt/shared"')
    assert "is not a valid URL; use file:///absolute/folder" in caplog.text
    assert "file:///mnt/shared" in notebook.ok("%config NoSync.bulk")
    notebook.ok('%config NoSync.bulk = ""')
    assert set(named) == {"file:///mnt/shared"}


def test_retain_pin_and_budget_commands_report_settings(
    notebook: Notebook, caplog: pytest.LogCaptureFixture
) -> None:
    assert "every epoch is retained" in notebook.ok("%dd retain")
    assert "retained for 7 epochs, every 16th" in notebook.ok("%dd retain 7")
    assert "retained for 30 days" in notebook.ok("%dd retain 30 days")
    assert "1 as" not in notebook.ok("%dd pin")
    assert "pinned epoch 1 as 'first load'" in notebook.ok("%dd pin 1 'first load'")
    assert "first load      1" in notebook.ok("%dd pin")
    assert "1 epoch pinned" in notebook.ok("%dd retain all")
    assert "exceeds 1.9 GiB" in notebook.ok("%dd retain --budget 2 GB")
    assert "budget of 1.9 GiB" in notebook.ok("%dd status")
    assert "is less than the current state" in notebook.fails("%dd retain --budget 10 B")
    assert "budget" not in notebook.ok("%dd retain --budget none")
    assert 'budget="2 GB"' in notebook.fails("%dd retain --budget 1.5x, 900 files")
    notebook.ok('%config NoSync.budget = "3 GB"')
    assert "exceeds 2.8 GiB" in notebook.ok("%dd retain")
    wrongs = {
        "little": "is not a size",
        "10 B": "than the current state",
        "3 GB, 2x": 'limit the bytes: budget="3 GB"',
    }
    for wrong, why in wrongs.items():
        caplog.clear()
        notebook.ok(f'%config NoSync.budget = "{wrong}"')  # IPython logs the error
        assert why in caplog.messages[-1]
    assert "3 GB" in notebook.ok("%config NoSync.budget")
    notebook.ok('%config NoSync.budget = "none"')
    assert "exceeds" not in notebook.ok("%dd retain")
    assert "unpinned" in notebook.ok("%dd pin --drop 'first load'")
    assert "the pins are: none" in notebook.fails("%dd pin --drop 'first load'")
    assert "30 days" in notebook.fails("%dd retain soon")
    assert "a pin needs a name" in notebook.fails("%dd pin 1")
    assert "--drop NAME" in notebook.fails("%dd pin 1 a --drop a")


def test_copy_command_copies_log(notebook: Notebook, tmp_path: Path) -> None:
    shown = notebook.ok(f"%dd copy {tmp_path / 'copy'}")
    assert "copied the log up to epoch 1 to" in shown
    with nosync.open(tmp_path / "copy") as copied:
        assert len(copied["flights"]) == 3
    assert "exists already" in notebook.fails(f"%dd copy {tmp_path / 'copy'}")


def test_compare_shows_differences_of_versions(notebook: Notebook) -> None:
    notebook.ok('%%dd\ndelays = flights.group_by("carrier").agg(n="count(*)", worst="min(delay)")')
    shown = notebook.ok("%dd compare delays@1 delays")
    assert "changed  AA       2  30 → 10" in str(shown)
    assert "UA" not in shown
    assert "rows matched on carrier" in shown
    assert "only in delays@1" in notebook.ok("%dd compare delays@1 delays --by worst")
    assert "no difference" in notebook.ok("%dd compare delays@1 delays --columns carrier n")
    assert "3 only in epoch 1, 0 in both" in notebook.ok("%dd compare flights --at 0 1")
    assert "--at 5 9" in notebook.fails("%dd compare flights")
    assert "--at 5 9" in notebook.fails("%dd compare flights delays --at 1 2 3")
    assert "no difference" in notebook.ok("%dd compare delays delays")
    assert "30" in notebook.ok("%dd show delays@1")


def test_limit_must_be_0_or_more(notebook: Notebook) -> None:
    for line in ("show flights", "diff flights", "compare flights delays"):
        assert "0 or more" in notebook.fails(f"%dd {line} --limit -3")
    shown = repr(notebook.ok("%dd show flights --limit 0").value)
    assert "the first 0 of 3 rows" in shown
    assert "AA" not in shown
    assert "no difference" in repr(notebook.ok("%dd compare flights flights --limit 0").value)
    notebook.ok("%%dd\nfew = flights.filter('delay > 9')")
    shown = repr(notebook.ok("%dd compare flights few --limit 0").value)
    assert "no difference" not in shown
    shown = repr(notebook.ok("%dd diff flights --limit 0").value)
    assert "+3" in shown
    assert "AA" not in shown


def test_unknown_name_is_answered_with_known_ones(notebook: Notebook) -> None:
    assert "did you mean `%dd status`" in notebook.fails("%dd statsu")
    assert "flights" in notebook.fails("%dd show nothing")
    assert isinstance(notebook.fails("%dd show").error, UsageError)


def test_stage_with_negative_count_is_not_shown_as_stale(notebook: Notebook) -> None:
    notebook.ok('flights.remove([("XX", 1)])')
    shown = notebook.ok("%dd graph")
    assert "cannot be read" in shown.html + shown.text
    assert "stale" not in shown.html + shown.text


def test_log_taken_over_is_not_shown_as_live(notebook: Notebook, tmp_path: Path) -> None:
    other = nosync.open(tmp_path / "log", takeover=True)
    assert "taken over" in notebook.ok("%dd status")
    other["flights"].insert([("B6", 1)])
    other.commit()
    other.close()
    assert "recovered at epoch 2" in notebook.ok("%dd open log")
    assert "live" in notebook.ok("%dd status")
    notebook.ok('flights.insert([("B6", 2)])')


def test_layers_and_graph_commands_display(notebook: Notebook) -> None:
    assert "upper" in notebook.ok("%dd layers delays")
    assert "delays <- flights" in notebook.ok("%dd graph")


def test_every_subcommand_has_help(empty: Notebook) -> None:
    from nosync.commands.dispatch import COMMANDS

    overview = empty.ok("%dd").text
    for name, command in COMMANDS.items():
        assert f"%dd {name}" in overview
        assert command.summary in empty.ok(f"%dd help {name}").text


# -- acting ----------------------------------------------------------------------------------------


def test_commit_and_sync_commands_report_durability(notebook: Notebook) -> None:
    assert "epoch 2 is committed" in notebook.ok("%dd commit --label May --wait disk")
    assert "safe on disk" in notebook.ok("%dd sync")
    assert label(2) == "May"


def test_drop_and_rename_commands_update_variables(notebook: Notebook) -> None:
    notebook.ok("%dd rename delays lateness")
    assert "delays" not in notebook.names
    assert notebook.names["lateness"].name == "lateness"
    assert "dropped lateness" in notebook.ok("%dd drop lateness")
    assert "lateness" not in notebook.names


def test_open_command_changes_log_and_variables(notebook: Notebook, tmp_path: Path) -> None:
    notebook.ok("%dd open elsewhere")
    assert {"flights", "delays"}.isdisjoint(notebook.names)
    assert nosync.session().now == 0
    assert "recovered at epoch 1" in notebook.ok("%dd open log")
    assert nosync.session().now == 1
    assert notebook.names["delays"].name == "delays"


def test_session_closed_by_user_is_reopened_at_next_use(notebook: Notebook) -> None:
    uses = (
        "nosync.session()",
        "%dd recover",
        "%dd show delays",
        "%%dd\nslow = delays.filter('worst > 9')",
    )
    for number, source in enumerate(uses):
        notebook.ok("nosync.session().close()")
        assert "nosync.session()" in notebook.fails("flights.insert([('DL', 1)])")
        assert "recovered at epoch" in notebook.ok(source)
        notebook.ok(f"flights.insert([('DL', {number})])")
    assert rows(notebook, "slow") == [("AA", 2, 30)]


def test_rows_of_cell_that_closes_session_are_an_error(notebook: Notebook) -> None:
    shown = notebook.fails("flights.insert([('DL', 1)])\nnosync.session().close()")
    assert "session is closed" in shown
    assert "1 pending row (flights)" in shown
    notebook.ok("nosync.session()\nflights.insert([('DL', 1)])")
    assert nosync.session().now == 2


# -- recovery --------------------------------------------------------------------------------------


def test_variables_are_restored_with_report(notebook: Notebook) -> None:
    notebook.ok("total = 5\nother = delays")
    notebook.close()
    with closing(Notebook()) as again:
        shown = again.ok("%load_ext nosync")
        assert "recovered at epoch 1" in shown
        assert "closed properly" in shown
        assert "total" in shown
        assert "<table" in shown.html
        assert "flights" in again.names
        assert nosync.session().recovery.not_restored["total"] == "In[5]: total = 5"
        assert rows(again, "other") == [("AA", 2, 30), ("UA", 1, 5)]
        assert "total" in again.ok("%dd recover")


def test_memo_of_cell_with_secret_has_names_only(notebook: Notebook) -> None:
    secrets = [
        "password = 'hunter2'",
        "db_pwd, other_x = 'hunter2', 1",
        "plain_name = connect('postgres://me:hunter2@host/db')",
        "headers = {'Authorization': 'Bearer hunter2'}",
        "API_KEY = 'hunter2'",
        "access = 'hunter2'",
        "my_token = 'hunter2'\nderived = 'hunter2' + 'x'",
        "secretKey = 'hunter2'",
        "client = login(key='hunter2')",
    ]
    notebook.ok("connect = login = lambda *_, **__: 0")
    for text in secrets:
        notebook.ok(text)
    harmless = "monkeys = 5"
    notebook.ok(harmless)
    current = nosync.extension.current()
    assert current is not None
    assert current.place is not None
    names = current.variables.memo.names
    assert {"password", "db_pwd", "other_x", "plain_name", "derived", "client"} <= set(names)
    assert names["password"].startswith("In[")
    assert harmless in names["monkeys"]
    for path in current.place.path.rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes(), path
    assert (current.place.path / "notebook.json").stat().st_mode & 0o777 == 0o600


def test_spark_bound_by_nosync_is_not_recorded_in_memo(notebook: Notebook) -> None:
    class Bound:
        spark = object()

    current = nosync.extension.current()
    assert current is not None
    current.variables.bind_spark(Bound.spark)
    notebook.ok("mine = 1")
    assert "spark" in notebook.names
    assert "mine" in current.variables.memo.names
    assert "spark" not in current.variables.memo.names


def test_lost_jvm_of_spark_fails_no_cell(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_spark: object) -> dict[str, str]:
        raise ConnectionRefusedError

    current = nosync.extension.current()
    assert current is not None
    monkeypatch.setattr(type(current.opened), "spark", property(lambda _: "a session"))
    monkeypatch.setattr(spark_session, "is_session", lambda value: value == "a session")
    monkeypatch.setattr(spark_session, "restart_conf", gone)
    notebook.ok("mine = len('spark')")
    assert "mine" in current.variables.memo.names
    assert current.variables.memo.running is None


def test_spark_variable_follows_next_session_unless_user_rebinds_it(notebook: Notebook) -> None:
    current = nosync.extension.current()
    assert current is not None
    first, second, third = object(), object(), object()
    current.variables.bind_spark(first)
    current.variables.bind_spark(second)
    assert notebook.names["spark"] is second
    notebook.ok("spark = 'mine'")
    current.variables.bind_spark(third)
    assert notebook.names["spark"] == "mine"


# -- errors and completion -------------------------------------------------------------------------


def test_nosync_error_is_short_and_names_line(notebook: Notebook) -> None:
    shown = notebook.fails("delays.rows(at=77)")
    assert "TimeError" in shown
    assert "Traceback" not in shown.text
    assert "line 1: delays.rows(at=77)" in shown
    assert "Traceback" in notebook.ok("%tb").text
    notebook.ok("%config NoSync.short_errors = False")
    assert "Traceback" in notebook.fails("delays.rows(at=77)").text


def test_collection_that_cannot_be_displayed_shows_error_once(notebook: Notebook) -> None:
    notebook.ok('flights.remove([("XX", 1)])')
    shown = notebook.ok("print('before')\nflights")
    assert shown.text.count("NegativeMultiplicityError") == 1
    assert "Traceback" not in shown.text
    assert "before" in shown
    assert "Hint" in shown
    assert "Traceback" in notebook.ok("%tb").text
    assert "flights: carrier string" in notebook.ok("[flights]")


def test_stages_are_completed_before_options(notebook: Notebook) -> None:
    line = "%dd travel "
    with provisionalcompleter():
        words = [item.text for item in notebook.shell.Completer.completions(line, len(line))]
    assert words[-1] == "--at"
    assert {"delays", "flights"} <= set(words[:-1])


def test_subcommands_stages_and_options_are_completed(notebook: Notebook) -> None:
    def words(text: str) -> set[str]:
        with provisionalcompleter():
            return {item.text for item in notebook.shell.Completer.completions(text, len(text))}

    assert {"travel"} == words("%dd tra")
    assert "delays" in words("%dd show de")
    assert "--limit" in words("%dd show delays --l")
    assert "--nondeterministic" in words("%%dd --non")


def test_notebook_without_name_reports_temporary_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("NOSYNC_SESSION", "JPY_SESSION_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with closing(Notebook()) as notebook:
        notebook.ok("%load_ext nosync")
        assert "temporary" in notebook.ok(FLIGHTS)


def test_deleted_variable_is_not_reported_lost_after_restart(notebook: Notebook) -> None:
    notebook.ok("total = 5\nkept = 6\nother = delays\nmore = delays")
    notebook.ok("del total, other")
    notebook.close()
    with closing(Notebook()) as again:
        again.ok("%load_ext nosync")
        assert set(nosync.session().recovery.not_restored) == {"kept"}
        assert "other" not in again.names
        assert rows(again, "more") == [("AA", 2, 30), ("UA", 1, 5)]


def test_notebook_message_is_text_and_escaped_html(notebook: Notebook) -> None:
    current = nosync.extension.current()
    assert current is not None
    hostile = "</pre><script>alert(1)</script>&amp;"
    with capture_output() as captured:
        current.say(hostile)
    (output,) = captured.outputs
    assert output.data["text/plain"] == hostile
    assert "<script>" not in output.data["text/html"]
    assert "&lt;/pre&gt;&lt;script&gt;" in output.data["text/html"]
    assert "&amp;amp;" in output.data["text/html"]


def test_commit_line_distinguishes_added_and_removed_rows(notebook: Notebook) -> None:
    assert "flights 2 rows" in notebook.ok('flights.insert([("X", 1), ("Y", 2)])')
    assert "flights −1 row" in notebook.ok('flights.remove([("X", 1)])')
    both = 'flights.insert([("Z", 1)] * 3)\nflights.remove([("Y", 2)])'
    shown = notebook.ok(both).text
    assert "flights +3 / −1 rows\n2 changes became one epoch" in shown
    notebook.ok('flights.remove([("nobody", 1)])')
    assert "has a count of -1" in notebook.fails("flights.rows()")
    assert "nobody" not in notebook.ok("delays")


def test_loads_already_committed_are_one_line(notebook: Notebook) -> None:
    cell = (
        "for day in range({}):\n    with nosync.epoch(once=day):\n"
        '        flights.insert([("AA", day)])'
    )
    assert "already" not in notebook.ok(cell.format(3))
    shown = notebook.ok(cell.format(5)).text
    assert shown.count("already") == 1
    assert "3 loads were already committed; epochs 5 to 6 committed" in shown
    assert "5 loads were already committed, nothing to do" in notebook.ok(cell.format(5))
    failed = notebook.fails(cell.format(6) + "\n1 / 0")
    assert "5 loads were already committed; epoch 7 committed" in failed
    once = 'flights.insert([("AA", 1)], once="key")'
    notebook.ok(once)
    assert "input 'flights': 'key' is loaded already, nothing to do" in notebook.ok(once)


def test_cell_that_inserts_same_rows_again_is_pointed_out(notebook: Notebook) -> None:
    again = notebook.ok(LOAD)
    assert "the same rows as in epoch 1: flights has them twice now; `%dd rewind 1`" in again
    assert "the same rows as in epoch 2" in notebook.ok(LOAD)
    notebook.ok("%dd rewind 1")
    assert "the same rows" not in notebook.ok("row = ('DL', 7)\nflights.insert([row])")
    loop = 'for n in (1, 2):\n    with nosync.epoch():\n        flights.insert([("AA", n + {})])'
    notebook.ok("k = 0")
    notebook.ok(loop.format("k"))
    assert "the same rows as in epochs 3 to 4" in notebook.ok(loop.format("k"))
    notebook.ok("k = 9")
    assert "the same rows" not in notebook.ok(loop.format("k"))


def test_same_rows_after_clear_are_not_pointed_out(notebook: Notebook) -> None:
    notebook.ok("flights.clear()")
    assert "twice" not in notebook.ok(LOAD).text
    assert "twice" not in notebook.ok(f"flights.clear()\n{LOAD}").text
    assert "has them twice now" in notebook.ok(LOAD)


def test_failed_dd_cell_names_variables_it_left_unchanged(notebook: Notebook) -> None:
    cell = '%%dd\nslow = delays.filter("worst > 20")\nraise ValueError("half")\nlate = 1'
    shown = notebook.fails(cell)
    assert "ValueError: half" in shown
    assert "The cell defines no stage; slow has its previous value" in shown
    assert "slow" not in notebook.names
    assert "defines no stage" not in notebook.fails('%%dd\nslow = delays.filter("wrst > 20")')


def test_dd_cell_that_hides_stage_reports_it(notebook: Notebook) -> None:
    shown = notebook.ok("%%dd\ndelays = 5\nother = flights.distinct()")
    assert "delays holds a value of type int" in shown
    assert "delays = nosync.session()['delays']" in shown
    assert "flights holds" in notebook.ok("%%dd\nflights = None")


def test_unknown_option_of_dd_cell_names_help(notebook: Notebook) -> None:
    shown = notebook.fails("%%dd --frobnicate\nslow = delays.distinct()")
    assert "%%dd: unrecognized arguments: --frobnicate; `%%dd?` lists the options" in str(
        shown.error
    )


def test_status_mentions_replicas_only_if_log_has_some(notebook: Notebook, tmp_path: Path) -> None:
    assert "on replicas" not in notebook.ok("%dd status")
    notebook.ok(f"%dd replicas add {tmp_path / 'copies'}")
    assert "on replicas" in notebook.ok("%dd status")


def test_remove_of_missing_row_warns_with_line_of_cell(notebook: Notebook) -> None:
    notebook.ok('keyed = nosync.input("keyed", "n bigint", key="n")')
    with pytest.warns(UserWarning, match="does not exist: nothing was removed for it") as caught:
        notebook.ok("x = 1\nkeyed.remove([(1,)])")
    told = next(each for each in caught if "was removed" in str(each.message))
    assert (notebook.shell.compile.format_code_name(told.filename), told.lineno) == (
        ("Cell", f"In[{notebook.shell.execution_count - 1}]"),
        2,
    )
