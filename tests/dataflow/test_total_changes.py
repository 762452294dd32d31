"""Total changes: the removed rows are references to files, and are not written again."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from internals import (
    checkpoint_now,
    parts_folder,
    services_of,
    settle_background,
    snapshot_of,
)

import nosync_nb
from nosync_nb import Collection, CorruptLogError, DurabilityError, Session
from nosync_nb.dataflow.runtime import replacement
from nosync_nb.files.filesystem import Files
from nosync_nb.session.maintenance import maintenance
from nosync_nb.store import store
from nosync_nb.store.records import json_text
from nosync_nb.store.store import Store
from nosync_nb.trace.parts.part_file import REMOVED, REMOVED_CODED

ROWS = 6_000


@pytest.fixture(autouse=True)
def _files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes all but small batches to files."""
    for module in (replacement, store, maintenance):
        monkeypatch.setattr(module, "SPILL_ROWS", ROWS // 6)


STAGES: dict[str, Callable[[Session], Collection]] = {
    "selected": lambda s: s["a"].select("id", "k + 1 as k", "v * 2 as v", "s"),
    "filtered": lambda s: s["a"].filter("v >= 0"),
    "joined": lambda s: s["a"].join(s["b"], on="k"),
    "semi": lambda s: s["a"].join(s["b"], on="k", how="semi"),
    "first": lambda s: s["a"].group_by("k").top(5, by="v desc, id").select("id", "k"),
}


def table(start: int, count: int = ROWS) -> pa.Table:
    ids = np.arange(start, start + count)
    return pa.table(
        {
            "id": ids,
            "k": ids % 1000,
            "v": (ids % 977) / 4,
            "s": pa.array([f"t{i % 50}" for i in range(count)]),
        }
    )


def create(path: Path, **options: Any) -> Session:
    session = nosync_nb.open(path, **options)
    session.input("a", "id bigint, k bigint, v double, s string")
    session.input("b", "k bigint, w bigint")
    return session


def load(session: Session, start: int) -> None:
    session["a"].clear()  # type: ignore[attr-defined]
    session["a"].insert(table(start))  # type: ignore[attr-defined]
    session.commit()


def define(session: Session) -> None:
    for name, build in STAGES.items():
        session.stage(name, build(session))


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[Session]:
    """A session with all stages, whose input is loaded."""
    session = fill(create(tmp_path / "log"))
    yield session
    session.close()


def fill(session: Session) -> Session:
    keys = np.arange(1000)
    session["b"].insert(pa.table({"k": keys, "w": keys}))  # type: ignore[attr-defined]
    load(session, 0)
    define(session)
    settle_background(session)
    return session


def contents(session: Session, at: int | None = None) -> dict[str, list[str]]:
    names = ("a", *STAGES)
    return {
        name: sorted(map(repr, session[name].rows() if at is None else session[name].rows(at=at)))
        for name in names
    }


def expected(path: Path, start: int) -> dict[str, list[str]]:
    """The rows of all stages, computed once over an input that is loaded once."""
    session = create(path)
    keys = np.arange(1000)
    session["b"].insert(pa.table({"k": keys, "w": keys}))  # type: ignore[attr-defined]
    load(session, start)
    define(session)
    rows = contents(session)
    session.close()
    return rows


def removed_files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.endswith((REMOVED, REMOVED_CODED))]


def written_bytes(folder: Path, before: set[str]) -> int:
    """The bytes of new files; a second name of a file has none."""
    return sum(
        path.stat().st_size
        for path in folder.iterdir()
        if path.name not in before and path not in removed_files(folder)
    )


def test_total_change_writes_as_many_bytes_as_first_run(loaded: Session) -> None:
    """The counters of a total change: bytes written to files, and rows that operators touch."""
    folder, metrics = Path(parts_folder(loaded)), services_of(loaded).publisher.metrics
    first = written_bytes(folder, set())
    touched = {name: metrics.last(name).touched for name in STAGES}  # type: ignore[union-attr]
    names = {path.name for path in folder.iterdir()}
    version = snapshot_of(loaded).version
    load(loaded, ROWS)
    total = written_bytes(folder, names)
    assert total <= 1.05 * first
    for path in removed_files(folder):
        assert path.stat().st_nlink > 1, "the file has two names"
    for name in STAGES:
        work = metrics.last(name)
        assert work is not None
        assert work.from_scratch, name
        assert work.touched <= 1.2 * touched[name] + 2000, name
        (trace,) = loaded_traces(loaded, name)
        assert any(ref.removes for layer in trace.layers for ref in layer.files), name
    assert snapshot_of(loaded).version.epoch == version.epoch + 1


def loaded_traces(session: Session, name: str) -> list[Any]:
    snapshot = snapshot_of(session)
    node = snapshot.graph.named[name]
    return [snapshot.version.traces[number] for number in node.traces.values()]


