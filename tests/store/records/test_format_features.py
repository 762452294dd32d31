"""Format features: additions of later releases are ignored, or refused in one line."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from internals import checkpoint_now

import nosync_nb
from nosync_nb import CorruptLogError
from nosync_nb.store import store
from nosync_nb.store.log import Log, checkpoint, frames, segments
from nosync_nb.store.records import json_text, payloads
from nosync_nb.trace.parts import part_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log with rows and a stage."""
    with nosync_nb.open(tmp_path / "log") as session:
        rows = session.input("rows", "k int")
        session.stage("some", rows.filter("k > 1"))
        rows.insert([(1,), (2,)])
        session.commit()
    return tmp_path / "log"


def append_frame(path: Path, kind: int, payload: bytes) -> None:
    """Appends a frame like a later program."""
    with Log.open(str(path)) as log:
        log.append(kind, payload)


def epoch(meta: dict[str, Any], entries: list[payloads.PayloadEntry] | None = None) -> bytes:
    return payloads.encode_payload(2, 0.0, meta, entries or [])


def refusals(path: Path) -> Iterator[str]:
    """The errors of a refused log in both modes; asserts that no file changes."""
    before = {p: p.read_bytes() for p in path.rglob("*") if p.suffix in (".log", ".state")}
    for mode in ("r", "w"):
        with pytest.raises(CorruptLogError) as message:
            nosync_nb.open(path, mode=mode)
        assert message.value.hint == "upgrade nosync; nothing was changed"
        assert "\n" not in str(message.value.args[0])
        yield str(message.value.args[0])
    assert {p: p.read_bytes() for p in before} == before


@pytest.mark.fault(45)
def test_optional_unknown_key_is_ignored(path: Path) -> None:
    append_frame(path, payloads.EPOCH, epoch({"hue": {"of": ["rows"]}}))
    with nosync_nb.open(path) as session:
        assert session.now == 2
        assert session["some"].rows() == [(2,)]


@pytest.mark.fault(45)
@pytest.mark.parametrize("kind", payloads.KINDS)
def test_required_unknown_key_is_refused(path: Path, kind: int) -> None:
    append_frame(path, kind, epoch({"hue": 1, json_text.NEEDS: ["hue"]}))
    message = "the log has 'hue', which this program does not know"
    assert list(refusals(path)) == [message, message]


@pytest.mark.fault(45)
def test_required_known_key_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "KNOWN", frozenset({"hue"}))
    append_frame(path, payloads.EPOCH, epoch({"hue": 1, json_text.NEEDS: ["hue"]}))
    with nosync_nb.open(path) as session:
        assert session.now == 2


@pytest.mark.fault(45)
def test_checkpoint_with_unknown_requirement_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = json_text.header_text

    def later(meta: Any, needs: Any = ()) -> bytes:
        return text({**meta, json_text.NEEDS: ["hue"]} if "layers" in meta else meta, needs)

    with monkeypatch.context() as patch, nosync_nb.open(path) as session:
        patch.setattr(json_text, "header_text", later)
        checkpoint_now(session)
        session.inputs["rows"].insert([(3,)])
        session.commit()
    message = "the log has 'hue', which this program does not know"
    assert list(refusals(path)) == [message, message]


