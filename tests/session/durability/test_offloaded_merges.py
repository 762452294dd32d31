"""Merges by the keeper: the owner verifies them and takes them, or merges itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from internals import (
    checkpoint_now,
    drain_background,
    merge_trace,
    services_of,
    settle_background,
    store_of,
    traces_of,
)

import nosync_nb
from nosync_nb import Session
from nosync_nb.dataflow.runtime.delta import ArrangedChange
from nosync_nb.session.durability import replication
from nosync_nb.session.maintenance import maintenance, offloaded_merges
from nosync_nb.session.maintenance.maintenance import Maintenance
from nosync_nb.session.maintenance.offloaded_merges import (
    MergeProposals,
    OffloadedMerge,
    OffloadedMerges,
)
from nosync_nb.store import store
from nosync_nb.store.replication.agent import offloaded_merges as proposals
from nosync_nb.store.replication.agent.offloaded_merges import MergeProposal
from nosync_nb.trace import Layer
from nosync_nb.trace.batch import Batch
from nosync_nb.trace.parts.part_file import PartRef

WAIT_S = 120.0
SMALL = 64
ROWS = 200
"""So many an epoch: a file for each, and four of them are merged."""

HELD = """
import sys
from nosync_nb.store.replication.agent import keeper, offloaded_merges as proposals
from nosync_nb.trace import merge as merging

merging.RANGE_ROWS = 64
each_range = proposals.each_range


def held(layout, layers):
    for number, batch in enumerate(each_range(layout, layers)):
        if number == 1:
            with open(sys.argv[3]) as gate:  # until a test lets it go on
                gate.read()
        yield batch


proposals.each_range = held
sys.exit(keeper.main(sys.argv[1:3]))
"""
"""A keeper that waits in the middle of each merge: one file is written, and others are to come."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, own_key: None) -> None:
    for place in (store, maintenance):
        monkeypatch.setattr(place, "SPILL_ROWS", SMALL)
    monkeypatch.setattr(offloaded_merges, "LARGE_ROWS", 2 * ROWS)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Event:
    """Set when a proposal was taken, or came to nothing."""
    done, real = Event(), Maintenance.take_proposals

    def take(owner: Maintenance) -> None:
        real(owner)
        done.set()

    monkeypatch.setattr(Maintenance, "take_proposals", take)
    return done


