"""Bounds of part files and packs: valid checksums with offsets outside the buffers.

Another process reads them, because a crash would end the test run.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from checks.logs import read_checkpoint_of
from faults.faults import HastyFiles
from internals import checkpoint_now, looked, served, services_of, snapshot_of

import nosync_nb
from nosync_nb import CorruptLogError
from nosync_nb.operators import Linear
from nosync_nb.rows import Schema
from nosync_nb.spark import error_translation
from nosync_nb.spark.execution import bulk_run, shuffle_records, tasks
from nosync_nb.spark.execution.tasks import PlanPayload
from nosync_nb.spark.staging.location import StagingArea
from nosync_nb.spark.views import snapshot_server
from nosync_nb.store.log import checkpoint
from nosync_nb.store.records import payloads
from nosync_nb.trace import Layer, Trace
from nosync_nb.trace.batch import Batch, Layout
from nosync_nb.trace.history import pack_file
from nosync_nb.trace.parts import arrow_file, part_file
from nosync_nb.trace.parts.part_file import PartRef

DISK = HastyFiles()
TYPES = "k int, name string, tags array<string>"
ROWS = [(k, f"name {k}", [f"tag {k}", "x" * k]) for k in range(40)]


pytestmark = pytest.mark.usefixtures("own_key", "large_from_four_rows")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with a part and a pack that ends with a checkpoint."""
    with nosync_nb.open(tmp_path / "log") as session:
        rows = session.input("rows", TYPES)
        rows.insert(ROWS)
        session.commit()
        rows.insert([(100, "late", ["a"]), (101, "late", [])])  # a small change goes into the pack
        session.commit()
        checkpoint_now(session)
    return tmp_path / "log"


def leading_outside(array: pa.Array) -> pa.Array:
    """The array with an offset far outside in its middle."""
    offsets = np.frombuffer(array.buffers()[1], np.int32).copy()
    offsets[array.offset + len(array) // 2] = 1 << 30
    buffers = array.buffers()
    if pa.types.is_list(array.type):
        made = [None, pa.py_buffer(offsets.tobytes())]
        return pa.Array.from_buffers(array.type, len(array), made, children=[array.values])
    return pa.Array.from_buffers(
        array.type, len(array), [None, pa.py_buffer(offsets.tobytes()), buffers[2]]
    )


def not_utf8(array: pa.Array) -> pa.Array:
    data = bytearray(array.buffers()[2])
    data[0] = 0xFF
    return pa.Array.from_buffers(
        array.type, len(array), [None, array.buffers()[1], pa.py_buffer(bytes(data))]
    )


BREAKS = {"text": (1, leading_outside), "list": (2, leading_outside)}


def rewrite(folder: Path, change: Any) -> None:
    """Replaces every part of the checkpoint by the result of `change`."""
    _, state = read_checkpoint_of(folder)
    payload = payloads.decode_payload(state.payload)
    made: dict[str, Any] = {}

    def replaced(ref: list[Any]) -> list[Any]:
        if ref[0] not in made:
            made[ref[0]] = list(change(PartRef(*ref)))
        return list(made[ref[0]])

    for _, _, layers in payload.meta["layers"].values():
        for layer in layers:
            layer[2] = layer[2] and [replaced(ref) for ref in layer[2]]
    assert made
    data = payloads.encode_payload(payload.epoch, payload.utc, payload.meta, payload.entries)
    checkpoint.write_checkpoint(DISK, str(folder), state._replace(payload=data))


def rewritten_part(layers: str, ref: PartRef, column: int, change: Any) -> PartRef:
    """Rewrites a part by our own code with one column changed."""
    found, record, _ = arrow_file.open_mapped(layers, ref.path, ref.size_bytes, ref.digest)
    arrays = list(record.columns)
    arrays[column] = change(arrays[column])
    head = {key: value for key, value in found.items() if key != "format"}
    name = f"broken{column}-{ref.path}"
    Path(layers, name).unlink(missing_ok=True)
    size, digest = arrow_file.write_arrow(layers, name, record.schema.names, arrays, head, DISK)
    return ref._replace(path=name, size_bytes=size, digest=digest)


READ = """
import sys
import nosync_nb
from nosync_nb import CorruptLogError
from nosync_nb.session.maintenance import maintenance
from nosync_nb.store import store
store.SPILL_ROWS = maintenance.SPILL_ROWS = 4
for mode in ("r", "w"):
    with nosync_nb.open(sys.argv[1], mode=mode) as session:
        for at in (None, 1, 2):
            try:
                print("read", sorted(map(repr, session["rows"].rows(at))))
            except CorruptLogError as error:
                print("refused:", error)
"""


@pytest.mark.parametrize("kind", BREAKS)
@pytest.mark.parametrize("signer", ["own", "other"])
def test_part_with_offsets_outside_is_reported_without_crash(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, signer: str
) -> None:
    layers = str(log / "layers")
    with nosync_nb.open(log, mode="r") as session:
        whole = [sorted(map(repr, session["rows"].rows(at))) for at in (None, 1, 2)]
    rewrite(log, lambda ref: rewritten_part(layers, ref, *BREAKS[kind]))
    if signer != "own":
        monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "another"))
    run = subprocess.run(
        [sys.executable, "-c", READ, str(log)], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, (run.returncode, run.stderr)
    lines = run.stdout.splitlines()
    assert len(lines) == 6
    assert lines[0].startswith("refused:")
    assert "layers/broken" in lines[0]
    if signer == "own":  # the owner rebuilds the part from the log
        assert lines[3:] == [f"read {rows}" for rows in whole]
    else:
        assert lines[3].startswith("refused:")


def test_invalid_utf8_in_untrusted_log_is_reported(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = str(log / "layers")
    rewrite(log, lambda ref: rewritten_part(layers, ref, 1, not_utf8))
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "another"))
    for mode in ("r", "w"):
        session = nosync_nb.open(log, mode=mode)  # type: ignore[arg-type]
        with session, pytest.raises(CorruptLogError, match="cannot be read"):
            session["rows"].rows()


