"""Hostile names in a log: no path outside is opened, written or deleted.

Each record that can hold a name gets a hostile one and is written by our own code, so that every
checksum matches. The log then reports the name, and changes no file.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from checks.logs import read_checkpoint_of
from faults.faults import HastyFiles
from internals import checkpoint_now, graph_of, merge_trace, traces_of

import nosync_nb
from nosync_nb import CorruptLogError
from nosync_nb.files.safe_names import (
    PACK,
    PART,
    checked_file_name,
    checked_path_within,
    is_safe_file_name,
)
from nosync_nb.store.log import Log, checkpoint
from nosync_nb.store.records import payloads
from nosync_nb.store.records.payloads import PayloadEntry
from nosync_nb.trace.history.pack_file import Pack, write_pack
from nosync_nb.trace.parts.arrow_file import map_file, write_file
from nosync_nb.trace.parts.part_file import PartRef

VICTIM = "victim.txt"
HOSTILE = {
    "above": "../../victim.txt",
    "above, as a part": "../../victim.arrow",
    "inside and out": "a/../../../victim.arrow",
    "two dots": "x..arrow",
    "absolute": "/nowhere/victim.arrow",
    "empty": "",
    "here": ".",
    "hidden": ".arrow",
    "a zero byte": "a\0.arrow",
    "a newline": "a\n.arrow",
    "a last newline": "a.arrow\n",
    "very long": "a" * 5000 + ".arrow",
    "owner": "owner",
    "generation": "generation",
    "lock": "lock",
    "memo": "notebook.json",
    "a checkpoint": "checkpoint-0000000000000001-00000001.state",
    "a segment": "segment-00000001-00000001.log",
    "a folder": "layers",
    "bidi": "a\u202ewa.arrow",
    "no text": ["a.arrow"],
    "nothing": None,
    "a number": 7,
}
SOME = ("above", "above, as a part", "absolute", "a zero byte", "generation", "no text")
"""The names that every field is tried with; the shared check is tried with all."""


pytestmark = pytest.mark.usefixtures("own_key", "large_from_four_rows")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with parts, packs, retired files and a tail, beside files that must not change."""
    folder = tmp_path / "log"
    with nosync_nb.open(folder) as session:
        rows = session.input("rows", "k int, v int")
        session.stage("sums", rows.group_by("k").agg(total="sum(v)"))
        for epoch in range(3):
            rows.insert([(k, epoch) for k in range(12)])
            session.commit()
        for number in list(traces_of(session)):
            merge_trace(session, number)
        checkpoint_now(session)
        rows.insert([(k, 9) for k in range(12)])
        session.commit()
    for victim in (tmp_path / VICTIM, tmp_path / "victim.arrow", folder / "notebook.json"):
        victim.write_bytes(b"mine")
    return folder


def in_checkpoint(field: str) -> Callable[[Path, Any], None]:
    """Puts a name into a field of the checkpoint, which our own code writes."""

    def replace_name(folder: Path, name: Any) -> None:
        disk = HastyFiles()
        _, state = read_checkpoint_of(folder)
        payload = payloads.decode_payload(state.payload)
        meta = copy.deepcopy(payload.meta)
        replaced = 0
        if field == "retired":
            meta["retired"].append(name)
            replaced = 1
        for _, _, layers in meta["layers"].values():
            for _, _, refs in layers:
                if refs and field == "layers":
                    refs[0][0] = name
                    replaced += 1
        for node in meta["history"]["tree"]:
            if field == "pack":
                node[0] = name
                replaced += 1
            if field == "parts of a pack" and node[9]:
                node[9][0] = name
                replaced += 1
        assert replaced
        data = payloads.encode_payload(payload.epoch, payload.utc, meta, payload.entries)
        checkpoint.write_checkpoint(disk, str(folder), state._replace(payload=data))

    return replace_name


