"""Crashes during a rewind: all of it, or nothing."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from faults.faults import Crash, FaultyFiles, HastyFiles, Phase, opener
from internals import checkpoint_now, services_of

import nosync_nb
from nosync_nb import DurabilityError, Session
from nosync_nb.files.filesystem import Files
from nosync_nb.session.state.worker import BackgroundWorker
from nosync_nb.store.log import Log

NAMES = ("edges", "counts", "pairs")

pytestmark = [
    pytest.mark.usefixtures("single_threaded"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def single_threaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Runs nothing in other threads."""
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "key"))
    monkeypatch.setattr(Log, "open", partial(Log.open, background=False))
    monkeypatch.setattr(BackgroundWorker, "submit", lambda *_, **__: False)


@pytest.fixture
def open_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Files], Session]:
    """Opens the log of the test on another disk, and takes it over."""
    return opener(monkeypatch, tmp_path / "log", left=True)


def commit(session: Session) -> None:
    i = session.now + 1
    session.inputs["edges"].insert([(i % 3, i), (i % 3, i + 1)], once=f"load {i}")
    session.commit(label=f"epoch {i}")


def contents(session: Session, at: int | None = None) -> dict[str, list[Any]]:
    return {name: sorted(session[name].rows(at=at)) for name in NAMES}


def prepare_log(session: Session) -> None:
    edges = session.input("edges", "src long, dst long")
    session.stage("counts", edges.group_by("src").agg(n="count(*)", most="max(dst)"))
    session.stage("pairs", edges.filter("src > 0").distinct())
    for _ in range(4):
        commit(session)
    checkpoint_now(session)
    for _ in range(3):
        commit(session)


def check_all_or_nothing(
    session: Session, now: int, was: dict[str, list[Any]], then: dict[str, list[Any]], where: Any
) -> bool:
    """Returns True if the session was rewound by two epochs, and checks all or nothing."""
    rewound = session.now != now
    assert session.now == (now - 2 if rewound else now), where
    assert contents(session) == (then if rewound else was), where
    assert session.epochs()[-1].label == f"epoch {session.now}", where
    assert services_of(session).publisher.ledger.labelled(f"epoch {now}") == (
        None if rewound else now
    )
    assert len(session.branches) == rewound, where
    for branch in session.branches.values():
        with nosync_nb.open(branch.path) as left:
            assert (left.now, contents(left)) == (now, was), where
        session.drop_branch(branch.name)
    return rewound


@pytest.mark.parametrize("phase", ["before", "inside", "after"])
def test_crash_in_rewind_leaves_all_or_nothing(
    open_on: Callable[[Files], Session], tmp_path: Path, phase: Phase
) -> None:
    session = open_on(HastyFiles())
    prepare_log(session)
    session.close()
    disk = FaultyFiles()
    session = open_on(disk)
    before = len(disk.steps)
    session.rewind(to=5)
    steps = len(disk.steps) - before
    assert steps > 20
    session.drop_branch("before-rewind-1")
    session.close()
    rewinds = crashes = 0
    for at in range(1, steps + 1):
        with open_on(HastyFiles()) as session:
            while session.now < 7:
                commit(session)
        disk = FaultyFiles(seed=at)
        session = open_on(disk)
        was, then = contents(session), contents(session, 5)
        disk.crash_in(at, phase)
        try:
            session.rewind(to=5)
        except Crash:
            crashes += 1
        disk.go_on()
        with open_on(HastyFiles()) as again:
            rewound = check_all_or_nothing(again, 7, was, then, at)
            rewinds += rewound
            commit(again)
            assert contents(again)["edges"][-1] or rewound
        assert os.listdir(tmp_path / "log" / "branches") == [], at
        with open_on(HastyFiles()) as again:
            again.rewind(to=again.now - 1)
            again.drop_branch(next(iter(again.branches)))
    assert 0 < rewinds < crashes + 1
    assert crashes > steps // 2  # later ones have fewer files to bring along


def test_disk_error_in_rewind_leaves_all_or_nothing_and_reports_it(
    open_on: Callable[[Files], Session], tmp_path: Path
) -> None:
    disk = FaultyFiles()
    session = open_on(disk)
    prepare_log(session)
    was, then = contents(session), contents(session, 5)
    before = len(disk.steps)
    session.rewind(to=5)
    steps = len(disk.steps) - before
    session.drop_branch("before-rewind-1")
    refused = 0
    for at in range(1, steps + 1):
        while session.now < 7:
            commit(session)
        disk.refuse(at, 1, 28)
        try:
            session.rewind(to=5)
        except DurabilityError as error:
            refused += 1
            stands = any("has been rewound" in note for note in error.__notes__)
            assert stands == (session.now == 5), at
        disk.go_on()
        check_all_or_nothing(session, 7, was, then, at)
        assert os.listdir(tmp_path / "log" / "branches") == [], at
    assert 0 < refused <= steps
    while session.now < 7:
        commit(session)
    session.close()
    with open_on(HastyFiles()) as again:
        assert contents(again) == was


@pytest.mark.parametrize("phase", ["before", "after"])
def test_power_loss_in_rewind_leaves_all_or_nothing(
    open_on: Callable[[Files], Session], tmp_path: Path, phase: Phase
) -> None:
    log, saved = tmp_path / "log", tmp_path / "kept"
    with open_on(Files()) as session:
        prepare_log(session)
        was, then = contents(session), contents(session, 5)
    log.rename(saved)
    found: set[int] = set()
    for at in itertools.count(1):
        shutil.copytree(saved, log)
        disk = FaultyFiles(seed=at)
        session = open_on(disk)
        disk.crash_in(at, phase)
        returned = False
        try:
            session.rewind(to=5)
            returned = True
        except Crash:
            pass
        disk.lose_power(str(log))
        with open_on(HastyFiles()) as again:
            found.add(again.now)
            assert again.now == 5 or not returned, at
            check_all_or_nothing(again, 7, was, then, at)
            commit(again)
        shutil.rmtree(log)
        if returned:
            break
    assert found == {5, 7}