def test_unordered_hashes_in_untrusted_log_are_reported(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def turned(array: pa.Array) -> pa.Array:
        values = array.to_numpy().copy()
        values[1:-1] = values[1:-1][::-1]
        return pa.array(values)

    rewrite(log, lambda ref: rewritten_part(str(log / "layers"), ref, 3, turned))
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "another"))
    session = nosync_nb.open(log, mode="r")
    with session, pytest.raises(CorruptLogError, match="do not ascend"):
        session["rows"].rows()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The checks of records, each thorough or not."""
    calls: list[bool] = []
    check = arrow_file.check_record

    def counted(record: Any, types: Any, *, thorough: bool, **more: Any) -> None:
        calls.append(thorough)
        check(record, types, thorough=thorough, **more)

    for module in (part_file, pack_file):
        monkeypatch.setattr(module, "check_record", counted)
    return calls


def test_own_log_is_not_checked_value_by_value(
    log: Path, seen: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signed log costs only its checksums, and is mapped on access."""
    for mode in ("r", "w"):
        with nosync_nb.open(log, mode=mode) as session:  # type: ignore[arg-type]
            assert seen == []
            assert len(session["rows"].rows()) == len(ROWS) + 2
            assert len(session["rows"].rows(at=1)) == len(ROWS)
        assert set(seen) == {False}
        seen.clear()
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(log.parent / "another"))
    with nosync_nb.open(log) as session:
        assert len(session["rows"].rows()) == len(ROWS) + 2
        assert len(session["rows"].rows(at=1)) == len(ROWS)
    assert set(seen) == {True}


def test_untrusted_log_deletes_nothing(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (log / "layers" / "unreferenced.arrow").write_bytes(b"12345678")
    before = {p.name for p in (log / "layers").iterdir()}
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "another"))
    nosync_nb.open(log).close()
    assert {p.name for p in (log / "layers").iterdir()} == before
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "key"))
    nosync_nb.open(log).close()
    assert not (log / "layers" / "unreferenced.arrow").exists()


