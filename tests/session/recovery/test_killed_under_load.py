"""Kills under load: nothing that returned is lost.

The model-based program is `crash/workload.py`: it checks the recovered contents against `model.py`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from soak import tried

CRASH = Path(__file__).parents[2] / "support" / "crash"
LIVES = tried(8, soak=50)


class Program:
    """The program under load: one server with many lives in one folder."""

    def __init__(self, folder: Path, seed: int, environment: dict[str, str]) -> None:
        self.folder, self.seed = folder, seed
        self.pick = random.Random(seed)
        self.last = 0
        self.exposed: dict[int, str] = {}
        self.kills = 0
        self.process = subprocess.Popen(
            [sys.executable, str(CRASH / "workload.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    @property
    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self.process.stdin
        assert self.process.stdout
        return self.process.stdin, self.process.stdout

    def live(self, mode: str) -> None:
        """Runs one life, which its fuse kills in mode `load`; checks its returned epochs."""
        stdin, stdout = self._pipes
        seen = self.pick.sample(sorted(self.exposed), min(5, len(self.exposed)))
        shown = {e: self.exposed[e] for e in seen}
        # beside a step on the disk within the next epochs, of a checkpoint, or of a merge
        fuse = self.pick.randrange(1, 40), self.pick.randrange(1, 80)
        order = [str(self.folder), self.seed, mode, shown, *fuse]
        stdin.write(json.dumps(order) + "\n")
        stdin.flush()
        for line in stdout:
            word, *rest = line.split(maxsplit=1)
            text = rest[0] if rest else ""
            if word == "verified":
                assert int(text) >= self.last, "an epoch that had returned is lost"
            elif word == "failed":
                pytest.fail(json.loads(text))
            elif word == "ended":
                status = int(text)
                assert status == 0 if mode == "stop" else os.WTERMSIG(status) == signal.SIGKILL
                self.kills += mode == "load"
                return
            elif word == "returned":
                epoch, digest = text.split()
                self.last = int(epoch)
                self.exposed[self.last] = digest
        pytest.fail("the program ended")

    def close(self) -> None:
        """Ends the server; its life ends because its pipe is closed."""
        for pipe in self._pipes:
            pipe.close()
        self.process.wait()


@pytest.fixture
def program(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Program]:
    environment = {**os.environ, "NOSYNC_KEY_FILE": str(tmp_path / "key")}
    program_ = Program(tmp_path / "log", request.param, environment)
    yield program_
    program_.close()


@pytest.mark.fault(1, 6, 39)
@pytest.mark.parametrize("program", [1, 2], indirect=True)
def test_killed_process_loses_no_returned_epoch_and_continues(program: Program) -> None:
    """Every stage equals its model: currently, at old epochs, and after the next updates."""
    modes = ["again", "stop"] * 2
    for life in range(LIVES):
        program.live("load" if life % 3 or not modes else modes.pop())
    program.live("stop")
    assert program.kills >= LIVES // 2
    names = [path.name for path in program.folder.rglob("*")]
    assert any(name.startswith("checkpoint-") for name in names)
    assert any(name.startswith("pack-") for name in names)
    assert any(name.startswith("trace") for name in names)
