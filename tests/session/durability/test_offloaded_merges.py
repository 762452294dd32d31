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
    OffloadedMerge,
    OffloadedMerges,
)
from nosync_nb.store import store
from nosync_nb.store.replication.agent.offloaded_merges import LINE_MAX, MergeProposal
from nosync_nb.trace import Layer
from nosync_nb.trace.batch import Batch
from nosync_nb.trace.parts.part_file import PartRef

WAIT_S = 120.0
SMALL = 64
ROWS = 200
"""Rows of an epoch: a file for each epoch, and four of them are merged."""

WAITING_KEEPER = """
import sys
from nosync_nb.store.replication.agent import keeper, offloaded_merges
from nosync_nb.trace import compaction

compaction.RANGE_ROWS = 64
each_range = offloaded_merges.each_range


def wait_in_merge(layout, layers):
    for number, batch in enumerate(each_range(layout, layers)):
        if number == 1:
            with open(sys.argv[3]) as gate:  # until a test opens the gate
                gate.read()
        yield batch


offloaded_merges.each_range = wait_in_merge
sys.exit(keeper.main(sys.argv[1:3]))
"""
"""A keeper that waits in the middle of each merge, when it has written one of the files."""


@pytest.fixture(autouse=True)
def spill_early(monkeypatch: pytest.MonkeyPatch, own_key: None) -> None:
    for place in (store, maintenance):
        monkeypatch.setattr(place, "SPILL_ROWS", SMALL)
    monkeypatch.setattr(offloaded_merges, "LARGE_ROWS", 2 * ROWS)


@pytest.fixture
def proposal_handled(monkeypatch: pytest.MonkeyPatch) -> Event:
    """Set when a proposal was taken or dropped."""
    done, real = Event(), Maintenance.take_proposals

    def take(owner: Maintenance) -> None:
        real(owner)
        done.set()

    monkeypatch.setattr(Maintenance, "take_proposals", take)
    return done


class Gate:
    """The gate at which a keeper waits in the middle of a merge.

    Attributes:
        keepers: the keepers that were started.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.keepers: list[subprocess.Popen[bytes]] = []
        os.mkfifo(path)

    def start(self, folder: str, generation: int) -> subprocess.Popen[bytes]:
        """Starts a keeper that waits at the gate."""
        command = [sys.executable, "-c", WAITING_KEEPER, folder, str(generation), str(self._path)]
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
        """Waits for a keeper; closing the returned descriptor lets it continue."""
        return os.open(self._path, os.O_WRONLY)


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(tmp_path / "gate")
    monkeypatch.setattr(replication, "start_keeper", gate.start)
    yield gate
    for keeper in gate.keepers:
        keeper.kill()
        keeper.wait()


def open_with_keeper(tmp_path: Path, **options: Any) -> Session:
    """Opens a session with a keeper."""
    session = nosync_nb.open(tmp_path / "x.nosync", replicas=[f"file://{tmp_path}/r"], **options)
    session.input("numbers", "x bigint, y bigint")
    session.commit(wait="replicas", timeout=WAIT_S)
    return session


def load_epochs(session: Session, epochs: int = 4) -> None:
    """Commits epochs that are spilled to files, so that layers can be merged."""
    numbers = session.inputs["numbers"]
    for epoch in range(epochs):
        numbers.insert([(x, epoch) for x in range(ROWS)])
        session.commit()


def rows(session: Session) -> list[tuple[int, int]]:
    return sorted((row.x, row.y) for row in session["numbers"].rows())


EVERY = sorted((x, epoch) for x in range(ROWS) for epoch in range(4))


def part_names(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "x.nosync" / "layers").glob("*.arrow")}


def live_files(session: Session) -> set[str]:
    """The files of the current layers."""
    return {
        ref.path
        for trace in traces_of(session).values()
        for layer in trace.layers
        for ref in layer.files
    }


def claimed_layers(session: Session) -> list[Layer]:
    return [x for trace in traces_of(session).values() for x in trace.layers if x.claimed]


@pytest.mark.fault(6)
def test_keeper_merges_large_layers_and_its_proposal_is_taken(
    tmp_path: Path, proposal_handled: Event
) -> None:
    with open_with_keeper(tmp_path) as session:
        load_epochs(session)
        assert proposal_handled.wait(WAIT_S)
        settle_background(session)
        assert session.stats["proposals"] == session.stats["merges"] == 1
        assert rows(session) == EVERY
        assert not claimed_layers(session)
        (merged,) = live_files(session)
        assert part_names(tmp_path) > {merged}  # checkpoints still reference the merged layers
        for _ in range(3):
            session.inputs["numbers"].insert([(-1, -1)])
            session.commit()
            checkpoint_now(session)
        named_files = live_files(session)
        assert merged in named_files
        session.sync("replicas", timeout=WAIT_S)
    with nosync_nb.open(tmp_path / "x.nosync") as session:
        assert rows(session) == [(-1, -1)] * 3 + EVERY
        assert session.stats["executed"] == 0
        assert live_files(session) == named_files


def test_small_memory_layer_is_merged_with_the_large_ones_around_it(
    tmp_path: Path, proposal_handled: Event
) -> None:
    with open_with_keeper(tmp_path) as session:
        numbers, expected = session.inputs["numbers"], []
        for epoch, count in enumerate([ROWS, ROWS, ROWS, SMALL // 4, ROWS]):
            changed = [(x, epoch) for x in range(count)]
            numbers.insert(changed)
            session.commit()
            expected += changed
            assert rows(session) == sorted(expected)  # a read sorts the last layer by itself
        ((number, trace),) = traces_of(session).items()
        assert [bool(layer.files) for layer in trace.layers] == [True, True, True, False, True]
        merge_trace(session, number)
        assert proposal_handled.wait(WAIT_S)
        settle_background(session)
        assert (session.stats["merges"], session.stats["proposals"]) == (1, 1)
        ((layer,),) = (trace.layers for trace in traces_of(session).values())
        assert layer.rows_count == len(expected)
        assert rows(session) == sorted(expected)
        assert part_names(tmp_path) - live_files(session) <= named_files(session)


@pytest.mark.fault(6, 27)
def test_merge_of_a_killed_keeper_is_done_by_the_worker(
    tmp_path: Path, gate: Gate, proposal_handled: Event
) -> None:
    with open_with_keeper(tmp_path) as session:
        load_epochs(session)
        gate_file = gate.reached()
        (abandoned,) = part_names(tmp_path) - live_files(session) - named_files(session)
        assert len(claimed_layers(session)) == 4
        gate.keepers[0].kill()
        os.close(gate_file)
        assert proposal_handled.wait(WAIT_S)
        settle_background(session)
        assert (session.stats["merges"], session.stats["proposals"]) == (1, 0)
        assert rows(session) == EVERY
        assert not claimed_layers(session)
        assert abandoned in part_names(tmp_path)
    with nosync_nb.open(tmp_path / "x.nosync") as session:
        assert rows(session) == EVERY
        assert abandoned not in part_names(tmp_path)  # unreferenced files are swept


def named_files(session: Session) -> set[str]:
    """The files that are referenced now or were recently."""
    return services_of(session).publisher.named_files


@pytest.mark.fault(1, 6)
def test_owner_killed_before_it_takes_a_proposal_loses_nothing(tmp_path: Path) -> None:
    program = f"""