def in_frame(kind: int, where: str) -> Callable[[Path, Any], None]:
    """Appends a frame with an entry that names a file."""

    def replace_name(folder: Path, name: Any) -> None:
        with Log.open(folder, files=HastyFiles(), background=False) as log:
            last = payloads.decode_payload(list(log.frames())[-1].payload)
            (part, *_) = [e for e in last.entries if e.kind == payloads.FILES]
            ref = json.loads(bytes(part.data))
            ref = ref["refs"][0] if isinstance(ref, dict) else ref[0]
            ref[0] = name
            data: Any = {
                "refs": [ref],
                "ordered refs": {"layout": [["int", "int"], None, None], "refs": [ref]},
                "layer": [0, last.epoch + 1, [ref]],
            }[where]
            entry = PayloadEntry(part.number, kind, json.dumps(data).encode())
            payload = payloads.encode_payload(last.epoch + 1, last.utc, {}, [entry])
            if kind == payloads.PAST:
                inner = PayloadEntry(part.number, payloads.FILES, json.dumps([ref]).encode())
                past = payloads.missed_epoch_entry(
                    payloads.encode_payload(last.epoch, last.utc, {}, [inner])
                )
                payload = payloads.encode_payload(last.epoch + 1, last.utc, {}, [past])
            log.append(payloads.EPOCH, payload)

    return replace_name


FIELDS = {
    "retired": in_checkpoint("retired"),
    "layers": in_checkpoint("layers"),
    "pack": in_checkpoint("pack"),
    "parts of a pack": in_checkpoint("parts of a pack"),
    "files of a log": in_frame(payloads.FILES, "refs"),
    "files of a log in another order": in_frame(payloads.FILES, "ordered refs"),
    "files of a trace": in_frame(payloads.TRACE, "layer"),
    "files of a new trace": in_frame(payloads.RESET, "layer"),
    "files of a missed epoch": in_frame(payloads.PAST, "refs"),
}


NUMBERS = [*range(14), 1 << 20, 2**31 - 1, 2**31, 2**32 - 1]


@pytest.mark.parametrize("inner", [False, True])
def test_epoch_that_clears_a_collection_is_refused(log: Path, tmp_path: Path, inner: bool) -> None:
    """An epoch may clear only traces of operators, never a row of a collection."""
    intact = tmp_path / "whole"
    shutil.move(log, intact)
    refused = set()
    for number in NUMBERS:
        shutil.copytree(intact, log)
        with Log.open(log, files=HastyFiles(), background=False) as opened:
            last = payloads.decode_payload(list(opened.frames())[-1].payload)
            entry = payloads.clear_entry(number)
            if inner:
                entry = payloads.missed_epoch_entry(
                    payloads.encode_payload(last.epoch + 1, last.utc, {}, [entry])
                )
            opened.append(
                payloads.EPOCH, payloads.encode_payload(last.epoch + 1, last.utc, {}, [entry])
            )
        for mode in ("r", "w"):
            try:
                with nosync_nb.open(log, mode=mode) as session:  # type: ignore[arg-type]
                    assert len(session["rows"].rows()) == 48, number
                    assert len(session["rows"].rows(at=1)) == 12, number
                    assert len(session["sums"].rows()) == 12, number
                    if mode == "w":
                        session["rows"].insert([(99, 1)])
                        assert session.commit() == last.epoch + 2
                        assert len(session["sums"].rows()) == 13, number
            except CorruptLogError:
                refused.add(number)
        shutil.rmtree(log)
    with nosync_nb.open(intact, mode="r") as session:
        nodes = list(graph_of(session))
    assert refused.issuperset(n for node in nodes for n in node.traces.values())
    assert refused.issuperset({2**31, 2**32 - 1})


