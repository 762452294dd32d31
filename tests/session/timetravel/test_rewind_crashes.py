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
    pytest.mark.usefixtures("small"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing happens in other threads."""
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "key"))
    monkeypatch.setattr(Log, "open", partial(Log.open, background=False))
    monkeypatch.setattr(BackgroundWorker, "submit", lambda *_, **__: False)


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Files], Session]:
    """Opens the log of the test on another disk, from whoever had it."""
    return opener(monkeypatch, tmp_path / "log", left=True)


def commit(session: Session) -> None:
    i = session.now + 1
    session.inputs["edges"].insert([(i % 3, i), (i % 3, i + 1)], once=f"load {i}")
    session.commit(label=f"epoch {i}")


def contents(session: Session, at: int | None = None) -> dict[str, list[Any]]:
    return {name: sorted(session[name].rows(at=at)) for name in NAMES}


def prepared(session: Session) -> None:
    edges = session.input("edges", "src long, dst long")
    session.stage("counts", edges.group_by("src").agg(n="count(*)", most="max(dst)"))
    session.stage("pairs", edges.filter("src > 0").distinct())
    for _ in range(4):
        commit(session)
    checkpoint_now(session)
    for _ in range(3):
        commit(session)


def check(
    session: Session, now: int, was: dict[str, list[Any]], then: dict[str, list[Any]], where: Any
) -> bool:
    """Whether the session has gone back by two epochs, if all of it is as if it had, or had not."""
    gone = session.now != now
    assert session.now == (now - 2 if gone else now), where
    assert contents(session) == (then if gone else was), where
    assert session.epochs()[-1].label == f"epoch {session.now}", where
    assert services_of(session).publisher.ledger.labelled(f"epoch {now}") == (None if gone else now)
    assert len(session.branches) == gone, where
    for branch in session.branches.values():
        with nosync_nb.open(branch.path) as left:
            assert (left.now, contents(left)) == (now, was), where
        session.drop_branch(branch.name)
    return gone


@pytest.mark.parametrize("phase", ["before", "inside", "after"])
def test_a_process_that_dies_has_gone_back_or_has_not(
    on: Callable[[Files], Session], tmp_path: Path, phase: Phase
) -> None:
    session = on(HastyFiles())
    prepared(session)
    session.close()
    disk = FaultyFiles()
    session = on(disk)
    before = len(disk.steps)
    session.rewind(to=5)
    steps = len(disk.steps) - before
    assert steps > 20
    session.drop_branch("before-rewind-1")
    session.close()
    went = died = 0
    for at in range(1, steps + 1):
        with on(HastyFiles()) as session:
            while session.now < 7:
                commit(session)
        disk = FaultyFiles(seed=at)
        session = on(disk)
        was, then = contents(session), contents(session, 5)
        disk.crash_in(at, phase)
        try:
            session.rewind(to=5)
        except Crash:
            died += 1
        disk.go_on()
        with on(HastyFiles()) as again:
            gone = check(again, 7, was, then, at)
            went += gone
            commit(again)
            assert contents(again)["edges"][-1] or gone
        assert os.listdir(tmp_path / "log" / "branches") == [], at
        with on(HastyFiles()) as again:
            again.rewind(to=again.now - 1)
            again.drop_branch(next(iter(again.branches)))
    assert 0 < went < died + 1
    assert died > steps // 2  # later ones have fewer files to bring along


def test_a_disk_that_fails_leaves_the_session_where_it_is_or_says_that_it_has_gone_back(
    on: Callable[[Files], Session], tmp_path: Path
) -> None:
    disk = FaultyFiles()
    session = on(disk)
    prepared(session)
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
        check(session, 7, was, then, at)
        assert os.listdir(tmp_path / "log" / "branches") == [], at
    assert 0 < refused <= steps
    while session.now < 7:
        commit(session)
    session.close()
    with on(HastyFiles()) as again:
        assert contents(again) == was


@pytest.mark.parametrize("phase", ["before", "after"])
def test_power_that_fails_leaves_it_before_or_after(
    on: Callable[[Files], Session], tmp_path: Path, phase: Phase
) -> None:
    log, kept = tmp_path / "log", tmp_path / "kept"
    with on(Files()) as session:
        prepared(session)
        was, then = contents(session), contents(session, 5)
    log.rename(kept)
    found: set[int] = set()
    for at in itertools.count(1):
        shutil.copytree(kept, log)
        disk = FaultyFiles(seed=at)
        session = on(disk)
        disk.crash_in(at, phase)
        told = False
        try:
            session.rewind(to=5)
            told = True
        except Crash:
            pass
        disk.lose_power(str(log))
        with on(HastyFiles()) as again:
            found.add(again.now)
            assert again.now == 5 or not told, at
            check(again, 7, was, then, at)
            commit(again)
        shutil.rmtree(log)
        if told:
            break
    assert found == {5, 7}
