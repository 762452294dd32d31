"""Arrow messages of untrusted logs: compressed buffers are refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from faults.compressed_arrow import CompressingArrow, compressed

from nosync_nb.errors import CorruptLogError
from nosync_nb.store.log import batch_codec
from nosync_nb.trace import checksums
from nosync_nb.trace.batch import Layout, Updates, arrange
from nosync_nb.trace.history import pack_file
from nosync_nb.trace.parts import arrow_file, part_file

TEXTS = ["x" * 2000] * 500
LAYOUT = Layout(("int", "array<string>"))
CODECS = ["zstd", "lz4"]


def updates() -> Updates:
    texts = pa.array([[text] for text in TEXTS], pa.list_(pa.string()))
    return Updates([np.arange(500, dtype=np.int32), texts], np.ones(500, np.int64))


def assert_refused(call: Any, match: str = "compressed") -> None:
    """Asserts that a call is refused without decoding."""
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptLogError, match=match):
        call()
    assert pa.total_allocated_bytes() - before < 1 << 16


def read_all(path: Path) -> Any:
    content = path.read_bytes()
    return lambda offset, size: content[offset : offset + size]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("thorough", [False, True])
def test_part_with_compressed_buffers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str, *, thorough: bool
) -> None:
    batch = arrange(LAYOUT, updates())
    with monkeypatch.context() as patch:
        patch.setattr(arrow_file, "pa", CompressingArrow(codec))
        ref = part_file.write_part(str(tmp_path), batch, "bomb")
        loose = part_file.write_updates(str(tmp_path), updates(), LAYOUT.types, "loose")
    assert ref.size_bytes < 100_000 < sum(map(len, TEXTS))
    folder = str(tmp_path)
    assert_refused(
        lambda: part_file.open_part(folder, ref, LAYOUT, checked=True, thorough=thorough)
    )
    for each in (ref, loose):
        read = read_all(tmp_path / each.path)
        (flaw,) = checksums.file_damage(each.path, read, each.size_bytes, each.digest)
        assert flaw.why == arrow_file.COMPRESSED


@pytest.mark.parametrize("codec", CODECS)
def test_pack_with_compressed_buffers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    section = pack_file.Section(LAYOUT, 0, 1, updates().columns, (), ())
    encode = pa.RecordBatch.serialize
    assert callable(encode)

    class Compressed:
        """A record batch that is serialised with compressed buffers."""

        def __init__(self, batch: pa.RecordBatch) -> None:
            self._batch = batch

        def serialize(self) -> pa.Buffer:
            return compressed(self._batch, codec)

    class Arrow(CompressingArrow):
        def record_batch(self, *args: Any, **options: Any) -> Any:
            return Compressed(pa.record_batch(*args, **options))

    whole = pack_file.write_pack(str(tmp_path), [(7, section)], "good")
    with monkeypatch.context() as patch:
        patch.setattr(pack_file, "pa", Arrow(codec))
        bad = pack_file.write_pack(str(tmp_path), [(7, section)], "bad")
    assert len(pack_file.Pack(str(tmp_path), *whole).sections(7)[0].columns[0]) == 500
    assert_refused(lambda: pack_file.Pack(str(tmp_path), *bad).sections(7))
    assert checksums.file_damage(whole[0], read_all(tmp_path / whole[0]), *whole[1:]) == []
    (flaw,) = checksums.file_damage(bad[0], read_all(tmp_path / bad[0]), *bad[1:])
    assert flaw == checksums.FileDamage(arrow_file.COMPRESSED, 7)


@pytest.mark.parametrize("name", CODECS)
def test_frame_batch_with_compressed_buffers_is_refused(name: str) -> None:
    columns, diff = updates()
    good = batch_codec.encode_batch(columns, LAYOUT.types, diff)
    record = pa.RecordBatch.from_arrays([columns[1]], ["0"])
    plain = record.serialize().to_pybytes()
    assert good.endswith(plain)
    bad = good.removesuffix(plain) + compressed(record, name).to_pybytes()
    assert len(batch_codec.decode_batch(good, LAYOUT.types)[1]) == 500
    assert_refused(lambda: batch_codec.decode_batch(bad, LAYOUT.types))


def test_header_with_offsets_outside_is_refused() -> None:
    header = bytes(pa.ipc.read_message(updates_message()).metadata)
    assert arrow_file.is_compressed(header) is False
    refusals = 0
    for at in range(0, len(header) - 4, 2):
        for number in (b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\0\0\0\0"):
            try:
                arrow_file.is_compressed(header[:at] + number + header[at + 4 :])
            except ValueError:
                refusals += 1
    assert refusals
    for size in range(len(header)):
        try:
            arrow_file.is_compressed(header[:size])
        except ValueError:
            refusals += 1
    for prefix in (b"", b"\xff" * 7, b"\xff" * 8, bytes(8), b"\xff\xff\xff\xff\0\0\0\0"):
        with pytest.raises(ValueError, match="message"):
            arrow_file.header_size(prefix)


def updates_message() -> pa.Buffer:
    return pa.record_batch([updates().columns[1]], names=["0"]).serialize()


def test_part_is_read_at_its_messages_whatever_footer_names(tmp_path: Path) -> None:
    """So only the checked messages are decoded."""
    batch = arrange(LAYOUT, updates())
    ref = part_file.write_part(str(tmp_path), batch, "whole")
    path = os.path.join(str(tmp_path), ref.path)
    found = pa.ipc.open_file(pa.memory_map(path)).get_batch(0)
    opened = part_file.open_part(str(tmp_path), ref, LAYOUT, checked=True)
    assert opened.columns[1].equals(found.column(1))