def test_log_requires_intervals_while_a_column_holds_some(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with nosync_nb.open(path) as session:
        session.stage(
            "soon", session["rows"].filter("date '2020-01-01' + interval 1 day > date '2000-01-01'")
        )
        checkpoint_now(session)
    with monkeypatch.context() as patch:
        patch.setattr(json_text, "KNOWN", frozenset())
        nosync_nb.open(path).close()
    with nosync_nb.open(path) as session:
        session.stage("gaps", session["rows"].select("array(k * interval 1 day) AS g"))
        first = session["gaps"].rows()
    message = "the log has 'intervals', which this program does not know"
    for _ in range(2):  # by the frame of the definition, then by the checkpoint
        with monkeypatch.context() as patch:
            patch.setattr(json_text, "KNOWN", frozenset())
            for mode in ("r", "w"):
                with pytest.raises(CorruptLogError, match=message):
                    nosync_nb.open(path, mode=mode)
        with nosync_nb.open(path) as session:
            assert session["gaps"].rows() == first
            checkpoint_now(session)
    with nosync_nb.open(path) as session:
        session.drop("gaps")
        checkpoint_now(session)
        checkpoint_now(session)
    monkeypatch.setattr(json_text, "KNOWN", frozenset())
    nosync_nb.open(path).close()


def test_log_requires_coded_columns_if_a_file_has_some(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_file, "CODED_ROWS", 4)
    monkeypatch.setattr(store, "SPILL_ROWS", 4)
    with nosync_nb.open(path) as session:
        ways = session.input("ways", "n int, way string, span interval day")
        ways.insert([(n, ("rail", "ship")[n % 2], timedelta(n)) for n in range(100)])
        session.commit()
        first = ways.rows()
    for needed in ("coded", "intervals"):
        message = f"the log has '{needed}', which this program does not know"
        for _ in range(2):  # by the frame of the epoch, then by the checkpoint
            with monkeypatch.context() as patch:
                patch.setattr(json_text, "KNOWN", json_text.KNOWN - {needed})
                for mode in ("r", "w"):
                    with pytest.raises(CorruptLogError, match=message):
                        nosync_nb.open(path, mode=mode)
            with nosync_nb.open(path) as session:
                assert session["ways"].rows() == first
                checkpoint_now(session)


@pytest.mark.fault(45)
@pytest.mark.parametrize(
    ("kind", "entries", "unknown"),
    [
        (
            payloads.EPOCH,
            [payloads.PayloadEntry(1, payloads.UNDONE + 1, b"")],
            "an entry of kind 8",
        ),
        (max(payloads.KINDS) + 1, [], "a frame of kind 5"),
    ],
)
def test_unknown_kind_is_refused(path: Path, kind: int, entries: Any, unknown: str) -> None:
    append_frame(path, kind, epoch({}, entries))
    assert [*refusals(path)] == [f"the log has {unknown}, which this program does not know"] * 2


@pytest.mark.fault(45)
@pytest.mark.parametrize("pattern", ["segment-*", "checkpoint-*"])
def test_unknown_header_flag_is_refused(path: Path, pattern: str) -> None:
    with nosync_nb.open(path) as session:
        checkpoint_now(session)
    file = max(path.glob(pattern))
    data = bytearray(file.read_bytes())
    struct.pack_into("<I", data, 12, 1)
    end = checkpoint.HEADER_BYTES - 8 if pattern == "checkpoint-*" else segments.HEADER_BYTES - 8
    struct.pack_into("<I", data, end, zlib.crc32(data[:end]))
    file.write_bytes(data)
    assert all("flags 1, is newer than this program (1)" in message for message in refusals(path))


@pytest.mark.fault(45)
def test_unknown_owner_fields_are_ignored(path: Path) -> None:
    owner = path / "owner"
    fields = json.loads(owner.read_bytes().rsplit(b"\n", 2)[0])
    fields["hue"] = fields["identity"]["hue"] = fields["wrote"]["hue"] = fields["place"]["hue"] = 1
    text = json.dumps(fields).encode()
    owner.write_bytes(text + f"\n{zlib.crc32(text):08x}\n".encode())
    with nosync_nb.open(path) as session:
        assert session.now == 1
        assert session.recovery.clean


@pytest.mark.fault(45)
@pytest.mark.parametrize("number", [0, 2, 5, 6, 200])
def test_other_format_number_is_refused_in_one_line(number: int) -> None:
    with pytest.raises(CorruptLogError) as message:
        frames.check_format(number, frames.FORMAT, "frame 7")
    text = str(message.value.args[0])
    assert text.startswith(f"frame 7: log format {number} is ")
    assert text.endswith("this program (1)")
    newer = number > 1 and number not in frames.UNRELEASED
    assert ("newer" in text) == newer
    assert ("first release" in text) == (number in frames.UNRELEASED)
    assert ("upgrade" in str(message.value.hint)) == newer
