"""Cases of a definition: new, unchanged, changed, followed, stale."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
from internals import catalog_of, other_versions, snapshot_of

import nosync_nb
from nosync_nb import Collection, CorruptLogError, Session, StageError
from nosync_nb.collections.definition import reference_to
from nosync_nb.dataflow.stage import FrozenState, Stage, StageOptions, StaleState
from nosync_nb.rows import Schema
from nosync_nb.session.backfill.definition_diff import stage_transition
from nosync_nb.store.catalog.validation import check_catalog
from nosync_nb.store.records import json_text, payloads

NUMBERS = Schema.parse("x int")
LIVING = Stage("big", NUMBERS, reference_to("numbers", NUMBERS), options=StageOptions("local"))
STOPPED = LIVING.as_stale("a function was not restored", 4)


@pytest.mark.parametrize(
    ("before", "equal", "missing", "now", "status"),
    [
        (None, False, None, 4, "new"),
        (LIVING, True, None, 4, "unchanged"),
        (LIVING, False, None, 4, "changed"),
        (STOPPED, True, None, 4, "resumed"),
        (STOPPED, True, None, 7, "extended"),
        (STOPPED, True, "'numbers' is not what it was", 7, "changed"),
        (STOPPED, True, "its state was not stored", 4, "changed"),
        (STOPPED, False, None, 7, "changed"),
    ],
)
def test_what_becomes_of_a_stage_that_can_be_computed(
    before: Stage | None, equal: bool, missing: str | None, now: int, status: str
) -> None:
    assert stage_transition(before, equal=equal, missing=missing, now=now) == status


def test_a_stage_that_stops_again_is_stale_since_it_stopped_first() -> None:
    again = STOPPED.as_stale("it reads 'numbers', which is stale", 9)
    assert again.life == StaleState("it reads 'numbers', which is stale", 4)
    assert (again.last(9), LIVING.last(9)) == (4, 9)
    assert again.resumed() == LIVING


def test_nothing_of_a_stage_is_edited() -> None:
    for value, name, other in ((LIVING, "life", STOPPED.life), (LIVING.options, "on", "spark")):
        with pytest.raises(FrozenInstanceError):
            setattr(value, name, other)


def test_an_input_stays_itself_under_another_name() -> None:
    numbers = Stage("numbers", NUMBERS).identified({})
    renamed = replace(numbers, name="digits")
    assert (renamed.uid, renamed.current_fingerprint({})) == ("numbers", numbers.fingerprint)


@pytest.mark.parametrize(
    "stage",
    [
        LIVING,
        STOPPED,
        replace(LIVING, gaps=((1, 3), (5, 6)), signer="another", uid="first"),
        LIVING.as_earlier_version(FrozenState(4, 2, 3, (0,))),
    ],
)
def test_a_stage_comes_back_from_json_as_it_was(stage: Stage) -> None:
    assert Stage.from_json(stage.to_json(), stage.definition) == stage


# -- versions and stopped stages of a log ----------------------------------------------------------


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Session]]:
    """Opens the log of the test; every session is closed at the end."""
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "key"))
    sessions: list[Session] = []

    def open_() -> Session:
        sessions.append(nosync_nb.open(tmp_path / "log"))
        return sessions[-1]

    yield open_
    for session in reversed(sessions):
        session.close()


def values(collection: Any, at: Any = None) -> list[Any]:
    return [tuple(row) if len(row) > 1 else row[0] for row in collection.rows(at)]


def edited(session: Session) -> None:
    """A stage `big` of version 2, so that `big@1` is there."""
    numbers = session.input("numbers", "x int")
    numbers.insert([(1,), (2,), (3,)])
    session.commit()
    session.stage("big", numbers.filter("x > 0"))
    session.stage("big", numbers.filter("x > 1"))


def test_a_version_is_not_the_stage_that_means_again_what_it_meant(
    opened: Callable[[], Session],
) -> None:
    session = opened()
    edited(session)
    session.stage("odd", session["big@1"].filter("x % 2 = 1"))
    session.stage("big", session["numbers"].filter("x > 0"))
    (report,) = session.define({"odd": session["big"].filter("x % 2 = 1")})
    assert report.status == "changed"
    session["numbers"].insert([(5,)])
    session.commit()
    assert values(session["odd"]) == [1, 3, 5]
    (report,) = session.define({"odd": session["big@1"].filter("x % 2 = 1")})
    assert report.status == "changed"
    assert values(session["odd"]) == [1, 3]


def test_a_log_of_a_stage_over_a_version_opens(opened: Callable[[], Session]) -> None:
    session = opened()
    edited(session)
    session.stage("odd", session["big@1"].filter("x % 2 = 1"))
    session.close()
    session = opened()
    assert values(session["odd"]) == [1, 3]
    (report,) = session.define({"odd": session["big@1"].filter("x % 2 = 1")})
    assert report.status == "unchanged"


def test_a_version_that_is_read_is_in_the_catalog(opened: Callable[[], Session]) -> None:
    session = opened()
    edited(session)
    session.stage("odd", session["big@1"].filter("x % 2 = 1"))
    snapshot = snapshot_of(session)
    written = payloads.catalog_json(
        snapshot.catalog, snapshot.graph, payloads.CatalogPieces(b"log", lambda *_: "")
    )
    catalog = json.loads(json_text.header_text({"catalog": written}))["catalog"]
    check_catalog(catalog, session.now)
    (stage,) = (s for s in catalog["stages"] if s["name"] == "odd")
    (part,) = (p for p in stage["definition"] if p["op"] == "ref")
    for name in ("big@7", "big@", "@1", "big@1@1", "numbers@1"):
        part["params"]["name"] = name
        with pytest.raises(CorruptLogError, match="is not a valid name of a stage"):
            check_catalog(catalog, session.now)


def test_what_reads_a_version_is_dropped_with_it(opened: Callable[[], Session]) -> None:
    session = opened()
    edited(session)
    session.stage("odd", session["big@1"].filter("x % 2 = 1"))
    with pytest.raises(StageError, match="'big' is read by odd"):
        session.drop("big")
    session.drop("big", cascade=True)
    assert list(catalog_of(session)) == ["numbers"]


def guarded(big: Collection) -> Collection:
    """A filter whose function cannot be stored."""
    lock = threading.Lock()

    def positive(row: Any) -> bool:
        with lock:
            return bool(row.x > 0)

    return big.filter(positive)


@pytest.fixture
def lost(opened: Callable[[], Session]) -> Session:
    """A session of which the function of a stage was not restored."""
    session = opened()
    numbers = session.input("numbers", "x int")
    session.stage("big", numbers.filter("x > 0"))
    with pytest.warns(UserWarning, match="cannot be stored"):
        session.stage("guarded", guarded(session["big"]))
    session.stage("counts", session["guarded"].group_by("x").agg(n="count(*)"))
    for x in (1, 2):
        numbers.insert([(x,)])
        session.commit()
    session.close()
    session = opened()
    assert set(session.stale) == {"guarded", "counts"}
    return session


def test_a_stale_stage_keeps_its_rows_when_what_it_reads_is_edited(
    lost: Session, opened: Callable[[], Session]
) -> None:
    session = lost
    for x, predicate in enumerate(("x > 1", "x > 0"), 3):
        session.define({"big": session["numbers"].filter(predicate)})
        session["numbers"].insert([(x,)])
        session.commit()
        for _ in range(2):
            assert set(session.stale) == {"guarded", "counts"}
            assert [values(session["guarded"], at) for at in (1, 2)] == [[1], [1, 2]]
            assert values(session["counts"], 2) == [(1, 1), (2, 1)]
            session.close()
            session = opened()
    with pytest.raises(StageError, match="'big' is read by guarded, counts"):
        session.drop("big")


@pytest.mark.parametrize("edit", ["x > 1", ""])
def test_what_a_stale_stage_remembered_is_gone_once_what_it_reads_was_another(
    opened: Callable[[], Session], edit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Edited back, it would go on from counts that nobody has."""

    def define(session: Session) -> str:
        groups = session["big"].filter(lambda row: row.x > 0).group_by("x")
        counts = groups.reduce(lambda key, rows: [(len(rows),)], "n int")
        return session.define({"counts": counts})[0].status

    session = opened()
    numbers = session.input("numbers", "x int, y int")
    session.stage("big", numbers.filter("x > 0"))
    define(session)
    numbers.insert([(1, 1), (1, 2), (2, 1)])
    session.commit()
    session.close()
    other_versions(monkeypatch, python="4.0")
    session = opened()
    numbers = session["numbers"]
    session.define({"big": numbers.filter(edit) if edit else numbers.select("y")})
    session.define({"big": numbers.filter("x > 0")})
    session["numbers"].insert([(1, 3)])
    session.commit()
    assert values(session["counts"], 1) == [(1, 2), (2, 1)]
    assert define(session) == "changed"
    assert values(session["counts"]) == [(1, 3), (2, 1)]
