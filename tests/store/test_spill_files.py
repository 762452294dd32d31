"""Loads that spill to files: the same log in less memory."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from faults.faults import FaultyFiles, Step, on_disk
from internals import drain_background, log_of

import nosync_nb
from nosync_nb import DurabilityError, Session, StageError
from nosync_nb.dataflow.runtime import delta, runner
from nosync_nb.dataflow.runtime.runner import Runner
from nosync_nb.session.state.transactions import PendingInputChanges
from nosync_nb.session.state.worker import BackgroundWorker
from nosync_nb.session.writes import ingest
from nosync_nb.store import store
from nosync_nb.store.log import FramePosition
from nosync_nb.store.records import payloads
from nosync_nb.store.store import Store
from nosync_nb.trace.parts import part_file

ROWS = 400
SALES = "id bigint, item bigint, price double, note string"


def sales(n: int = ROWS, start: int = 0) -> pa.Table:
    ids = np.arange(start, start + n)
    notes = pa.array([f"note {i % 97} of {i}" for i in ids.tolist()])
    columns = [pa.array(ids), pa.array(ids % 50), pa.array(ids * 0.5), notes]
    return pa.table(columns, ["id", "item", "price", "note"])


def declare_inputs(session: Session) -> None:
    session.input("sales", SALES)
    session.input("items", "item bigint, kind string")


def define_stages(session: Session) -> None:
    """Stages that read by two keys, have state, and read each other."""
    named, items = session["sales"], session["items"]
    session.stage("dear", named.filter("price > 3").select("id", "item", "price"))
    session.stage("kinds", session["dear"].join(items, on="item").group_by("kind").count())
    session.stage("notes", named.group_by("note").agg(n="count(*)", most="max(price)"))
    session.stage("once", named.select("item", "note").distinct())


def load_rows(session: Session) -> None:
    session["items"].insert([(item, f"kind {item % 3}") for item in range(50)])
    session["sales"].insert(sales())
    session.commit()
    session["sales"].insert(sales(ROWS // 4, start=ROWS))
    session["sales"].remove(sales(10))
    session.commit()


@pytest.fixture
def low_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowers the thresholds of large loads, and stops background merges and deletions."""
    monkeypatch.setattr(BackgroundWorker, "submit", lambda *_, **__: None)
    monkeypatch.setattr(store, "SPILL_ROWS", 40)
    monkeypatch.setattr(ingest, "LOAD_BYTES", 1000)
    for module in (ingest, runner, delta):
        monkeypatch.setattr(module, "SMALL_ROWS", 40)


DecodedFrame = list[tuple[int, int, list[tuple[Any, ...]], bytes]]


def decoded_frame(payload: bytes) -> DecodedFrame:
    """The entries of a frame, with the digests of their files."""
    entries = []
    for entry in payloads.decode_payload(payload).entries:
        filed = entry.kind not in payloads.WITHOUT_FILES
        refs = payloads.files_of_entry(0, entry)[1] if filed else ()
        files = [(ref.rows, ref.low, ref.high, ref.digest) for ref in refs]
        whole = bytes(entry.data) if entry.kind == payloads.INLINE else b""
        entries.append((entry.number, entry.kind, files, whole))
    return entries


