"""Provenance checks: a contradicting clock is found in every frame."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from checks.clocks import BatchLabel, clocks_in_entries
from checks.damaged_bytes import flipped

import nosync_nb
from nosync_nb.errors import CorruptLogError
from nosync_nb.store import provenance
from nosync_nb.store.provenance import (
    LABEL_BYTES,
    NO_DIGEST,
    ClockContradiction,
    LabelHistory,
)
from nosync_nb.store.records import payloads
from nosync_nb.store.records.payloads import (
    CLOCKS,
    DEFINITION,
    EPOCH,
    FILES,
    PAST,
    Payload,
    PayloadEntry,
)
from nosync_nb.store.store import Store

Frame = tuple[int, Payload]


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> list[Frame]:
    """The frames of a log with stages that read each other, one of them defined late."""
    path = tmp_path_factory.mktemp("causes") / "log"
    with nosync_nb.open(path) as session:
        edges, other = session.input("edges", "src int, dst int"), session.input("other", "x int")
        session.stage("large", edges.filter("dst > 3"))
        session.stage("counts", session["large"].group_by("src").agg(n="count(*)"))
        for epoch in range(12):
            edges.insert([(epoch % 3, epoch)])
            if epoch % 4 == 1:
                other.insert([(epoch,)])
            if epoch == 6:
                session.stage("late", session["counts"].join(other.select("x AS src"), on="src"))
            session.commit()
    store = Store.open(str(path), mode="r")
    try:
        return [(kind, payload) for _, kind, payload in store.tail]
    finally:
        store.close()


def contradictions_by_definition(frames: Sequence[Frame]) -> list[ClockContradiction]:
    """The contradictions by definition, for frames of epochs and of definitions without replay."""
    last: dict[int, BatchLabel] = {}
    wrong = []
    for kind, payload in frames:
        every = list(payload.entries)
        for each in payload.entries:
            every += payloads.decode_payload(each.data).entries if each.kind == PAST else ()
        batches = {each.number: each.data for each in every if each.kind <= FILES}
        epoch = 0 if kind == DEFINITION else payload.epoch
        stated = clocks_in_entries(payload.entries)
        for own, _ in stated:
            there = provenance.batch_digest(batches[own.log]) if own.log in batches else NO_DIGEST
            last[own.log] = own._replace(digest=there)
            wrong += [ClockContradiction(own.log, epoch, own.log)] * (there != own.digest)
        for own, inputs in stated:
            for label in inputs:
                known = last.get(label.log, BatchLabel(label.log, 0, 0, NO_DIGEST))
                wrong += [ClockContradiction(own.log, epoch, label.log)] * (known != label)
        if kind == DEFINITION:
            logs = {n["log"] for n in payload.meta["catalog"]["nodes"] if n["name"] is not None}
            last = {log: label for log, label in last.items() if log in logs}
    return wrong


def contradictions_found(frames: Sequence[Frame]) -> list[ClockContradiction]:
    following = LabelHistory({})
    return [wrong for frame in frames for wrong in following.wrong(*frame)]


def test_intact_log_has_no_contradiction(frames: list[Frame]) -> None:
    assert sum(kind == EPOCH for kind, _ in frames) == 12
    assert contradictions_found(frames) == contradictions_by_definition(frames) == []


def test_expected_clocks_are_compared_without_decoding(
    frames: list[Frame], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bytes] = []
    split = provenance.encoded_clocks
    monkeypatch.setattr(provenance, "encoded_clocks", lambda data: read.append(data) or split(data))
    assert contradictions_found(frames) == []
    reads = len(read)
    shapes = {tuple(c.own.log for c in clocks_in_entries(p.entries)) for _, p in frames}
    assert reads <= len(shapes) + sum(kind == DEFINITION for kind, _ in frames)


def test_each_byte_of_each_clock_is_checked(frames: list[Frame]) -> None:
    tried = 0
    for at, (kind, payload) in enumerate(frames):
        (place,) = [i for i, each in enumerate(payload.entries) if each.kind == CLOCKS] or [None]
        if place is None:
            continue
        stated = payload.entries[place].data
        for byte in range(len(stated)):
            entries = list(payload.entries)
            entries[place] = entries[place]._replace(data=flipped(stated, byte))
            other = [*frames[:at], (kind, payload._replace(entries=entries)), *frames[at + 1 :]]
            found, expected = (
                outcome(contradictions_found, other),
                outcome(contradictions_by_definition, other),
            )
            assert found == expected
            tried += found != []
    assert tried > 1000


def outcome(
    judge: Callable[[Sequence[Frame]], list[ClockContradiction]], frames: Sequence[Frame]
) -> Any:
    """The contradictions, or "damage" if a clock cannot be decoded."""
    try:
        return sorted(judge(frames))
    except CorruptLogError:
        return "damage"


def other_batch(rng: random.Random, payload: Payload) -> list[PayloadEntry]:
    entries = list(payload.entries)
    at = rng.choice([i for i, each in enumerate(entries) if each.kind <= FILES])
    entries[at] = entries[at]._replace(data=flipped(entries[at].data, 0))
    return entries


def no_batch(rng: random.Random, payload: Payload) -> list[PayloadEntry]:
    at = rng.choice([i for i, each in enumerate(payload.entries) if each.kind <= FILES])
    return [each for i, each in enumerate(payload.entries) if i != at]


def batch_of_the_past(rng: random.Random, payload: Payload) -> list[PayloadEntry]:
    batch = rng.choice([each for each in payload.entries if each.kind <= FILES])
    past = payloads.encode_payload(payload.epoch, 0.0, {}, [batch._replace(data=b"another")])
    return [*payload.entries, payloads.missed_epoch_entry(past)]


def clocks_twice(rng: random.Random, payload: Payload) -> list[PayloadEntry]:
    return [*payload.entries, *(each for each in payload.entries if each.kind == CLOCKS)]


def no_clocks(rng: random.Random, payload: Payload) -> list[PayloadEntry]:
    return [each for each in payload.entries if each.kind != CLOCKS]


def clocks_in_two(rng: random.Random, payload: Payload) -> list[PayloadEntry]:
    entries = []
    for each in payload.entries:
        own, cut = each.data, provenance.SIZE_BYTES
        parts = [own[:cut], own[cut:]] if each.kind == CLOCKS and len(own) > LABEL_BYTES else [own]
        entries += [each._replace(data=part) for part in parts]
    return entries


WAYS = [other_batch, no_batch, batch_of_the_past, clocks_twice, no_clocks, clocks_in_two]


@pytest.mark.parametrize("way", WAYS)
def test_altered_frames_are_judged_by_definition(
    frames: list[Frame], way: Callable[[random.Random, Payload], list[PayloadEntry]]
) -> None:
    rng = random.Random(way.__name__)
    places = [i for i, (kind, payload) in enumerate(frames) if kind == EPOCH and payload.entries]
    for at in places:
        kind, payload = frames[at]
        made = (kind, payload._replace(entries=way(rng, payload)))
        other = [*frames[:at], made, *frames[at + 1 :]]
        assert outcome(contradictions_found, other) == outcome(contradictions_by_definition, other)


def test_missing_frame_is_found_by_readers_of_its_batches(frames: list[Frame]) -> None:
    places = [i for i, (kind, _) in enumerate(frames) if kind == EPOCH]
    for at in places[1:-1]:
        gone = [*frames[:at], *frames[at + 1 :]]
        assert outcome(contradictions_found, gone) == outcome(contradictions_by_definition, gone)


def test_replayed_batches_are_trusted_only_after_missing_frames(
    frames: list[Frame],
) -> None:
    """The missing frames may have had the batches of a definition; after the next epoch not."""
    at = max(i for i, (kind, payload) in enumerate(frames) if kind == DEFINITION)
    kind, payload = frames[at]
    without = [each for each in payload.entries if each.kind > FILES and each.kind != PAST]
    assert any(each.kind == CLOCKS for each in without)
    for between in ([], [frames[at - 1]]):
        following = LabelHistory({})
        for each in frames[: at - 1]:
            following.wrong(*each)
        following.record_missing_frames()
        for each in between:
            assert following.wrong(*each) == []
        found = following.wrong(kind, payload._replace(entries=without))
        assert bool(found) == bool(between)
