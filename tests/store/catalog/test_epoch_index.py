"""The index of epochs: an epoch is recorded completely or not at all, and once."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from datetime import UTC, datetime
from threading import Barrier, Thread
from typing import Any

import pytest
from faults.every_opcode import Struck, count, strike, traced

from nosync_nb.errors import CorruptLogError, TimeError
from nosync_nb.store.catalog.epoch_index import (
    EpochIndex,
    EpochNumbering,
    EpochRecord,
    RewindMark,
    last_epoch_note,
    lost_epochs,
)

FIRST = EpochRecord(1, 10.0, 5, 4, "morning", {'["flights", 1]': "digest of 1"})
SECOND = EpochRecord(2, 20.0, 7, 5, "noon", {'["flights", 2]': "digest of 2"})
THIRD = EpochRecord(3, 30.0, 8, 7, "evening", {'["planes", 3]': "digest of 3"})


def index_of_two_epochs() -> EpochIndex:
    ledger = EpochIndex()
    ledger.record(FIRST)
    ledger.record(SECOND)
    return ledger


def answers_of(ledger: EpochIndex) -> Any:
    """The answers of an index to all queries."""
    return (
        ledger.saved(),
        [ledger.labelled(name) for name in ("morning", "noon", "evening")],
        [(ledger.loaded(mark), ledger.load(mark)) for mark in SECOND.once | THIRD.once],
        [ledger.has_loads(f'["{name}",') for name in ("flights", "planes", "flight")],
        [ledger.durable(frames) for frames in range(4, 9)],
        list(ledger.epochs([range(3)])),
        ledger.not_before(0.0),
    )


def test_recording_an_epoch_twice_changes_nothing() -> None:
    ledger = index_of_two_epochs()
    before = answers_of(ledger)
    for again in (FIRST, SECOND, SECOND._replace(label="late", durable=9), FIRST):
        ledger.record(again)
        assert answers_of(ledger) == before
    ledger.record(THIRD)
    ledger.record(THIRD)
    assert answers_of(ledger) != before
    assert ledger.epochs([range(4)])[3] == (3, "evening", datetime.fromtimestamp(30, UTC))


def test_epoch_out_of_order_is_not_recorded() -> None:
    ledger = index_of_two_epochs()
    with pytest.raises(AssertionError, match="out of turn"):
        ledger.record(THIRD._replace(epoch=4))
    with pytest.raises(AssertionError, match="out of turn"):
        ledger.record(THIRD._replace(epoch=4), THIRD._replace(epoch=4))
    assert answers_of(ledger) == answers_of(index_of_two_epochs())


ACTS: list[Callable[[EpochIndex], Any]] = [
    lambda ledger: ledger.record(THIRD),
    lambda ledger: (ledger.record(THIRD), ledger.not_before(0.0)),
    lambda ledger: (ledger.record(THIRD), ledger.saved()),
]


@pytest.mark.parametrize("act", ACTS, ids=["record", "and enter", "and save"])
def test_record_is_atomic_at_any_exception(
    act: Callable[[EpochIndex], Any],
) -> None:
    before, counted, after = (
        answers_of(index_of_two_epochs()),
        index_of_two_epochs(),
        index_of_two_epochs(),
    )
    opcodes, _ = count(lambda: act(counted), lambda: None)
    assert opcodes > 20
    act(after)
    seen = []
    for at in range(1, opcodes + 1):
        ledger = index_of_two_epochs()
        assert strike(lambda ledger=ledger: act(ledger), at, Struck()) is not None
        found = answers_of(ledger)
        assert found in (before, answers_of(after))
        seen.append(found == before)
        ledger.record(THIRD)
        assert answers_of(ledger) == answers_of(after)
    assert seen == sorted(seen, reverse=True)
    assert {*seen} == {True, False}


BACK = RewindMark(1, 1, 9)


def test_rewind_drops_later_epochs_and_numbering_continues() -> None:
    ledger = index_of_two_epochs()
    epochs = ledger.epochs([range(3)])
    ledger.rewind(BACK)
    ledger.rewind(BACK)
    assert ledger.incarnation == 1
    assert [ledger.labelled(name) for name in ("morning", "noon")] == [1, None]
    assert [ledger.loaded(mark) for mark in FIRST.once | SECOND.once] == [True, False]
    assert [ledger.durable(frames) for frames in (5, 9, 10)] == [1, 1, 1]
    assert epochs[2] == (2, "noon", datetime.fromtimestamp(20, UTC))
    ledger.record(SECOND._replace(seq=10, durable=9, label="again"))
    assert [ledger.durable(frames) for frames in (5, 9, 10)] == [1, 1, 2]
    assert ledger.labelled("again") == 2
    meta, times = ledger.saved()
    assert EpochIndex.restored(2, times, meta).saved() == (meta, times)


def test_last_contained_epoch_of_copy_without_rewind() -> None:
    ledger = index_of_two_epochs()
    ledger.rewind(BACK)
    ledger.record(SECOND._replace(seq=10, durable=9))
    assert [
        ledger.last_contained_epoch(7, 2),
        ledger.last_contained_epoch(9, 1),
        ledger.last_contained_epoch(10, 2),
    ] == [1, 1, 2]
    assert ledger.last_contained_epoch(3, 0) == 0


def test_rewind_is_atomic_at_any_exception() -> None:
    def act(ledger: EpochIndex) -> None:
        ledger.rewind(BACK)
        ledger.saved()

    before, after = answers_of(index_of_two_epochs()), index_of_two_epochs()
    opcodes, _ = count(lambda: act(after), lambda: None)
    for at in range(1, opcodes + 1):
        ledger = index_of_two_epochs()
        assert strike(lambda ledger=ledger: act(ledger), at, Struck()) is not None
        assert answers_of(ledger) in (before, answers_of(after))
        ledger.rewind(BACK)
        assert answers_of(ledger) == answers_of(after)


def test_note_reports_lost_epochs_of_its_incarnation_only() -> None:
    assert lost_epochs(last_epoch_note(0, 7), 0, 5) == range(6, 8)
    assert lost_epochs(last_epoch_note(2, 7), 2, 7) == range(8, 8)
    assert not lost_epochs(last_epoch_note(0, 7), 1, 3)
    assert not lost_epochs(last_epoch_note(1, 3), 0, 7)
    assert not lost_epochs(0, 0, 7)


def test_queries_during_record_see_state_before_or_after() -> None:
    before, after, answers = answers_of(index_of_two_epochs()), index_of_two_epochs(), []
    after.record(THIRD)

    def act() -> None:
        ledger = index_of_two_epochs()
        with traced(lambda _: answers.append(answers_of(ledger))):
            ledger.record(THIRD)
            ledger.saved()

    thread = Thread(target=act, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert len(answers) > 20
    assert all(answer in (before, answers_of(after)) for answer in answers)


def test_concurrent_threads_record_each_epoch_once() -> None:
    ledger, together = EpochIndex(), Barrier(4)
    records = [
        EpochRecord(n, float(n), n, 0, f"label {n}", {f"load {n}": ""}) for n in range(1, 200)
    ]

    def record() -> None:
        together.wait(60)
        for each in records:
            ledger.record(each)
            assert ledger.labelled(f"label {each.epoch}") == each.epoch

    threads = [Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    meta, times = ledger.saved()
    assert array("d", times).tolist() == [float(n) for n in range(1, 200)]
    assert list(meta["labels"].values()) == list(range(1, 200))


def test_checkpoint_restores_index_without_frames() -> None:
    ledger = index_of_two_epochs()
    meta, times = ledger.saved()
    again = EpochIndex.restored(2, times, meta)
    assert again.saved() == (meta, times)
    assert list(again.epochs([range(3)])) == list(ledger.epochs([range(3)]))
    assert again.durable(0) == 2
    again.record(THIRD)
    assert again.resolve("evening", 3) == 3


@pytest.mark.parametrize("epoch", [0, 1, 3])
def test_checkpoint_with_wrong_number_of_times_is_damaged(epoch: int) -> None:
    meta, times = index_of_two_epochs().saved()
    with pytest.raises(CorruptLogError, match=r"2 times for|a label|the key of a load"):
        EpochIndex.restored(epoch, times, meta)


def test_moment_resolves_number_label_or_time() -> None:
    ledger = index_of_two_epochs()
    ledger.record(THIRD)
    assert [ledger.resolve(at, 3) for at in (0, 2, -1, "noon")] == [0, 2, 2, 2]
    moments = [datetime.fromtimestamp(seconds, UTC) for seconds in (9, 10, 29, 99)]
    assert [ledger.resolve(at, 3) for at in moments] == [0, 1, 2, 3]
    assert ledger.resolve(moments[-1], 2) == 2
    with pytest.raises(TimeError, match="no epoch is labelled 'evening'") as late:
        ledger.resolve("evening", 2)
    assert late.value.__notes__ == ["Hint: labels: morning, noon"]
    for at, why in ((4, "epoch 4 is not readable"), (True, "True is not"), (None, "None is not")):
        with pytest.raises(TimeError, match=why):
            ledger.resolve(at, 3)


def test_epoch_number_is_outdated_after_rewind_before_it() -> None:
    line = EpochNumbering(5, (9, 4, 7))
    assert not line.has_left(1000, 5)
    assert [line.has_left(7, i) for i in (4, 3)] == [False, True]
    assert line.has_left(8, 4)
    assert not line.has_left(4, 2)
    assert line.has_left(0, 1), "the extent of that rewind is unknown"
