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
    """The lives of one log, and what each epoch has shown."""

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
        """Lets one live; returns whether it was killed, and how many epochs it found too many."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin
        assert stdout
        stdin.write(json.dumps([str(self._folder), kind, number]) + "\n")
        stdin.flush()
        more = 0
        for line in stdout:
            ((what, said),) = json.loads(line).items()
            if what == "ended":
                assert said == 0 or os.WTERMSIG(said) == signal.SIGKILL
                return said != 0, more
            assert what != "failed", said
            if what == "found":
                more = max(map(int, said), default=0) - max(map(int, self.shown), default=0)
                assert more >= 0, "an epoch that was shown is gone"
            for epoch, rows in said.items():
                check(int(epoch), rows)
                assert self.shown.setdefault(epoch, rows) == rows, "an epoch has two answers"
        pytest.fail("the program ended")

    def close(self) -> None:
        """Ends the program."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            pipe.close()
        self._process.wait()


def check(epoch: int, rows: dict[str, list[list[int]]]) -> None:
    """All of an epoch is there, and belongs together."""
    edges = [[number, number + 1] for number in range(EDGES * epoch)]
    assert [row[:2] for row in rows["tags"]] == edges
    assert rows["most"] == [[src, tag] for src, _, tag in rows["tags"]]
    assert rows["reach"] == [[number + 1] for number in range(EDGES * epoch)]


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    made = Lives(tmp_path / "log")
    yield made
    made.close()


def killed(lives: Lives, kind: str) -> list[int]:
    """Kills a life at each moment of a kind, as many as there are; returns what is left of each.

    Each is followed by one that tells how many epochs it found beyond those that were shown, and
    dies before it shows its own.
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
def test_a_stage_that_is_killed_while_it_answers_gives_one_answer_for_good(lives: Lives) -> None:
    assert killed(lives, "answered") == [0] * 2 * EDGES  # a call and a return for each row


@pytest.mark.fault(1, 39)
def test_a_loop_that_is_killed_in_a_round_leaves_its_epoch_out(lives: Lives) -> None:
    assert killed(lives, "further") == [0] * 2 * EDGES  # a call and a return for each round


@pytest.mark.fault(1, 36, 39)
def test_a_kill_beside_any_write_of_a_commit_leaves_all_of_an_epoch_or_nothing(
    lives: Lives,
) -> None:
    assert set(killed(lives, "disk")) == {0, 1}, "a kill before the write, and one behind it"