class Gate:
    """Where a keeper waits in the middle of a merge.

    Attributes:
        keepers: the keepers that were started.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.keepers: list[subprocess.Popen[bytes]] = []
        os.mkfifo(path)

    def start(self, folder: str, generation: int) -> subprocess.Popen[bytes]:
        """Starts one that waits."""
        command = [sys.executable, "-c", HELD, folder, str(generation), str(self._path)]
        keeper = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert keeper.stdin is not None
        os.set_blocking(keeper.stdin.fileno(), False)
        self.keepers.append(keeper)
        return keeper

    def reached(self) -> int:
        """Waits until a keeper stands there; what is returned lets it go on when it is closed."""
        return os.open(self._path, os.O_WRONLY)


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(tmp_path / "gate")
    monkeypatch.setattr(replication, "start_keeper", gate.start)
    yield gate
    for keeper in gate.keepers:
        keeper.kill()
        keeper.wait()


def opened(tmp_path: Path, **options: Any) -> Session:
    """A session with a keeper who listens."""
    session = nosync_nb.open(tmp_path / "x.nosync", replicas=[f"file://{tmp_path}/r"], **options)
    session.input("numbers", "x bigint, y bigint")
    session.commit(wait="replicas", timeout=WAIT_S)
    return session


def loaded(session: Session, epochs: int = 4) -> None:
    """Some epochs that go to files, the last of which have layers to be merged."""
    numbers = session.inputs["numbers"]
    for epoch in range(epochs):
        numbers.insert([(x, epoch) for x in range(ROWS)])
        session.commit()


def rows(session: Session) -> list[tuple[int, int]]:
    return sorted((row.x, row.y) for row in session["numbers"].rows())


EVERY = sorted((x, epoch) for x in range(ROWS) for epoch in range(4))


def parts(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "x.nosync" / "layers").glob("*.arrow")}


def live(session: Session) -> set[str]:
    """The files of layers that readers see."""
    return {
        ref.path
        for trace in traces_of(session).values()
        for layer in trace.layers
        for ref in layer.files
    }


def claimed(session: Session) -> list[Layer]:
    return [x for trace in traces_of(session).values() for x in trace.layers if x.claimed]


@pytest.mark.fault(6)
def test_the_keeper_merges_large_layers_and_what_it_proposes_is_taken(
    tmp_path: Path, taken: Event
) -> None:
    with opened(tmp_path) as session:
        loaded(session)
        assert taken.wait(WAIT_S)
        settle_background(session)
        assert session.stats["proposals"] == session.stats["merges"] == 1
        assert rows(session) == EVERY
        assert not claimed(session)
        (merged,) = live(session)
        assert parts(tmp_path) > {merged}  # what was merged is needed until checkpoints are made
        for _ in range(3):
            session.inputs["numbers"].insert([(-1, -1)])
            session.commit()
            checkpoint_now(session)
        named = live(session)
        assert merged in named
        session.sync("replicas", timeout=WAIT_S)
    with nosync_nb.open(tmp_path / "x.nosync") as session:
        assert rows(session) == [(-1, -1)] * 3 + EVERY
        assert session.stats["executed"] == 0
        assert live(session) == named


def test_what_is_small_and_in_memory_goes_with_the_large_layers_around_it(
    tmp_path: Path, taken: Event
) -> None:
    with opened(tmp_path) as session:
        numbers, expected = session.inputs["numbers"], []
        for epoch, count in enumerate([ROWS, ROWS, ROWS, SMALL // 4, ROWS]):
            changed = [(x, epoch) for x in range(count)]
            numbers.insert(changed)
            session.commit()
            expected += changed
            assert rows(session) == sorted(expected)  # who looks has it put in order, by itself
        ((number, trace),) = traces_of(session).items()
        assert [bool(layer.files) for layer in trace.layers] == [True, True, True, False, True]
        merge_trace(session, number)
        assert taken.wait(WAIT_S)
        settle_background(session)
        assert (session.stats["merges"], session.stats["proposals"]) == (1, 1)
        ((layer,),) = (trace.layers for trace in traces_of(session).values())
        assert layer.rows_count == len(expected)
        assert rows(session) == sorted(expected)
        assert parts(tmp_path) - live(session) <= named(session)


@pytest.mark.fault(6, 27)
def test_a_keeper_that_is_killed_in_a_merge_leaves_it_to_the_worker(
    tmp_path: Path, gate: Gate, taken: Event
) -> None:
    with opened(tmp_path) as session:
        loaded(session)
        standing = gate.reached()
        (left,) = parts(tmp_path) - live(session) - named(session)
        assert len(claimed(session)) == 4
        gate.keepers[0].kill()
        os.close(standing)
        assert taken.wait(WAIT_S)
        settle_background(session)
        assert (session.stats["merges"], session.stats["proposals"]) == (1, 0)
        assert rows(session) == EVERY
        assert not claimed(session)
        assert left in parts(tmp_path)
    with nosync_nb.open(tmp_path / "x.nosync") as session:
        assert rows(session) == EVERY
        assert left not in parts(tmp_path)  # nobody's files are swept


def named(session: Session) -> set[str]:
    """The files that are needed, or were until lately."""
    return services_of(session).publisher.named_files


@pytest.mark.fault(1, 6)
def test_an_owner_who_is_killed_before_he_takes_a_proposal_has_lost_nothing(tmp_path: Path) -> None:
    program = f"""
import os, signal, sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
import pytest
import test_offloaded_merges as tests
from nosync_nb.session.maintenance import offloaded_merges as merges, maintenance as upkeep
from nosync_nb.session.maintenance.maintenance import Maintenance as Upkeep
from nosync_nb.store import store