@contextmanager
def without_spilling(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Writes no file before everything is computed."""
    made = Runner.__init__

    def without(self: Runner, *given: Any, spill: object = None, **named: Any) -> None:
        made(self, *given, **named)

    with patch.context() as patched:
        patched.setattr(Runner, "__init__", without)
        patched.setattr(ingest, "LOAD_BYTES", 1 << 60)
        yield


@pytest.mark.usefixtures("low_thresholds")
@pytest.mark.parametrize("late", [False, True])
def test_spilled_log_has_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    def run(name: str) -> tuple[dict[str, Any], list[DecodedFrame]]:
        frames = []
        with nosync_nb.open(tmp_path / name) as session:
            log = log_of(session)
            append = log.append

            def noted(kind: int, payload: bytes) -> FramePosition:
                frames.append(decoded_frame(payload))
                return append(kind, payload)

            monkeypatch.setattr(log, "append", noted)
            for step in (
                (declare_inputs, load_rows, define_stages)
                if late
                else (declare_inputs, define_stages, load_rows)
            ):
                step(session)
            found = {n: sorted(session[n].rows()) for n in ("dear", "kinds", "notes", "once")}
        return found, frames

    with without_spilling(monkeypatch):
        wanted = run("whole")
    assert run("spilled") == wanted
    assert any(files for frame in wanted[1] for _, _, files, _ in frame)


@pytest.mark.usefixtures("low_thresholds")
def test_rows_in_several_files_are_computed_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_file.split, "__defaults__", (60, part_file.BYTES_MAX))
    with nosync_nb.open(tmp_path / "log") as session:
        declare_inputs(session)
        session["items"].insert([(item, f"kind {item % 3}") for item in range(50)])
        session["sales"].insert(sales())
        session.commit()
        (layer,) = session.info.layers("sales")
        assert layer["rows"] == ROWS
        named, items = session["sales"], session["items"]
        dear = session.stage("dear", named.filter("price >= 100").select("id"))
        pairs = session.stage("pairs", named.join(items, on="item").select("id", "kind"))
        both = session.stage("both", named.select("id").concat(dear))
        assert len(os.listdir(tmp_path / "log" / "layers")) > 5
        assert dear.rows() == [(i,) for i in range(200, ROWS)]
        assert pairs.rows() == [(i, f"kind {i % 50 % 3}") for i in range(ROWS)]
        assert both.rows() == sorted(2 * dear.rows() + [(i,) for i in range(200)])


@pytest.mark.usefixtures("low_thresholds")
def test_memory_is_released_only_after_epoch_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[str] = []
    monkeypatch.setattr(
        BackgroundWorker, "submit", lambda _, kind, *_task, **_later: submitted.append(kind)
    )
    with nosync_nb.open(tmp_path / "log") as session:
        declare_inputs(session)
        for count in (10, ROWS):
            submitted.clear()
            session["sales"].insert(sales(count, start=count))
            session.commit()
            assert ("memory" in submitted) == (count == ROWS)


@pytest.mark.usefixtures("low_thresholds")
def test_failed_run_or_discarded_load_leaves_no_file(tmp_path: Path) -> None:
    layers = tmp_path / "log" / "layers"
    with nosync_nb.open(tmp_path / "log") as session:
        declare_inputs(session)
        define_stages(session)

        def refuse(row: Any) -> Any:
            raise ValueError("no")

        session.stage("never", session["dear"].map(refuse, "id bigint"))
        before = sorted(os.listdir(layers))
        session["sales"].insert(sales())
        waiting = sorted(os.listdir(layers))
        assert len(waiting) > len(before)
        for _ in range(2):
            with pytest.raises(StageError, match="never"):
                session.commit()
            assert sorted(os.listdir(layers)) == waiting
            assert session.pending["sales"].rows == ROWS
        session.discard()
        assert sorted(os.listdir(layers)) == before


@pytest.mark.usefixtures("low_thresholds")
@pytest.mark.parametrize("added", [False, True])
def test_interrupted_load_keeps_files_only_with_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, added: bool
) -> None:
    layers, add = tmp_path / "log" / "layers", PendingInputChanges.add

    def interrupted(changes: PendingInputChanges, *given: Any) -> int:
        if added:
            add(changes, *given)
        raise KeyboardInterrupt

    with nosync_nb.open(tmp_path / "log") as session:
        declare_inputs(session)
        session["sales"].insert(
            sales(1, start=ROWS)
        )  # otherwise the interrupt discards all pending rows
        before = sorted(os.listdir(layers))
        with monkeypatch.context() as patch:
            patch.setattr(PendingInputChanges, "add", interrupted)
            with pytest.raises(KeyboardInterrupt):
                session["sales"].insert(sales())
        assert (sorted(os.listdir(layers)) != before) == added
        session.commit()
    with nosync_nb.open(tmp_path / "log") as session:
        assert len(session["sales"].rows()) == added * ROWS + 1
        assert session.verify().whole


@pytest.mark.usefixtures("low_thresholds")
def test_load_refused_by_disk_is_pending_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = False

    def error_at(step: Step) -> int | None:
        return errno.ENOSPC if full and step.action in ("create", "append") else None

    opened: Callable[..., Store] = Store.open
    with monkeypatch.context() as patch:
        patch.setattr(Store, "open", on_disk(opened, FaultyFiles(error_at=error_at)))
        session = nosync_nb.open(tmp_path / "log")
    with session:
        declare_inputs(session)
        define_stages(session)
        layers = tmp_path / "log" / "layers"
        before = sorted(os.listdir(layers))
        full = True
        assert session["sales"].insert(sales()) == ROWS
        assert sorted(os.listdir(layers)) == before
        with pytest.raises(DurabilityError, match="ENOSPC"):
            session.commit()
        assert sorted(os.listdir(layers)) == before
        full = False
        session.commit()
        assert len(session["sales"].rows()) == ROWS


def memory_ratios(path: Path) -> tuple[float, float]:
    """The peak and the remaining memory of a load, relative to the bytes of its rows."""
    with nosync_nb.open(path, spark_rows=1 << 40) as session:
        declare_inputs(session)
        dear = session.stage("dear", session["sales"].filter("price > 3"))
        for key in ("id", "item", "note"):
            session.stage(key, dear.join(session["items"], on="item").group_by(key).count())
        session["items"].insert([(0, "kind")])
        session.commit()
        rows = sales(150_000)
        before, pool = pa.default_memory_pool(), pa.system_memory_pool()  # whose counts start here
        pa.set_memory_pool(pool)
        tracemalloc.start()
        try:
            session["sales"].insert(rows)
            session.commit()
            drain_background(session)
            left, most = tracemalloc.get_traced_memory()
            left, most = left + pool.bytes_allocated(), most + (pool.max_memory() or 0)
        finally:
            tracemalloc.stop()
            pa.set_memory_pool(before)
        assert len(session["id"].rows()) == 3_000 - 1
        return most / rows.nbytes, left / rows.nbytes


def test_spilled_load_takes_less_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "LOAD_BYTES", 1 << 20)
    most, left = memory_ratios(tmp_path / "spilled")
    with without_spilling(monkeypatch):
        whole, _ = memory_ratios(tmp_path / "whole")
    assert most < 0.7 * whole
    assert left < 0.5


FREED = """
import numpy as np
from nosync_nb.files.memory import release_memory

def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))

held = [np.ones(125) for _ in range(1 << 16)]  # of a kilobyte each, so in the heap
held = held[-1:]  # blocks the heap from shrinking
before = resident()
release_memory()
assert resident() < before - (32 << 10), (before, resident())
assert held[0].sum() == 125
"""


def test_free_memory_is_returned_to_the_system() -> None:
    subprocess.run([sys.executable, "-c", FREED], check=True)
