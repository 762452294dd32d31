"""Errors in cells: short, with the remedy, and the cell as written."""

from __future__ import annotations

import pytest
from jupyter.shell import Notebook

import nosync

BEGIN = """
orders = nosync.input("orders", "id int, customer int, sku string, amount double")
customers = nosync.input("customers", "id int, name string")
orders.insert([(1, 1, "apple", 5.0), (2, 1, "pear", 7.0)]); customers.insert([(1, "ann")]);
"""
STAGE = '%%dd\ntotals = orders.group_by("customer").agg(n="count(*)")'


@pytest.fixture
def notebook(empty: Notebook) -> Notebook:
    for cell in (BEGIN, STAGE):
        empty.ok(cell)
    return empty


@pytest.mark.parametrize(
    ("written", "remedy"),
    [
        ("orders.top(3)", "group_by().top(n, by='x desc')"),
        ("orders.order_by('amount')", "head(n, by='x desc')"),
        ("orders.columns", "schema.names"),
        ("orders.describe()", "to_pandas().describe(...)"),
        ("orders.sample(3)", "to_pandas().sample(...)"),
        ("orders.plot()", "to_pandas().plot(...)"),
        ("orders.to_csv('x')", "to_pandas().to_csv(...)"),
        ("orders.sum('amount')", "group_by().agg(name='sum(x)')"),
        ("orders.fliter('amount > 1')", "did you mean 'filter'?"),
        ("orders.amount", "filter('amount = ...')"),
        ("orders['amount']", "select('amount')"),
        ("list(orders)", ".rows()"),
        ("orders.with_columns('amount*2 as x')", "with_columns(x='amount*2')"),
        ("orders.group_by('sku').sum()", "agg(name='sum(x)')"),
        ("orders.group_by('sku').agg('sum(amount) AS s')", "agg(s='sum(amount)')"),
        ("orders.group_by('sku').agg({'amount': 'sum'})", "agg(amount='sum(amount)')"),
        ("orders.group_by('sku').contu()", "did you mean 'count'?"),
        ("orders.group_by('sku').zzz", "call agg, count, reduce, top or rank on it"),
    ],
)
def test_unknown_call_names_its_equivalent(notebook: Notebook, written: str, remedy: str) -> None:
    shown = notebook.fails(written)
    assert isinstance(shown.error, nosync.MisuseError)
    assert remedy in shown.text
    assert f"line 1: {written}" in shown.text
    assert len(shown.text.strip().splitlines()) == 3, shown.text
    within = notebook.fails(f"%%dd --replay 0\n# here\nworse = {written}")
    assert f"line 3: worse = {written}" in within.text
    assert "run_cell_magic" not in within.text


@pytest.mark.parametrize(
    ("written", "remedy"),
    [
        ("orders.select(twice='amount * 2')", "select(*expressions): Computes the output columns"),
        ("orders.join()", "join(other, on=None, how="),
        ("orders.rows(when=3)", "rows(at=None"),
        ("orders.group_by('sku').top()", "top(k, by=None, offset=0)"),
        ("nosync.session().branch()", "branch(name, "),
    ],
)
def test_wrong_argument_shows_signature(notebook: Notebook, written: str, remedy: str) -> None:
    shown = notebook.fails(written)
    assert isinstance(shown.error, TypeError)
    assert f"Hint: {remedy}" in shown.text
    assert f"line 1: {written}" in shown.text
    assert len(shown.text.strip().splitlines()) == 3, shown.text


def test_wrong_call_of_user_class_shows_traceback(notebook: Notebook) -> None:
    notebook.ok("class Session:\n    def branch(self): pass\nclass Mine:\n    def f(self): pass")
    assert "Traceback" in notebook.fails("Mine().f(1)").text
    assert "Traceback" in notebook.fails("Session().branch(1)").text


def test_hasattr_on_collection_raises_no_misuse_error(notebook: Notebook) -> None:
    orders = notebook.names["orders"]
    assert not hasattr(orders, "columns")
    assert getattr(orders.group_by("sku"), "apply", None) is None
    with pytest.raises(TypeError):
        iter(orders)


def test_error_in_backfill_names_line_of_stage(notebook: Notebook) -> None:
    shown = notebook.fails(
        '%%dd\nfine = orders.filter("id > 0")\n\nworse = (\n'
        '    orders.filter("sku > 5")\n)\nlast = orders.distinct()'
    )
    assert "stage 'worse'" in shown.text
    assert "line 5: orders.filter" in shown.text or "line 4: worse = (" in shown.text
    assert "run_cell_magic" not in shown.text


