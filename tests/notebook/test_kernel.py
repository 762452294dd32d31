"""The notebook in a real kernel: restart, death, interrupt, and the next cell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from jupyter.kernels import Kernel

FLIGHTS = (
    'flights = nosync.input("flights", "carrier string, delay int")\n'
    'flights.insert([("AA", 10), ("AA", 30), ("UA", 5)], once="first")'
)
DELAYS = '%%dd\ndelays = flights.group_by("carrier").agg(n="count(*)", worst="max(delay)")'
PRINT = "print([tuple(row) for row in delays.rows()])"
VALUES = "[('AA', 2, 30), ('UA', 1, 5)]"


@contextmanager
def prepared(folder: Path) -> Iterator[Kernel]:
    """A kernel of the notebook `flights.ipynb`, with an input and a stage."""
    with closing(Kernel(folder)) as kernel:
        assert kernel.run(FLIGHTS).status == "ok"
        assert kernel.run(DELAYS).status == "ok"
        yield kernel


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    """A kernel that the test may kill and change."""
    with prepared(tmp_path) as kernel:
        yield kernel


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def shared(folder: Path) -> Iterator[Kernel]:
    """A shared kernel whose values a test must restore."""
    with prepared(folder) as kernel:
        yield kernel


def test_kernel_creates_log_beside_notebook(shared: Kernel, folder: Path) -> None:
    assert (folder / ".nosync" / "flights").is_dir()
    assert (folder / ".nosync" / ".gitignore").read_text() == "*\n"


@pytest.mark.fault(1)
def test_first_cell_after_kill_shows_report_and_equal_values(kernel: Kernel) -> None:
    kernel.run("total = 5")
    kernel.kill()
    reply = kernel.run(PRINT)
    assert reply.status == "ok"
    assert VALUES in reply
    assert "total" in reply
    assert "epoch 1" in reply
    second = kernel.run(PRINT)
    assert second.text.strip() == VALUES


def test_notebook_continues_after_kill(kernel: Kernel) -> None:
    kernel.kill()
    assert kernel.run(FLIGHTS).status == "ok"
    assert "unchanged" in kernel.run(DELAYS)
    kernel.run('flights.insert([("DL", 7)])')
    assert "('DL', 1, 7)" in kernel.run(PRINT)
    kernel.kill()
    assert "('DL', 1, 7)" in kernel.run(PRINT)


@pytest.mark.fault(7)
def test_restart_from_menu_closes_log_properly(kernel: Kernel) -> None:
    kernel.restart()
    reply = kernel.run("print(nosync.session().recovery.clean)")
    assert "True" in reply
    assert VALUES in kernel.run(PRINT)


def test_cell_running_at_kill_committed_nothing(kernel: Kernel) -> None:
    cell = 'flights.insert([("DL", 1)])\nprint("inserted")\nimport signal; signal.pause()'
    kernel.begin(cell)
    kernel.wait_for_text("inserted")
    kernel.kill()
    assert VALUES in kernel.run(PRINT)


@pytest.mark.fault(48)
def test_interrupt_discards_cell(shared: Kernel) -> None:
    cell = 'flights.insert([("DL", 1)])\nprint("inserted")\nimport signal; signal.pause()'
    running = shared.begin(cell)
    shared.wait_for_text("inserted")
    shared.interrupt()
    reply = shared.finish(running)
    assert reply.status == "error"
    assert "1 pending row (flights) discarded" in reply
    assert VALUES in shared.run(PRINT)


def test_commit_error_is_cell_error(shared: Kernel) -> None:
    shared.run('%%dd\nbroken = flights.map(lambda row: (1 // (row.delay - 7),), "x int")')
    reply = shared.run('flights.insert([("DL", 7)])')
    assert reply.status == "error"
    assert "broken" in reply.errors[0]
    assert "ZeroDivisionError" in reply.errors[0]
    assert VALUES in shared.run(PRINT)
    assert shared.run("%dd drop broken").status == "ok"


@pytest.mark.fault(5)
def test_safe_mode_follows_two_recoveries_that_end_kernel(kernel: Kernel, tmp_path: Path) -> None:
    kernel.kill()
    memo = tmp_path / ".nosync" / "flights" / "notebook.json"
    known = json.loads(memo.read_text())
    memo.write_text(json.dumps({**known, "attempts": 2}))
    assert "ended the kernel twice" in kernel.run("1")
    assert kernel.run("1 + 1").status == "ok"
    assert kernel.run("%dd recover").status == "ok"
    assert VALUES in kernel.run(PRINT)
    assert json.loads(memo.read_text()).get("attempts", 0) == 0


def test_failed_cell_with_trailing_blank_line_shows_error_once(shared: Kernel) -> None:
    """A kernel names code by its text, and the body of such a cell equals its text."""
    reply = shared.run("%%dd\nbroken = 1 / 0\n")
    (shown,) = reply.errors
    assert shown.count("----> ") == 1, shown
    assert "----> 2 broken = 1 / 0" in shown


def test_travel_displays_widget_and_static_copy(shared: Kernel) -> None:
    reply = shared.run("%dd travel delays")
    assert reply.models
    assert "<details>" in reply.html
    assert "epoch 1" in reply


def test_displayed_stage_is_one_grid_with_static_rows(shared: Kernel) -> None:
    first, second = shared.run("delays"), shared.run("delays")
    assert first.models == second.models
    assert len(first.models) == 1
    assert "<details><summary>delays at epoch 1: 2 rows " in first.html
    assert "AA" in first


@pytest.mark.fault(23)
def test_second_kernel_of_notebook_is_refused_with_remedy(shared: Kernel, folder: Path) -> None:
    with closing(Kernel(folder)) as second:
        reply = second.run("1 + 1")
        assert reply.status == "ok"
        assert "FencedError" in reply
        assert "it is the log of flights.ipynb; `%dd open .nosync/flights --mode r` reads" in reply
        assert "FencedError" in second.run("flights = nosync.session()['flights']")
        assert shared.run('flights.insert([("DL", 7)])').status == "ok"
        assert shared.run('flights.remove([("DL", 7)])').status == "ok"


def test_nested_cell_belongs_to_outer_cell(kernel: Kernel) -> None:
    reply = kernel.run(
        'flights.insert([("DL", 1)])\n'
        "inner = get_ipython().run_cell('flights.insert([(\"DL\", 2)])')\n"
        "assert inner.success\n"
        'flights.insert([("DL", 3)])'
    )
    assert reply.status == "ok"
    assert "('DL', 3, 3)" in kernel.run(PRINT)
    assert kernel.run("print(nosync.session().now)").text.strip() == "2"
