"""`%dd explain`: the plan of a stage, a variable or a query, before anything is defined."""

from __future__ import annotations

import pytest
from jupyter.shell import Notebook

import nosync
from nosync_nb.collections.explain_output import ExplainOutput

FLIGHTS = 'flights = nosync.input("flights", "carrier string, delay int")'
LOAD = 'flights.insert([("AA", 10), ("AA", 30), ("UA", 5)])'
DELAYS = '%%dd\ndelays = flights.group_by("carrier").agg(n="count(*)", worst="max(delay)")'


@pytest.fixture
def notebook(empty: Notebook) -> Notebook:
    for source in (FLIGHTS, LOAD, DELAYS):
        empty.ok(source)
    return empty


def test_explain_takes_query_with_its_quotes(notebook: Notebook) -> None:
    shown = notebook.ok(
        "%dd explain SELECT delay AS `the delay` FROM flights WHERE carrier = 'A\"A'"
    )
    assert isinstance(shown.value, ExplainOutput)
    assert shown.value.startswith("query\n")
    assert "filter carrier = 'A\"A'" in shown.value
    assert "<details open>" in shown.value._repr_html_()
    assert [*nosync.session().stages] == ["delays"]


def test_explain_takes_stage_and_variable(notebook: Notebook) -> None:
    stage = notebook.ok("%dd explain delays").value
    assert stage == nosync.session()["delays"].explain()
    notebook.ok('_late = flights.filter("delay > 20")')
    assert "filter delay > 20" in notebook.ok("%dd explain _late").value
    assert [*nosync.session().stages] == ["delays"]


def test_explain_of_unknown_name_shows_similar_one(notebook: Notebook) -> None:
    assert "did you mean 'delays'" in notebook.fails("%dd explain delay").text
    assert "required: query" in notebook.fails("%dd explain").text
    assert "UNRESOLVED_COLUMN" in notebook.fails("%dd explain SELECT late FROM delays").text


def test_help_of_explain_shows_its_argument(notebook: Notebook) -> None:
    assert "SELECT ... as written" in str(notebook.ok("%dd help explain").text)