@pytest.mark.parametrize(
    "cell",
    [
        "%%dd\nbroken = 1 / 0\nrest = orders.distinct()",
        "with nosync.epoch():\n    orders.insert([(3, 1, 'fig', 1.0)])\n    1 / 0",
        "%%dd\nimport json\nbroken = json.loads('{')",
    ],
)
def test_error_in_user_code_shows_only_user_frames(notebook: Notebook, cell: str) -> None:
    shown = notebook.fails(cell)
    assert not isinstance(shown.error, nosync.NosyncError)
    assert "----> " in shown.text
    for ours in ("nosync/", "nosync_nb/", "run_cell_magic", "skipping hidden", "magic.py"):
        assert ours not in shown.text, shown.text
    if "json" in cell:
        assert "decoder.py" in shown.text, "what the user's line called is the user's"
    if cell.startswith("%%dd"):
        assert "run_cell_magic" in notebook.ok("%tb").text, "all frames are there"


def test_spark_error_shows_message_without_java_frames(notebook: Notebook) -> None:
    cell = (
        "from py4j.protocol import Py4JError\n"
        "try:\n    raise {}('Job aborted.\\n\\tat org.apache.spark.Task')\n"
        "except Exception as said:\n"
        "    raise nosync.StageError('Spark failed: Error loading', stage='x') from said"
    )
    shown = notebook.fails(cell.format("Py4JError")).text
    assert "Spark failed: Error loading" in shown
    assert "org.apache" not in shown
    assert len(shown.strip().splitlines()) == 2, shown
    assert "org.apache" in notebook.ok("%tb").text, "all of it is there"
    assert "caused by ValueError: Job aborted" in notebook.fails(cell.format("ValueError")).text


def test_error_without_nosync_frames_is_unchanged(notebook: Notebook) -> None:
    ours = notebook.fails("def f(x):\n    return 1 / x\nf(0)").text
    notebook.ok("%unload_ext nosync")
    assert notebook.fails("def f(x):\n    return 1 / x\nf(0)").text.replace("[6]", "[4]") == ours


def test_error_of_line_magic_shows_written_line(notebook: Notebook) -> None:
    shown = notebook.fails("%dd show totals --at nope")
    assert "line 1: %dd show totals --at nope" in shown.text


def test_error_names_stage_hidden_by_variable(notebook: Notebook) -> None:
    notebook.ok("orders = 5")
    shown = notebook.fails('%%dd\nbig = orders.filter("amount > 3")')
    assert "'int' object has no attribute 'filter'" in shown.text
    assert "orders = nosync.session()['orders']" in shown.text
    notebook.ok("orders = nosync.session()['orders']")
    notebook.ok('%%dd\nbig = orders.filter("amount > 3")')


def test_join_error_names_side_that_lacks_key(notebook: Notebook) -> None:
    right = notebook.fails("orders.join(customers, on='customer')").text
    assert "the right side has no column 'customer'" in right
    assert "{'customer': '...'}" in right
    left = notebook.fails("orders.join(customers, on='name')").text
    assert "the left side has no column 'name'" in left


def test_misspelt_aggregate_suggests_function(notebook: Notebook) -> None:
    shown = notebook.fails("orders.group_by('sku').agg(n='cuont(*)')")
    assert "did you mean 'count'?" in shown.text


def test_error_lists_few_of_many_labels(notebook: Notebook) -> None:
    notebook.ok(
        "for day in range(60):\n    with nosync.epoch(label=f'day {day}'):\n"
        "        customers.insert([(day + 2, 'x')])"
    )
    assert notebook.fails("totals.rows(at='nope')").text.count("day ") == 6
    assert "did you mean 'day 59'" in notebook.fails("totals.rows(at='day 599')").text


def test_dd_line_displays_anywhere_in_cell(notebook: Notebook) -> None:
    shown = notebook.ok("%dd show customers\nfor _ in range(2):\n    %dd layers totals\nx = 1")
    assert "ann" in shown.text
    assert shown.text.count("each holds the net changes") == 2
    taken = notebook.ok("table = %dd show customers\nx = 2")
    assert "ann" not in taken.text
    assert "ann" in notebook.ok("print(table)").text
    assert notebook.ok("%dd show customers").text.count("ann") == 1


def test_show_rows_setting_displays_new_stages(notebook: Notebook) -> None:
    notebook.ok('%config NoSync.show = "rows"')
    shown = notebook.ok('%%dd\nnames = customers.select("upper(name) as NAME")')
    assert "NAME" in shown.text
    assert "ANN" in shown.text


def test_plan_displays_as_lines(notebook: Notebook) -> None:
    shown = notebook.ok("totals.explain()")
    assert "\\n" not in shown.text
    assert len(shown.text.strip().splitlines()) > 1


def test_version_has_three_parts() -> None:
    assert nosync.__version__.count(".") == 2