import os, signal, sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
import pytest
import test_offloaded_merges as tests
from nosync_nb.session.maintenance import maintenance, offloaded_merges
from nosync_nb.session.maintenance.maintenance import Maintenance
from nosync_nb.store import store

store.SPILL_ROWS = maintenance.SPILL_ROWS = tests.SMALL
offloaded_merges.LARGE_ROWS = 2 * tests.ROWS
Maintenance.take_proposals = lambda owner: os.kill(os.getpid(), signal.SIGKILL)
tests.load_epochs(session := tests.open_with_keeper(Path({str(tmp_path)!r})))
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
    before = part_names(tmp_path)
    proposed = {name for name in before if name.startswith("trace") and "-2-6-" in name}
    assert proposed
    with nosync_nb.open(tmp_path / "x.nosync", takeover=True) as session:
        assert rows(session) == EVERY
        assert before - part_names(tmp_path) == proposed


@pytest.mark.fault(6)
@pytest.mark.parametrize("branched", [False, True], ids=["rewind", "branch"])
def test_proposal_for_layers_before_a_rewind_is_not_taken(
    tmp_path: Path, gate: Gate, proposal_handled: Event, branched: bool
) -> None:
    """A branch made during the merge keeps its layers."""
    with open_with_keeper(tmp_path) as session:
        load_epochs(session)
        gate_file = gate.reached()
        if branched:
            with session.branch("other") as other:
                assert rows(other) == EVERY
        else:
            session.rewind(to=session.now - 2)
        os.close(gate_file)
        assert proposal_handled.wait(WAIT_S)
        settle_background(session)
        assert session.stats["proposals"] == branched
        expected = EVERY if branched else [each for each in EVERY if each[1] < 2]
        assert rows(session) == expected
        assert not claimed_layers(session)
    with nosync_nb.open(tmp_path / "x.nosync") as session:
        assert rows(session) == expected
        if branched:
            with nosync_nb.open(session.branches["other"].path) as other:
                assert rows(other) == EVERY


@pytest.mark.fault(23, 24)
def test_keeper_of_a_fenced_owner_deletes_its_merged_files(
    tmp_path: Path, gate: Gate, proposal_handled: Event
) -> None:
    first = open_with_keeper(tmp_path)
    load_epochs(first)
    gate_file = gate.reached()
    # The opening sweeps unreferenced files; the keeper writes another one after it.
    with nosync_nb.open(tmp_path / "x.nosync", takeover=True) as second:
        os.close(gate_file)
        assert proposal_handled.wait(WAIT_S)
        drain_background(first)
        assert first.stats["merges"] == 0
        assert rows(second) == EVERY
        assert part_names(tmp_path) <= named_files(second) | live_files(second)
    first.close()


