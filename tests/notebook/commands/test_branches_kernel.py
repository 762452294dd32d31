"""A notebook on a branch of another notebook's log, while that notebook writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from jupyter.kernels import Kernel
from jupyter.shell import Notebook

import nosync
from nosync_nb import SchemaError

FLIGHTS = 'flights = nosync.input("flights", "carrier string, delay int")'
COUNT = '%%dd\ncounts = flights.group_by("carrier").agg(n="count(*)")'


def insert(carrier: str) -> str:
    return f'flights.insert([("{carrier}", 1)])'


@pytest.fixture
def notebooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Kernel, Kernel]]:
    """The running notebook `main`, and the notebook of a colleague with a branch of its log."""
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "keys" / "key"))
    with ExitStack() as stack:
        owner, colleague = (
            stack.enter_context(closing(Kernel(tmp_path, notebook=f"{name}.ipynb")))
            for name in ("main", "colleague")
        )
        for source in (FLIGHTS, COUNT, insert("AA"), "%dd branch colleague\n%dd branch other"):
            assert owner.run(source).status == "ok"
        opened = colleague.run("%dd open main.ipynb --branch colleague")
        assert "now on branch colleague; `%dd switch` reads the main log" in opened
        yield owner, colleague


def test_main_is_readable_while_its_notebook_writes(notebooks: tuple[Kernel, Kernel]) -> None:
    owner, colleague = notebooks
    colleague.run(insert("DL"))
    owner.run(insert("B6"))
    compared = colleague.run("%dd compare main/counts counts")
    assert "1 only in main/counts, 1 only in counts, 1 in both" in compared
    assert "caught up with the main log: 1 epoch, now at 3" in colleague.run("%dd follow")
    assert "1 only in counts, 2 in both" in colleague.run("%dd compare main/counts counts")
    assert "2 only in counts, 1 in both" in colleague.run("%dd compare other/counts counts")
    listed = colleague.run("%dd branch").text
    (own,) = [line for line in listed.splitlines() if line.startswith("colleague")]
    assert "this notebook" in own
    assert "other" in listed
    assert "branch colleague of log" in colleague.run("%dd status")
    assert "branch colleague/mine forked" in colleague.run("%dd branch mine")


def test_switch_reads_main_and_returns(notebooks: tuple[Kernel, Kernel]) -> None:
    owner, colleague = notebooks
    switched = colleague.run("%dd switch")
    assert "now reading the main log, which another notebook writes, at epoch 1" in switched
    owner.run(insert("B6"))
    show = "print(sorted(row.carrier for row in counts.rows()))"
    assert "['AA', 'B6']" in colleague.run(show)
    assert "the session is open for reading" in colleague.run(insert("DL"))
    refused = colleague.run("%dd branch more")
    assert "`%dd branch more` in the notebook that writes the log" in refused
    colleague.run("nosync.session().close()")
    assert "['AA', 'B6']" in colleague.run(f"counts = nosync.session()['counts']\n{show}")
    assert "run this command in the notebook that has it open" in colleague.run(
        "%dd branch --drop other"
    )
    assert "now on branch colleague, at epoch 1" in colleague.run("%dd switch colleague")
    colleague.run(insert("DL"))
    colleague.run("%dd branch mine")
    assert "branch colleague/mine, at epoch 2" in colleague.run("%dd switch colleague/mine")
    assert "branches: colleague, colleague/mine, other" in colleague.run("%dd switch none")
    assert owner.run(insert("WN")).status == "ok"
    colleague.kill()
    assert "now on branch colleague/mine" in colleague.run("1")
    assert "['AA', 'DL']" in colleague.run(show)
    assert "now on branch other, at epoch 1" in colleague.run("%dd switch other")
    assert "caught up with the main log: 2 epochs, now at 3" in colleague.run("%dd follow")
    colleague.kill()
    assert "now on branch other" in colleague.run("1")
    owner.kill()
    assert "branch" not in owner.run("1")  # the branch in use is the colleague's choice alone
    assert "FencedError: branch 'other' is open" in owner.run("%dd branch --drop other")
    assert "dropped branch colleague" in owner.run(
        "%dd branch --drop colleague/mine\n%dd branch --drop colleague"
    )


def test_branch_in_another_folder_has_no_main(empty: Notebook, tmp_path: Path) -> None:
    for source in (FLIGHTS, COUNT, insert("AA"), "%dd branch what_if"):
        empty.ok(source)
    empty.close()
    os.rename(tmp_path / "log" / "branches" / "what_if", tmp_path / "moved")
    with nosync.open(tmp_path / "other") as other:
        other.input("x", "a int")
        other.branch("made").close()
    with closing(Notebook()) as again:
        again.ok("%load_ext nosync\n%dd open moved")
        for command in ("%dd compare main/counts counts", "%dd follow"):
            refused = again.fails(command)
            assert isinstance(refused.error, SchemaError)
            assert "was forked from a log that is not in the folder above it" in refused
        followed = "nosync.session().follow(nosync.open('log', mode='r'))"
        assert again.ok(followed).value == 1
        again.ok("nosync.session().close()")
        os.rename(tmp_path / "moved", tmp_path / "other" / "branches" / "moved")
        again.ok("%dd open other/branches/moved")
        refused = again.fails("%dd compare main/counts counts")
        assert "was forked from a log that is not in the folder above it" in refused
