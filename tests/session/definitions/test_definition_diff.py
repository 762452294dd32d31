"""Cases of a definition: new, unchanged, changed, followed, stale."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from checks.sessions import values
from internals import catalog_of, other_versions, snapshot_of

from nosync_nb import Collection, CorruptLogError, Session, StageError
from nosync_nb.collections.definition import reference_to
from nosync_nb.dataflow.stage import FrozenState, Stage, StageOptions, StaleState
from nosync_nb.rows import Schema
from nosync_nb.session.backfill.definition_diff import stage_transition
from nosync_nb.store.catalog.validation import check_catalog
from nosync_nb.store.records import json_text, payloads

pytestmark = pytest.mark.usefixtures("own_key")

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
def test_transition_of_a_computable_stage(
    before: Stage | None, equal: bool, missing: str | None, now: int, status: str
) -> None:
    assert stage_transition(before, equal=equal, missing=missing, now=now) == status


def test_stage_that_stops_again_is_stale_since_its_first_stop() -> None:
    again = STOPPED.as_stale("it reads 'numbers', which is stale", 9)
    assert again.life == StaleState("it reads 'numbers', which is stale", 4)
    assert (again.last(9), LIVING.last(9)) == (4, 9)
    assert again.resumed() == LIVING


def test_stage_is_immutable() -> None:
    for value, name, other in ((LIVING, "life", STOPPED.life), (LIVING.options, "on", "spark")):
        with pytest.raises(FrozenInstanceError):
            setattr(value, name, other)


def test_renamed_input_keeps_its_identity() -> None:
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
def test_stage_round_trips_through_json(stage: Stage) -> None:
    assert Stage.from_json(stage.to_json(), stage.definition) == stage


# -- versions and stopped stages of a log ----------------------------------------------------------


def define_two_versions(session: Session) -> None:
    """Defines version 2 of a stage `big`, so that `big@1` exists."""
    numbers = session.input("numbers", "x int")
    numbers.insert([(1,), (2,), (3,)])
    session.commit()
    session.stage("big", numbers.filter("x > 0"))
    session.stage("big", numbers.filter("x > 1"))


def test_earlier_version_is_not_a_later_equal_definition(opened: Callable[..., Session]) -> None:
    session = opened()
    define_two_versions(session)
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


def test_log_with_a_stage_over_an_earlier_version_opens(opened: Callable[..., Session]) -> None:
    session = opened()
    define_two_versions(session)
    session.stage("odd", session["big@1"].filter("x % 2 = 1"))
    session.close()
    session = opened()
    assert values(session["odd"]) == [1, 3]
    (report,) = session.define({"odd": session["big@1"].filter("x % 2 = 1")})
    assert report.status == "unchanged"


def test_catalog_with_an_invalid_version_name_is_refused(opened: Callable[..., Session]) -> None:
    session = opened()
    define_two_versions(session)
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


def test_reader_of_an_earlier_version_is_dropped_with_it(opened: Callable[..., Session]) -> None:
    session = opened()
    define_two_versions(session)
    session.stage("odd", session["big@1"].filter("x % 2 = 1"))
    with pytest.raises(StageError, match="'big' is read by odd"):
        session.drop("big")
    session.drop("big", cascade=True)
    assert list(catalog_of(session)) == ["numbers"]


def filter_with_lock(big: Collection) -> Collection:
    """A filter whose function cannot be stored."""
    lock = threading.Lock()

    def positive(row: Any) -> bool:
        with lock:
            return bool(row.x > 0)

    return big.filter(positive)


@pytest.fixture
def session_with_lost_function(opened: Callable[..., Session]) -> Session:
    """A session with a stage whose function could not be loaded."""
    session = opened()
    numbers = session.input("numbers", "x int")
    session.stage("big", numbers.filter("x > 0"))
    with pytest.warns(UserWarning, match="cannot be stored"):
        session.stage("guarded", filter_with_lock(session["big"]))
    session.stage("counts", session["guarded"].group_by("x").agg(n="count(*)"))
    for x in (1, 2):
        numbers.insert([(x,)])
        session.commit()
    session.close()
    session = opened()
    assert set(session.stale) == {"guarded", "counts"}
    return session


def test_stale_stage_keeps_its_rows_when_its_input_is_edited(
    session_with_lost_function: Session, opened: Callable[..., Session]
) -> None:
    session = session_with_lost_function
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
def test_state_of_a_stale_stage_is_dropped_once_its_input_was_edited(
    opened: Callable[..., Session], edit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the edit is undone, its state would lack the epochs in between."""

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