@pytest.mark.fault(12)
def test_damaged_proposal_is_not_taken(
    tmp_path: Path, proposal_handled: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = OffloadedMerges.verified_parts

    def verify_damaged(
        self: OffloadedMerges, merging: OffloadedMerge, files: tuple[PartRef, ...]
    ) -> ArrangedChange | None:
        path = tmp_path / "x.nosync" / "layers" / files[0].path
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        return real(self, merging, files)

    monkeypatch.setattr(OffloadedMerges, "verified_parts", verify_damaged)
    with open_with_keeper(tmp_path) as session:
        load_epochs(session)
        assert proposal_handled.wait(WAIT_S)
        settle_background(session)
        assert (session.stats["merges"], session.stats["proposals"]) == (1, 0)
        assert rows(session) == EVERY
        assert not session.verify().damage


@pytest.mark.fault(12)
def test_files_that_differ_from_the_merged_layers_are_not_taken(tmp_path: Path) -> None:
    patch = pytest.MonkeyPatch()
    patch.setattr("nosync_nb.session.state.worker.BackgroundWorker.submit", lambda *_, **__: False)
    with patch.context(), nosync_nb.open(tmp_path / "x.nosync") as session:
        session.input("numbers", "x bigint, y bigint")
        load_epochs(session)
        ((number, trace),) = traces_of(session).items()
        merge = OffloadedMerge(number, trace.layout, trace.layers)
        merges = OffloadedMerges(store_of(session), services_of(session).replication)
        every = tuple(ref for layer in trace.layers for ref in layer.files)
        assert merges.verified_parts(merge, every) is None  # they overlap
        halves = [
            part for low, high in ((0, 2**63), (2**63, 2**64)) for part in cut(trace, low, high)
        ]
        whole = store_of(session).spill(halves, trace.layout, "trace1-1-5").refs
        assert len(whole) == 2
        assert merges.verified_parts(merge, whole) is not None
        assert merges.verified_parts(merge, whole[:1]) is None
        assert merges.verified_parts(merge, whole[::-1]) is None
        assert merges.verified_parts(merge, (whole[0], whole[1]._replace(digest="0" * 32))) is None
        assert merges.verified_parts(merge, ()) is None
        first, second = halves
        twice = Batch(first.layout, first.columns, first.khash, first.rhash, 2 * first.diff)
        wrong = store_of(session).spill([twice, second], trace.layout, "trace1-1-5").refs
        assert merges.verified_parts(merge, wrong) is None
    patch.undo()


def cut(trace: Any, low: int, high: int) -> Iterator[Any]:
    """The rows of a trace in a range of key hashes."""
    yield trace.cut(low, high).consolidated()


def test_silent_keeper_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notified: list[int] = []
    with nosync_nb.open(tmp_path / "x.nosync") as session:
        proposals = OffloadedMerges(store_of(session), services_of(session).replication)
    proposals.on_answer(lambda: notified.append(1))
    merge = OffloadedMerge(3, (), ())  # type: ignore[arg-type]
    late = PartRef("trace3-1-5-g1k-0.arrow", 1, 0, 1, 1, "0")
    first, second = proposals.register(merge), proposals.register(merge)
    proposals.overdue()
    assert not notified
    monkeypatch.setattr(offloaded_merges, "SILENT_S", 0.0)
    proposals.overdue()
    assert notified
    assert [proposals.next(), proposals.next(), proposals.next()] == [
        (merge, ()),
        (merge, ()),
        None,
    ]
    proposals.hear(MergeProposal(first))
    assert not proposals.unwanted()
    proposals.hear(MergeProposal(second, done=True, files=(late,)))
    assert proposals.unwanted() == {late.path}
    assert not proposals.unwanted()


def test_merge_that_cannot_be_offloaded_is_done_by_the_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cases: no keeper, a keeper that does not read, and too many files for one message."""
    lines: list[bytes] = []

    def refuse(line: bytes) -> bool:
        lines.append(line)
        return False

    with nosync_nb.open(tmp_path / "x.nosync") as session:
        session.input("numbers", "x bigint, y bigint")
        load_epochs(session)
        settle_background(session)
        assert (session.stats["merges"], session.stats["proposals"]) == (1, 0)
        (layer,) = next(iter(traces_of(session).values())).layers
        merge = OffloadedMerge(1, next(iter(traces_of(session).values())).layout, (layer,))
        merges = OffloadedMerges(store_of(session), services_of(session).replication)
        monkeypatch.setattr(services_of(session).replication, "ask", refuse)
        assert not merges.ready
        assert not merges.ask(merge)
        many = Layer(0, 1, (), layer.files * 500)
        assert not merges.ask(merge._replace(inputs=(many,)))
        assert len(lines) == 2  # the last message was too long to be sent
        assert len(lines[-1]) < LINE_MAX
