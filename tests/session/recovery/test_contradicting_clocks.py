"""Contradicting provenance: the stage is named, and recomputed or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checks.clocks import clocks_in_entries
from internals import checkpoint_now, services_of, settle_background

import nosync_nb
from nosync_nb import Session
from nosync_nb.collections.functions import signing
from nosync_nb.errors import TrustError
from nosync_nb.session.backfill.execute import BackfillExecutor
from nosync_nb.session.backfill.plan import CURRENT, BackfillPlan
from nosync_nb.store.log import batch_codec
from nosync_nb.store.provenance import (
    LABEL,
    LABEL_BYTES,
    SIZE_BYTES,
    ClockWriter,
)
from nosync_nb.store.records.payloads import CLOCKS, PayloadEntry
from nosync_nb.store.verification.verify import verify

Change = Callable[[list[PayloadEntry], bytearray], None]


def source_of(row: Any) -> tuple[int]:
    return (row.src,)


def source_of_narrow(row: Any) -> tuple[int]:
    if row.src > 50:
        raise ValueError("too wide")
    return (row.src,)


def prepare_log(path: Path) -> Session:
    session = nosync_nb.open(path)
    edges = session.input("edges", "src int, dst int")
    nodes = session.input("nodes", "node int, label int")
    joined = edges.join(nodes, on={"dst": "node"})
    session.define(
        {
            "labels": joined.group_by("label").agg(n="count(*)"),
            "sources": edges.group_by("src").agg(n="count(*)"),
            "names": nodes.select("label").distinct(),
        }
    )
    session.define({"large": session["labels"].filter("n > 1")})
    session.stage("drawn", edges.map(source_of, "src int"), nondeterministic=True)
    session.stage("narrow", edges.map(source_of_narrow, "src int"))
    session.define({"few": session["narrow"].filter("src > 1")})
    nodes.insert([(1, 7), (2, 8), (3, 7)])
    for epoch in range(1, 7):
        edges.insert([(epoch, 1), (epoch % 2, 2)])
        session.commit()
    return session


@pytest.fixture
def write_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Session]]:
    """Writes a log whose epoch 4 is changed by a function, and opens it again."""
    sessions: list[Session] = []

    def write(change: Change) -> Session:
        stamp = ClockWriter.stamped

        def stamped(
            clocks: ClockWriter, graph: Any, made: Any, **options: Any
        ) -> list[PayloadEntry]:
            stamps = stamp(clocks, graph, made, **options)
            if made[-1][0] != 4 or options:
                return stamps
            data = bytearray(stamps[0].data)
            change(made[-1][1], data)
            return [PayloadEntry(0, CLOCKS, bytes(data))]

        with monkeypatch.context() as patch:
            patch.setattr(ClockWriter, "stamped", stamped)
            session = prepare_log(tmp_path / "log")
            session.close()
        again = nosync_nb.open(tmp_path / "log")
        sessions.append(again)
        return again

    yield write
    for session in sessions:
        session.close()


def flip_digest(stage_inputs: int, place: int) -> Change:
    """Changes one digest in the clock of the first stage with so many inputs.

    Args:
        place: index of the label; 0 is the label of the batch itself.
    """

    def change(_entries: list[PayloadEntry], data: bytearray) -> None:
        at = 0
        for clock in clocks_in_entries([PayloadEntry(0, CLOCKS, bytes(data))]):
            if len(clock.inputs) == stage_inputs:
                start = at if place == 0 else at + SIZE_BYTES + (place - 1) * LABEL_BYTES
                data[start + LABEL_BYTES - 1] ^= 1
                return
            at += SIZE_BYTES + LABEL_BYTES * len(clock.inputs)
        raise AssertionError("no such stage has changed")

    return change


def change_rows(entries: list[PayloadEntry], data: bytearray) -> None:
    """Replaces the rows of the input in the log after the stages have read them."""
    first = LABEL.unpack_from(data)[0]  # inputs come first
    (at,) = [i for i, entry in enumerate(entries) if entry.number == first]
    columns, diff = batch_codec.decode_batch(entries[at].data, ["int", "int"])
    entries[at] = PayloadEntry(
        first,
        entries[at].kind,
        batch_codec.encode_batch([columns[0] + 50, columns[1]], ["int", "int"], diff),
    )


def check_from_scratch(session: Session) -> None:
    """Asserts that every stage equals an evaluation from scratch at each epoch."""
    labels = dict(session["nodes"].rows(at=session.now))
    for at in range(1, session.now + 1):
        edges = session["edges"].rows(at=at)
        found: dict[int, int] = {}
        for edge in edges:
            if edge.dst in labels:
                found[labels[edge.dst]] = found.get(labels[edge.dst], 0) + 1
        assert {row.label: row.n for row in session["labels"].rows(at=at)} == found
        assert dict(session["large"].rows(at=at)) == {k: n for k, n in found.items() if n > 1}
        sources = [edge.src for edge in edges]
        assert dict(session["sources"].rows(at=at)) == {s: sources.count(s) for s in sources}


def logs(session: Session) -> dict[str, int]:
    return {name: log for log, name in services_of(session).publisher.logs.items()}


def test_stage_with_a_contradicting_clock_is_recomputed_from_there(
    write_log: Callable[..., Session],
) -> None:
    session = write_log(flip_digest(2, 1))
    stages, reasons = session.recovery.stages, session.recovery.reasons
    assert {name for name, how in stages.items() if how == "extend"} == {"labels", "large"}
    assert {name for name, how in stages.items() if how == "read"} == {
        "sources",
        "names",
        "drawn",
        "narrow",
        "few",
    }
    assert "at epoch 4 its clock names other rows of 'edges' than the log has" in reasons["labels"]
    assert "reads 'labels', which is recomputed" in reasons["large"]
    assert session.recovery.recomputed > 0
    check_from_scratch(session)
    session.inputs["edges"].insert([(9, 3)])
    session.commit()
    check_from_scratch(session)


def test_recomputed_stage_leaves_others_and_is_recomputed_once(
    write_log: Callable[..., Session], tmp_path: Path
) -> None:
    session = write_log(flip_digest(2, 0))
    assert session.recovery.stages["labels"] == "extend"
    assert "other rows of itself" in session.recovery.reasons["labels"]
    numbers = logs(session)
    settle_background(session)
    session.close()
    with nosync_nb.open(tmp_path / "log") as again:
        assert logs(again) == numbers
        assert set(again.recovery.stages.values()) == {"read"}
        check_from_scratch(again)


def test_stages_computed_from_other_rows_are_recomputed(write_log: Callable[..., Session]) -> None:
    session = write_log(change_rows)
    assert any(row.src > 50 for row in session["edges"].rows())
    stages = session.recovery.stages
    assert stages["labels"] == stages["sources"] == stages["large"] == "extend"
    assert stages["names"] == "read"
    check_from_scratch(session)


def test_nondeterministic_stage_with_other_rows_is_stale_until_redefined(
    write_log: Callable[..., Session], tmp_path: Path
) -> None:
    session = write_log(change_rows)
    why = "other rows of 'edges' than the log has; its memoised results cannot be recomputed"
    assert why in session.stale["drawn"]
    session.inputs["edges"].insert([(8, 8)])
    session.commit()
    checkpoint_now(session)
    session.close()
    with nosync_nb.open(tmp_path / "log") as again:
        assert "drawn" in again.stale
        assert set(again.recovery.stages.values()) == {"read", "stale"}
        edges = again["edges"]
        again.define({"drawn": edges.map(source_of, "src int")}, nondeterministic=True)
        assert [row.src for row in again["drawn"].rows()] == sorted(row.src for row in edges.rows())
        checkpoint_now(again)
    with nosync_nb.open(tmp_path / "log") as last:
        assert "drawn" not in last.stale


def test_refused_stage_stays_stale_over_several_openings(
    write_log: Callable[..., Session], tmp_path: Path
) -> None:
    session = write_log(change_rows)
    assert "too wide" in session.stale["narrow"]
    session.close()
    for turn in range(3):
        with nosync_nb.open(tmp_path / "log") as again:
            again.inputs["edges"].insert([(20 + turn, 1)])
            again.commit()
            assert again.stale["narrow"] == session.stale["narrow"]
            assert again.stale["drawn"] == session.stale["drawn"]
            assert again.recovery.stages["narrow"] == again.recovery.stages["few"] == "stale"
            settle_background(again)
            checkpoint_now(again)
    with nosync_nb.open(tmp_path / "log") as again:
        edges = again["edges"]
        again.stage("narrow", edges.map(source_of, "src int"))
        sources = sorted(row.src for row in edges.rows())
        assert [row.src for row in again["narrow"].rows()] == sources
        assert [row.src for row in again["few"].rows()] == [s for s in sources if s > 1]


def test_stopped_stage_never_continues_from_contradicting_rows(
    write_log: Callable[..., Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its function cannot be loaded by the opening that finds the damage, but by the next one."""
    restore = signing.load_signed_function

    def unseal(sealed: bytes, **which: Any) -> Any:
        function = restore(sealed, **which)
        if getattr(function, "__name__", "") == "narrow":
            raise TrustError("not today")
        return function

    with monkeypatch.context() as patch:
        patch.setattr(signing, "load_signed_function", unseal)
        session = write_log(change_rows)
        assert "other rows of 'edges' than the log has" in session.stale["narrow"]
        session.inputs["edges"].insert([(20, 1)])
        session.commit()
        session.close()
    with nosync_nb.open(tmp_path / "log") as again:
        assert again.stale["narrow"] == session.stale["narrow"]


