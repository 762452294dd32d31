"""Out of memory: the error says what was done, and the session is as before."""

from __future__ import annotations

import ctypes
import errno
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from internals import drain_background, services_of, settle_background

from nosync_nb import OutOfMemoryError, Session, rows
from nosync_nb.collections import readable
from nosync_nb.collections.collection import Collection
from nosync_nb.collections.session_protocol import session_of
from nosync_nb.files import memory_map
from nosync_nb.session.maintenance import maintenance
from nosync_nb.session.state import transactions
from nosync_nb.session.writes import ingest
from nosync_nb.trace import Trace


@pytest.fixture
def data(session: Session) -> Any:
    """An input of three rows and a stage."""
    data = session.input("data", "k string, n bigint")
    session.stage("total", data.group_by("k").agg(t="sum(n)"))
    data.insert([("a", 1), ("b", 2), ("c", 3)])
    session.commit()
    return data


def out_of_memory(*_: Any, **__: Any) -> Any:
    """Fails like an allocation without free memory."""
    raise MemoryError


def fails(call: Callable[[], Any], match: str) -> OutOfMemoryError:
    with pytest.raises(OutOfMemoryError, match=match) as caught:
        call()
    assert isinstance(caught.value, MemoryError)
    assert isinstance(caught.value.__cause__, MemoryError)
    assert caught.value.hint
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.hint) == (str(caught.value), caught.value.hint)
    return caught.value


def test_refused_rows_are_not_pending(session: Session, data: Any) -> None:
    for place, name in ((rows, "to_columns"), (transactions, "_effect")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(place, name, out_of_memory)
            fails(lambda: data.insert([("d", 4)]), "the rows for input 'data' were not inserted")
        assert not session.pending
    data.insert([("d", 4)])
    assert session.commit() == 2


@pytest.mark.fault(47)
def test_failed_commit_keeps_pending_rows_and_last_epoch(session: Session, data: Any) -> None:
    data.insert([("a", 10), ("d", 4)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(services_of(session).publisher.runner, "epoch", out_of_memory)
        fails(
            session.commit, "epoch 2 was not committed, its 2 rows are still pending, and epoch 1"
        )
        with pytest.raises(OutOfMemoryError, match="epoch 2 was not"), session.epoch():
            data.insert([("x", 1)])
    assert session["total"].rows(at=session.now) == [("a", 1), ("b", 2), ("c", 3)]
    assert session.commit() == 2
    assert session["total"].rows() == [("a", 11), ("b", 2), ("c", 3), ("d", 4)]


def test_failed_definition_changes_no_stage(session: Session, data: Any) -> None:
    edited = data.group_by("k").agg(t="max(n)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "hash_columns", out_of_memory)
        patch.setattr(Trace, "updates", out_of_memory)
        patch.setattr(Trace, "consolidated", out_of_memory)
        fails(lambda: session.stage("total", edited), "total: not defined, and no stage")
        fails(lambda: session.stage("new", data.filter("n > 1")), "new: not defined")
    assert list(session.stages) == ["total"]
    data.insert([("a", 1)])
    session.commit()
    assert session["total"].rows()[0] == ("a", 2)
    assert session.stage("new", data.filter("n > 1")).count() == 2


@pytest.mark.parametrize(
    "read",
    [
        Collection.rows,
        Collection.count,
        Collection.head,
        Collection.to_arrow,
        Collection.to_pandas,
        lambda c: c.rows(limit=1),
        lambda c: c.rows(at=1),
    ],
)
def test_failed_read_changes_nothing(data: Any, read: Callable[[Any], Any]) -> None:
    before = data.rows()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(session_of(data)), "read", out_of_memory)
        patch.setattr(type(session_of(data)), "apply_to_trace", out_of_memory)
        fails(lambda: read(data), "input 'data' could not be read; nothing has changed")
    assert data.rows() == before
    read(data)


def test_failed_changes_call_is_a_failed_read(data: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readable, "changes_table", out_of_memory)
        fails(data.changes, "could not be read")
    assert data.changes().num_rows == 3


def test_failed_background_merge_is_reported_and_repeated(session: Session, data: Any) -> None:
    reported: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maintenance, "merge_ranges", out_of_memory)
        for i in range(6):
            data.insert([(f"x{i}", n) for n in range(2000)])
            with warnings.catch_warnings(record=True) as caught:
                session.commit()
            reported += [str(each.message) for each in caught]
        drain_background(session)
        reported += [
            each.warning for each in services_of(session).worker.failures.take_unreported()
        ]
    assert [text.splitlines()[0] for text in reported] == [
        "background work failed: merging the layers of input 'data': out of memory"
    ]
    now = session.now
    data.insert([("y", 1)])
    session.commit()
    assert session.now == now + 1
    settle_background(session)
    assert data.count() == 3 + 6 * 2000 + 1


@pytest.mark.parametrize("spilled_at_once", [False, True])
def test_unmappable_files_are_no_damage_and_are_deleted(
    session: Session, monkeypatch: pytest.MonkeyPatch, *, spilled_at_once: bool
) -> None:
    data = session.input("data", "k bigint, n bigint")
    session.stage("total", data.group_by("k").agg(t="sum(n)"))
    table = pa.table({"k": np.arange(90_000), "n": np.arange(90_000)})
    monkeypatch.setattr(ingest, "LOAD_BYTES", 1 if spilled_at_once else 1 << 40)

    def refused(*_: Any) -> Any:
        ctypes.set_errno(errno.ENOMEM)
        return None

    layers = Path(session.path) / "layers"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_map, "_mmap", refused)
        if spilled_at_once:
            fails(lambda: data.insert(table), "the rows for input 'data' were not inserted")
            assert not session.pending
        else:
            data.insert(table)
            fails(session.commit, "epoch 1 was not committed, its 90000 rows are still pending")
        assert not list(layers.iterdir())
    if spilled_at_once:
        data.insert(table)
    assert session.commit() == 1
    assert session["total"].count() == 90_000


LIMITED = """
import resource, sys
import numpy as np, pyarrow as pa
import nosync_nb

def limit(more):
    free = resource.RLIM_INFINITY
    size = next(line for line in open("/proc/self/status") if line.startswith("VmSize:"))
    most = free if more is None else 1024 * int(size.split()[1]) + (more << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, free))

count = 400_000
texts = pa.array([f"text {n}" for n in range(count)])
table = pa.table({"k": np.arange(count), "v": np.arange(count), "t": texts})
with nosync_nb.open(sys.argv[1], spark_rows=1 << 40) as session:
    data = session.input("data", "k bigint, v bigint, t string")
    stage = session.stage("total", data.group_by("k").agg(n="sum(v)", last="max(t)"))
    data.insert([(1, 2, "x")])
    session.commit()
    data.insert(table)
    failed = 0
    for more in (1, 2, 4, 8, 12, 20, 40, 60, 80, None):
        limit(more)
        try:
            session.commit()
            break
        except nosync_nb.OutOfMemoryError as error:
            limit(None)
            assert "400000 rows are still pending, and epoch 1 has not changed" in str(error)
            assert session.now == 1 and session.pending
            failed += 1
    limit(None)
    assert session.now == 2 and failed
    assert stage.count() == count and session.verify().whole
"""


@pytest.mark.fault(47)
def test_load_is_committed_or_pending_under_any_memory_limit(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path / "log")], check=True, timeout=300)
