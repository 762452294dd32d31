"""Kills in a commit: in a function, in a round of a loop, beside a write."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[2] / "support" / "crash" / "points.py"
EDGES = 3
"""How many an epoch adds; see `points.edges_of`."""
MOMENTS_MAX = 100


class Lives:
    """The lives of one log, and the rows that each epoch has shown."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.shown: dict[str, Any] = {}
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "NOSYNC_KEY_FILE": str(folder.parent / "key")},
        )

    def live(self, kind: str, number: int) -> tuple[bool, int]:
        """Runs one life; returns whether it was killed, and how many unknown epochs it found."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin
        assert stdout
        stdin.write(json.dumps([str(self._folder), kind, number]) + "\n")
        stdin.flush()
        more = 0
        for line in stdout:
            ((word, value),) = json.loads(line).items()
            if word == "ended":
                assert value == 0 or os.WTERMSIG(value) == signal.SIGKILL
                return value != 0, more
            assert word != "failed", value
            if word == "found":
                more = max(map(int, value), default=0) - max(map(int, self.shown), default=0)
                assert more >= 0, "an epoch that was shown is lost"
            for epoch, rows in value.items():
                check_epoch(int(epoch), rows)
                assert self.shown.setdefault(epoch, rows) == rows, "an epoch has other rows"
        pytest.fail("the program ended")

    def close(self) -> None:
        """Ends the program."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            pipe.close()
        self._process.wait()


def check_epoch(epoch: int, rows: dict[str, list[list[int]]]) -> None:
    """Asserts that an epoch is complete and consistent."""
    edges = [[number, number + 1] for number in range(EDGES * epoch)]
    assert [row[:2] for row in rows["tags"]] == edges
    assert rows["most"] == [[src, tag] for src, _, tag in rows["tags"]]
    assert rows["reach"] == [[number + 1] for number in range(EDGES * epoch)]


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    program = Lives(tmp_path / "log")
    yield program
    program.close()


def kill_at_each_moment(lives: Lives, kind: str) -> list[int]:
    """Kills a life at each moment of a kind; returns the number of unknown epochs after each.

    After each, another life reports how many epochs it found beyond those that were shown, and is
    killed before it shows its own.
    """
    assert not lives.live("", 0)[0]
    left = []
    for number in count(1):
        assert number < MOMENTS_MAX
        if not lives.live(kind, number)[0]:
            return left
        died, more = lives.live("shown", 1)
        assert died
        left.append(more)
    raise AssertionError


@pytest.mark.fault(1, 36)
def test_killed_nondeterministic_stage_has_one_result_per_row(lives: Lives) -> None:
    assert (
        kill_at_each_moment(lives, "answered") == [0] * 2 * EDGES
    )  # a call and a return for each row


@pytest.mark.fault(1, 39)
def test_loop_killed_in_a_round_leaves_its_epoch_out(lives: Lives) -> None:
    assert (
        kill_at_each_moment(lives, "further") == [0] * 2 * EDGES
    )  # a call and a return for each round


@pytest.mark.fault(1, 36, 39)
def test_kill_at_any_write_of_a_commit_leaves_all_or_nothing(lives: Lives) -> None:
    assert set(kill_at_each_moment(lives, "disk")) == {0, 1}, "kills before and after the write"