def test_total_changes_are_read_at_any_epoch(loaded: Session, tmp_path: Path) -> None:
    """Current rows, past rows, changes, and the same after a recovery, a checkpoint, a rewind."""
    path = loaded.path
    one, two = expected(tmp_path / "one", 0), expected(tmp_path / "two", ROWS)
    start = loaded.now
    load(loaded, ROWS)
    assert contents(loaded) == two
    assert contents(loaded, start) == one
    load(loaded, 0)
    load(loaded, ROWS // 2)  # half of the rows remain, so nothing is referenced
    load(loaded, ROWS)
    assert contents(loaded) == two
    settle_background(loaded)
    assert contents(loaded) == two
    loaded.close()
    session = create(Path(path))
    define(session)
    for _ in range(2):
        assert contents(session) == two
        assert contents(session, start) == one
        assert contents(session, start + 1) == two
        assert contents(session, start + 2) == one
        checkpoint_now(session)
        session.close()
        session = create(Path(path))
        define(session)
    session.rewind(to=start + 2)
    assert contents(session) == one
    session.rewind(to=start)
    session["a"].insert([(-1, 1, 0.5, "more")])  # type: ignore[attr-defined]
    session.commit()
    load(session, ROWS)
    assert contents(session) == two
    session.close()


def test_changes_of_total_change_are_net(loaded: Session) -> None:
    start = loaded.now
    load(loaded, ROWS // 2)
    counts: dict[Any, int] = {}
    changes = loaded["a"].changes(after=start)
    for id_, diff in zip(changes["id"].to_pylist(), changes["diff"].to_pylist(), strict=True):
        counts[id_] = counts.get(id_, 0) + 1
        assert diff == (1 if id_ >= ROWS else -1)
    assert len(counts) == ROWS
    assert set(counts.values()) == {1}, "a row that remains is not part of the change"


def test_branch_and_replica_have_total_changes(loaded: Session, tmp_path: Path) -> None:
    one, two = expected(tmp_path / "one", 0), expected(tmp_path / "two", ROWS)
    start = loaded.now
    load(loaded, ROWS)
    for name, at, rows in (("b1", None, two), ("b2", start, one)):
        branch = loaded.branch(name, at=at)
        assert contents(branch) == rows
        load(branch, 0 if rows is two else ROWS)
        assert contents(branch) == (one if rows is two else two)
        branch.close()
    replicas = [f"file://{tmp_path}/copy"]
    session = fill(create(tmp_path / "source", replicas=replicas))
    start = session.now
    load(session, ROWS)
    session.sync("replicas", timeout=120)
    session.close()
    shutil.rmtree(tmp_path / "source")
    restored = create(tmp_path / "source", replicas=replicas)
    assert contents(restored) == two
    assert contents(restored, start) == one
    restored.close()


def test_disk_without_hard_links_writes_removed_rows(
    loaded: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Files, source: str, target: str) -> None:
        raise DurabilityError("cannot link", hint="none", errno=errno.EOPNOTSUPP)

    start, before = loaded.now, contents(loaded)
    monkeypatch.setattr(Files, "link", refuse)
    load(loaded, ROWS)
    assert not removed_files(Path(parts_folder(loaded)))
    assert contents(loaded) == expected(tmp_path / "two", ROWS)
    assert contents(loaded, start) == before


def test_interrupt_at_any_link_leaves_no_file(
    loaded: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch that fails while it names files a second time has no effect, and can be repeated."""
    folder, before = Path(parts_folder(loaded)), contents(loaded)
    files, epoch = sorted(os.listdir(folder)), loaded.now
    link = Files.link
    for stop in range(1, 4):
        calls = 0

        def interrupted(self: Files, source: str, target: str, stop: int = stop) -> None:
            nonlocal calls
            calls += 1
            if calls == stop:
                raise KeyboardInterrupt
            link(self, source, target)

        monkeypatch.setattr(Files, "link", interrupted)
        with pytest.raises(KeyboardInterrupt):
            load(loaded, ROWS)
        monkeypatch.setattr(Files, "link", link)
        loaded.discard()
        assert calls == stop
        assert (loaded.now, contents(loaded)) == (epoch, before)
        assert sorted(os.listdir(folder)) == files
    load(loaded, ROWS)
    assert removed_files(folder)


def test_program_without_opposite_counts_refuses_log(
    loaded: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failure: 1. An older program reads a file under its second name. 2. It adds the rows."""
    path = loaded.path
    load(loaded, ROWS)
    for checkpoint in (False, True):
        if checkpoint:
            checkpoint_now(loaded)
        loaded.close()
        with monkeypatch.context() as older:
            older.setattr(json_text, "KNOWN", json_text.KNOWN - {json_text.REMOVED})
            with pytest.raises(CorruptLogError, match="'removed', which this program"):
                Store.open(path, mode="r")
        loaded = create(Path(path))
    loaded.close()