def broken_packs(folder: Path) -> list[tuple[str, tuple[str, int, str], int]]:
    """Packs with one invalid section each: the defect, the pack, the trace."""
    _, state = read_checkpoint_of(folder)
    node = payloads.decode_payload(state.payload).meta["history"]["tree"][0]
    history = str(folder / "history")
    pack = pack_file.Pack(history, *node[:3])
    number, section = next((n, s) for n in pack.numbers for s in pack.sections(n) if s.levels)
    level = section.levels[0]
    far = np.array([1 << 40])
    count = len(section.columns[0])
    bad = {
        "rows": level._replace(row=np.full(len(level.diff), 1 << 40)),
        "rows below": level._replace(row=np.full(len(level.diff), -1)),
        "groups": level._replace(starts=np.concatenate([level.starts[:-1], far])),
        "groups back": level._replace(starts=level.starts[::-1].copy()),
        "lengths": level._replace(group=np.concatenate([level.group, level.group])),
        "entries": level._replace(row=None, diff=np.ones(count + 1, np.int64)),
        "no integers": level._replace(group=level.group.astype(np.float64)),
    }
    made = []
    for what, each in bad.items():
        sections = [(number, section._replace(levels=(each, *section.levels[1:])))]
        made.append((what, pack_file.write_pack(history, sections, "bad", files=DISK), number))
    columns = list(section.columns)
    columns[1] = leading_outside(nosync_nb.rows.to_arrow(columns[1], "string"))
    sections = [(number, section._replace(columns=columns))]
    made.append(("text", pack_file.write_pack(history, sections, "bad", files=DISK), number))
    return made


def test_pack_with_offsets_outside_is_reported(log: Path) -> None:
    for what, pack, number in broken_packs(log):
        with pytest.raises(CorruptLogError) as caught:
            pack_file.Pack(str(log / "history"), *pack).sections(number)
        assert "cannot be read" in str(caught.value), what


@pytest.mark.parametrize("thorough", [False, True])
def test_file_with_other_columns_is_refused(tmp_path: Path, thorough: bool) -> None:
    folder = str(tmp_path)
    hashes = pa.array(np.arange(3, dtype=np.uint64))
    text, numbers = pa.array(["a", "b", "c"]), pa.array([1, 2, 3], pa.int32())
    layout = nosync_nb.trace.batch.Layout(("int", "string"), (0,))
    heads: list[Any] = [{"layout": layout, "rows": 3}, {"rows": 3}, {"layout": 5, "rows": 3}, {}]
    arrays: dict[str, list[pa.Array]] = {
        "good": [numbers, text, hashes],
        "dictionary": [numbers, text.dictionary_encode(), hashes],
        "other numbers": [numbers.cast(pa.int64()), text, hashes],
        "hashes of text": [numbers, text, text],
        "no hashes": [numbers, text],
        "nulls": [numbers, text, pa.array([1, None, 3], pa.uint64())],
        "large text": [numbers, text.cast(pa.large_string()), hashes],
    }
    for what, columns in arrays.items():
        for at, head in enumerate(heads if what == "good" else heads[:1]):
            names = ["c0", "c1", "khash"][: len(columns)]
            name = f"x-{len(list(tmp_path.iterdir()))}.arrow"
            size, digest = arrow_file.write_arrow(folder, name, names, columns, head, DISK)
            ref = PartRef(name, 3, 0, 3, size, digest)
            if what == "good" and not at:
                opened = part_file.open_part(folder, ref, layout, checked=True, thorough=thorough)
                assert isinstance(opened, Batch)
                continue
            with pytest.raises(CorruptLogError):
                part_file.open_part(folder, ref, layout, checked=True, thorough=thorough)


# -- executors -------------------------------------------------------------------------------------


def part_of(log: Path) -> tuple[PartRef, Layout]:
    """The part of the checkpoint, and its layout."""
    with nosync_nb.open(log, mode="r") as session:
        trace = snapshot_of(session).contents("rows")
    return next(r for layer in trace.layers for r in layer.files), trace.layout


def executor_tasks(
    folder: str, ref: PartRef, layout: Layout, *, thorough: bool
) -> dict[str, bytes]:
    """Each kind of serialised executor task that reads a part."""
    ranges = shuffle_records.HashRanges(2)
    made: dict[str, Any] = {}
    operator: Any = Linear((), layout.types)
    outputs = [Layout(layout.types, (0,))]
    with PlanPayload.local(folder, "t", thorough=thorough) as shipping:
        pieces = [bulk_run.BulkInput([ref], layout.types, layout)]
        plan, work = bulk_run.plan_bulk_run(
            operator, pieces, (), outputs, shipping,
            stage="s", first=False, stem="t", ranges=ranges,
        )  # fmt: skip
        made["map"] = plan, work
        stored = shipping.trace(Trace(layout, (Layer(0, 1, (), (ref,)),)))
        made["cut"] = stored, shipping.depot
        made["read"] = stored, shipping.depot, Schema.parse(TYPES), ranges
    return {what: pickle.dumps(each) for what, each in made.items()}