def test_checkpoint_with_clear_entry_is_refused(log: Path) -> None:
    disk = HastyFiles()
    found, state = read_checkpoint_of(log)
    payload = payloads.decode_payload(state.payload)
    for number in range(4):
        entries = [*payload.entries, payloads.clear_entry(number)]
        data = payloads.encode_payload(payload.epoch, payload.utc, payload.meta, entries)
        (log / found).unlink(missing_ok=True)
        checkpoint.write_checkpoint(disk, str(log), state._replace(payload=data))
        with pytest.raises(CorruptLogError, match="of kind 5"):
            nosync_nb.open(log, mode="r")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, without the ownership files of the log."""
    changing = {"owner", "generation", "lock"}
    files = (p for p in sorted(folder.rglob("*")) if p.is_file() and p.name not in changing)
    return {str(p): p.read_bytes() for p in files if not p.name.startswith("segment-")}


@pytest.mark.fault(44)
@pytest.mark.parametrize("field", FIELDS)
def test_hostile_name_in_any_record_is_reported_and_harmless(
    log: Path, tmp_path: Path, field: str
) -> None:
    intact = tmp_path / "whole"
    shutil.move(log, intact)
    for what in SOME:
        shutil.copytree(intact, log)
        FIELDS[field](log, HOSTILE[what])
        before = contents(tmp_path)
        with suppress(CorruptLogError), nosync_nb.open(log, mode="r") as reader:
            assert len(reader["rows"].rows()) == 48  # the reader did not need the name
        with pytest.raises(CorruptLogError) as caught:
            nosync_nb.open(log)
        assert caught.value.hint, what
        assert len(str(caught.value).splitlines()) == 1, what
        assert len(str(caught.value)) < 300, what
        assert contents(tmp_path) == before, what
        shutil.rmtree(log)


def test_unmodified_log_opens(log: Path, tmp_path: Path) -> None:
    """Otherwise the test above would prove nothing."""
    with nosync_nb.open(log) as session:
        assert len(session["rows"].rows()) == 48
        assert session["rows"].rows(at=1) == [(k, 0) for k in range(12)]


def test_hostile_name_in_pack_is_reported(log: Path) -> None:
    """A section of a pack refers to part files; their names are checked before use."""
    disk = HastyFiles()
    _, state = read_checkpoint_of(log)
    node = next(n for n in payloads.decode_payload(state.payload).meta["history"]["tree"] if n[9])
    history = str(log / "history")
    pack = Pack(history, node[0], node[1], node[2])
    (number, section) = next((n, s) for n in pack.numbers for s in pack.sections(n) if s.large)
    epoch, refs = section.large[0]
    for hostile in HOSTILE.values():
        ref = refs[0]._replace(path=hostile)  # type: ignore[arg-type]
        bad = section._replace(large=((epoch, (ref,)),))
        name, size, digest = write_pack(history, [(number, bad)], "pack", files=disk)
        with pytest.raises(CorruptLogError):
            Pack(history, name, size, digest).sections(number)


def test_no_path_is_built_from_hostile_name(tmp_path: Path) -> None:
    (tmp_path / "layers").mkdir()
    folder = str(tmp_path / "layers")
    (tmp_path / VICTIM).write_bytes(b"mine")
    for name in HOSTILE.values():
        for act in (
            lambda name=name: checked_file_name(name, PART),
            lambda name=name: checked_path_within(folder, name, PART, PACK),
        ):
            with pytest.raises(CorruptLogError):
                act()
        if not isinstance(name, str) or is_safe_file_name(name):
            continue
        for act in (
            lambda name=name: map_file(folder, name),
            lambda name=name: write_file(folder, name, [b"x"]),
        ):
            with pytest.raises(CorruptLogError):
                act()
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["layers", VICTIM]


@pytest.mark.parametrize(
    "data",
    [
        None,
        "a.arrow",
        ["a.arrow"],
        ["a.arrow", -1, 0, 1, 8, "d"],
        ["a.arrow", 1, 0, 1, 2**65, "d"],
        ["a.arrow", 1.5, 0, 1, 8, "d"],
        ["a.arrow", True, 0, 1, 8, "d"],
        ["a.arrow", 1, 0, 1, 8, 5],
        {"path": "a.arrow"},
    ],
)
def test_invalid_part_reference_is_refused(data: Any) -> None:
    from nosync_nb.trace.parts.part_file import refs_from_json

    with pytest.raises(CorruptLogError):
        refs_from_json([data])
    assert refs_from_json([["a.arrow", 1, 0, 1, 8, "d"]]) == (PartRef("a.arrow", 1, 0, 1, 8, "d"),)