def test_readers_of_a_recomputed_stage_are_recomputed_after_a_crash(
    write_log: Callable[..., Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The crash comes after `labels` is recomputed and before its reader `large` is."""
    install = BackfillExecutor.install
    installed: list[str] = []

    def stopped(
        executor: BackfillExecutor, decision: Any, plan: BackfillPlan = CURRENT, **options: Any
    ) -> Any:
        if "large" in plan.names:
            raise KeyboardInterrupt
        installed.extend(plan.names)
        return install(executor, decision, plan, **options)

    with monkeypatch.context() as patch:
        patch.setattr(BackfillExecutor, "install", stopped)
        with pytest.raises(KeyboardInterrupt):
            write_log(flip_digest(2, 1))
    assert "labels" in installed
    with nosync_nb.open(tmp_path / "log") as again:
        assert again.recovery.stages["large"] == "extend"
        assert "it reads 'labels', which is recomputed" in again.recovery.reasons["large"]
        check_from_scratch(again)
    with nosync_nb.open(tmp_path / "log") as again:
        assert set(again.recovery.stages.values()) == {"read"}


def test_verify_names_the_stage_until_it_is_recomputed(
    write_log: Callable[..., Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[str | None, range | None, str]] = []
    reopen = nosync_nb.open

    def verified(path: Path) -> Session:
        damage = verify(str(path)).damage if path.exists() else ()
        found.extend((each.stage, each.epochs, each.what) for each in damage)
        return reopen(path)

    monkeypatch.setattr(nosync_nb, "open", verified)
    session = write_log(flip_digest(2, 1))
    ((stage, epochs, what),) = found
    assert (stage, epochs) == ("labels", range(4, 5))
    assert "its clock names other rows of 'edges' than the log has" in what
    settle_background(session)
    checkpoint_now(session)
    assert session.verify().whole