def run_task(what: str, work: bytes) -> None:
    """Runs an executor task, and reads every value of its result."""
    given = pickle.loads(work)
    if what == "map":
        made = list(tasks.map_task(*given))
        for block in made:
            if block.port == shuffle_records.ERROR:
                raise error_translation.unpack_error(block.payload)
        types = given[0].outputs[0].types
        found = shuffle_records.join_records(
            [b.payload for b in made if b.port >= 0], types
        ).updates
        for column, type_ in zip(found.columns, types, strict=True):
            nosync_nb.rows.to_pylist(column, type_)
    elif what == "cut":
        stored, depot = given
        str(
            nosync_nb.rows.to_pylist(
                stored.cut(depot, 0, 2**64).consolidated().columns[1], "string"
            )
        )
    else:
        from nosync_nb.spark.views import data_source  # needs PySpark

        for place in range(2):
            for record in data_source.range_rows(*given, place):
                record.to_pylist()


WORK = """
import pickle, sys
from test_bounds_check import run_task
from nosync_nb import CorruptLogError
for what, work in pickle.load(sys.stdin.buffer):
    try:
        run_task(what, work)
        print("read", flush=True)
    except CorruptLogError as error:
        print("refused:", error, flush=True)
"""


def test_executors_report_offsets_outside_without_crash(log: Path) -> None:
    layers = str(log / "layers")
    ref, layout = part_of(log)
    good = executor_tasks(layers, ref, layout, thorough=False)
    broken = [
        each
        for kind in BREAKS.values()
        for each in executor_tasks(
            layers, rewritten_part(layers, ref, *kind), layout, thorough=False
        ).items()
    ]
    run = subprocess.run(
        [sys.executable, "-c", WORK], input=pickle.dumps([*good.items(), *broken]),
        capture_output=True, timeout=60, cwd=Path(__file__).parent,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert run.returncode == 0, (run.returncode, run.stderr)
    lines = run.stdout.decode().splitlines()
    assert lines[:3] == ["read"] * 3
    assert len(lines) == 9
    assert all(line.startswith("refused:") and "layers/broken" in line for line in lines[3:]), lines


@pytest.mark.parametrize("what", ["map", "cut", "read"])
def test_executors_check_every_value_of_untrusted_log(log: Path, what: str) -> None:
    layers = str(log / "layers")
    ref, layout = part_of(log)
    bad = rewritten_part(layers, ref, 1, not_utf8)
    with pytest.raises(CorruptLogError, match="cannot be read"):
        run_task(what, executor_tasks(layers, bad, layout, thorough=True)[what])


def test_served_snapshot_says_if_log_is_trusted(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for foreign in (False, True):
        if foreign:
            monkeypatch.setenv("NOSYNC_KEY_FILE", str(log.parent / "another"))
        for mode in ("r", "w"):
            with nosync_nb.open(log, mode=mode) as session:  # type: ignore[arg-type]
                found = services_of(session).spark_connection.snapshot("rows", None)
                assert found.thorough is foreign
        assert served(str(log), "rows").trace.thorough is foreign
    answers = snapshot_server.SnapshotAnswers()
    answer = answers.answer("rows", found.trace, found.folder, thorough=True)
    assert answer.trace.thorough
    answer.end()
    answers.close()


def test_executor_checks_a_part_once(
    log: Path, seen: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    ref, layout = part_of(log)
    for thorough in (False, True):
        for what, work in executor_tasks(
            str(log / "layers"), ref, layout, thorough=thorough
        ).items():
            run_task(what, work)
    assert seen == [False, True]
    monkeypatch.setattr(tasks, "LOOKED_MAX", looked())
    tasks.open_checked_part(StagingArea(str(log / "layers")), ref, layout, thorough=False)
    assert looked() == 1, "the cache is bounded"