store.SPILL_ROWS = upkeep.SPILL_ROWS = tests.SMALL
merges.LARGE_ROWS = 2 * tests.ROWS
Upkeep.take_proposals = lambda owner: os.kill(os.getpid(), signal.SIGKILL)
tests.loaded(session := tests.opened(Path({str(tmp_path)!r})))
signal.pause()
"""
    path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    before = parts(tmp_path)
    proposed = {name for name in before if name.startswith("trace") and "-2-6-" in name}
    assert proposed
    with nosync_nb.open(tmp_path / "x.nosync", takeover=True) as session:
        assert rows(session) == EVERY
        assert before - parts(tmp_path) == proposed


@pytest.mark.fault(6)
@pytest.mark.parametrize("branched", [False, True], ids=["rewind", "branch"])
def test_a_proposal_of_what_a_rewind_has_left_is_not_taken(
    tmp_path: Path, gate: Gate, taken: Event, branched: bool
) -> None:
    """A branch that is made meanwhile keeps the layers that it has."""
    with opened(tmp_path) as session:
        loaded(session)
        standing = gate.reached()
        if branched:
            with session.branch("other") as other:
                assert rows(other) == EVERY
        else:
            session.rewind(to=session.now - 2)
        os.close(standing)
        assert taken.wait(WAIT_S)
        settle_background(session)
        assert session.stats["proposals"] == branched
        expected = EVERY if branched else [each for each in EVERY if each[1] < 2]
        assert rows(session) == expected
        assert not claimed(session)
    with nosync_nb.open(tmp_path / "x.nosync") as session:
        assert rows(session) == expected
        if branched:
            with nosync_nb.open(session.branches["other"].path) as other:
                assert rows(other) == EVERY


@pytest.mark.fault(23, 24)
def test_a_keeper_whose_owner_was_replaced_takes_back_what_it_has_merged(
    tmp_path: Path, gate: Gate, taken: Event
) -> None:
    first = opened(tmp_path)
    loaded(first)
    standing = gate.reached()
    # An opening sweeps files that nobody names; another one comes behind it.
    with nosync_nb.open(tmp_path / "x.nosync", takeover=True) as second:
        os.close(standing)
        assert taken.wait(WAIT_S)
        drain_background(first)
        assert first.stats["merges"] == 0
        assert rows(second) == EVERY
        assert parts(tmp_path) <= named(second) | live(second)
    first.close()


@pytest.mark.fault(12)
def test_a_proposal_that_is_damaged_is_not_taken(
    tmp_path: Path, taken: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = OffloadedMerges.verified_parts

    def spoiled(
        self: OffloadedMerges, merging: OffloadedMerge, files: tuple[PartRef, ...]
    ) -> ArrangedChange | None:
        path = tmp_path / "x.nosync" / "layers" / files[0].path
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        return real(self, merging, files)

    monkeypatch.setattr(OffloadedMerges, "verified_parts", spoiled)
    with opened(tmp_path) as session:
        loaded(session)
        assert taken.wait(WAIT_S)
        settle_background(session)
        assert (session.stats["merges"], session.stats["proposals"]) == (1, 0)
        assert rows(session) == EVERY
        assert not session.verify().damage


@pytest.mark.fault(12)
def test_files_that_do_not_add_up_to_what_was_merged_are_not_taken(tmp_path: Path) -> None:
    monkey = pytest.MonkeyPatch()
    monkey.setattr("nosync_nb.session.state.worker.BackgroundWorker.submit", lambda *_, **__: False)
    with monkey.context(), nosync_nb.open(tmp_path / "x.nosync") as session:
        session.input("numbers", "x bigint, y bigint")
        loaded(session)
        ((number, trace),) = traces_of(session).items()
        merging = OffloadedMerge(number, trace.layout, trace.layers)
        proving = OffloadedMerges(store_of(session), lambda: None, lambda _: True)
        every = tuple(ref for layer in trace.layers for ref in layer.files)
        assert proving.verified_parts(merging, every) is None  # they overlap
        halves = [
            part for low, high in ((0, 2**63), (2**63, 2**64)) for part in cut(trace, low, high)
        ]
        whole = store_of(session).spill(halves, trace.layout, "trace1-1-5").refs
        assert len(whole) == 2
        assert proving.verified_parts(merging, whole) is not None
        assert proving.verified_parts(merging, whole[:1]) is None
        assert proving.verified_parts(merging, whole[::-1]) is None
        assert (
            proving.verified_parts(merging, (whole[0], whole[1]._replace(digest="0" * 32))) is None
        )
        assert proving.verified_parts(merging, ()) is None
        first, second = halves
        twice = Batch(first.layout, first.columns, first.khash, first.rhash, 2 * first.diff)
        wrong = store_of(session).spill([twice, second], trace.layout, "trace1-1-5").refs
        assert proving.verified_parts(merging, wrong) is None
    monkey.undo()


def cut(trace: Any, low: int, high: int) -> Iterator[Any]:
    """The rows of a trace in a range of key hashes."""
    yield trace.cut(low, high).consolidated()


def test_a_keeper_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    asked = MergeProposals(lambda: told.append(1))
    merging = OffloadedMerge(3, (), ())  # type: ignore[arg-type]
    late = PartRef("trace3-1-5-g1k-0.arrow", 1, 0, 1, 1, "0")
    first, second = asked.register(merging), asked.register(merging)
    asked.overdue()
    assert not told
    monkeypatch.setattr(offloaded_merges, "SILENT_S", 0.0)
    asked.overdue()
    assert asked.silent
    assert told
    assert [asked.next(), asked.next(), asked.next()] == [(merging, ()), (merging, ()), None]
    asked.hear(MergeProposal(first))
    assert not asked.silent
    assert not asked.unwanted()
    asked.hear(MergeProposal(second, done=True, files=(late,)))
    assert asked.unwanted() == {late.path}
    assert not asked.unwanted()


def test_what_nobody_can_be_asked_for_is_merged_here(tmp_path: Path) -> None:
    """No keeper, one who does not read, and a merge of more files than a line has room for."""
    lines: list[bytes] = []

    def full(line: bytes) -> bool:
        lines.append(line)
        return False

    with nosync_nb.open(tmp_path / "x.nosync") as session:
        session.input("numbers", "x bigint, y bigint")
        loaded(session)
        settle_background(session)
        assert (session.stats["merges"], session.stats["proposals"]) == (1, 0)
        (layer,) = next(iter(traces_of(session).values())).layers
        merging = OffloadedMerge(1, next(iter(traces_of(session).values())).layout, (layer,))
        asking = OffloadedMerges(store_of(session), lambda: None, full)
        assert not asking.ready
        assert not asking.ask(merging)
        many = Layer(0, 1, (), layer.files * 500)
        assert not asking.ask(merging._replace(inputs=(many,)))
        assert len(lines) == 2  # the last one was too long to be tried
        assert len(lines[-1]) < proposals.LINE_MAX
