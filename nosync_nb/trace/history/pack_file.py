"""Reads and writes packs: files with one section for each trace and layout that changed.

A section consists of a JSON header, an Arrow record batch with the distinct rows, and the arrays of
its levels in their memory format. Rows and levels are used in the mapped file, without a copy. A
directory at the end of the file has the position and the checksum of each section, so a read of one
trace does not touch the others.

Failure: the directory is checked when a pack is opened, a section when it is first used. A pack
that is missing, truncated or damaged raises `CorruptLogError`, which names it.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from nosync_nb.files.filesystem import Files
from nosync_nb.files.safe_names import PACK
from nosync_nb.rows import arrow_type
from nosync_nb.trace.batch import Layout
from nosync_nb.trace.history.sections import GridLevel, Section
from nosync_nb.trace.parts import arrow_file
from nosync_nb.trace.parts.arrow_file import (
    DISK,
    UNSOUND,
    check_level,
    check_record,
    cut_off,
    damaged_file_error,
    file_ending,
    load_file,
    map_file,
    store_file,
    write_file,
)
from nosync_nb.trace.parts.part_file import refs_from_json

MAGIC = int.from_bytes(b"NSPACK01", "little")
DIRECTORY = 5
"""The number of words of a directory entry: trace, offset, size, checksum, size of the header."""


def write_pack(
    folder: str, sections: Sequence[tuple[int, Section]], stem: str, *, files: Files = DISK
) -> tuple[str, int, str]:
    """Writes sections as a new file, and syncs the file and its folder.

    Args:
        sections: the sections, each with the number of its trace.
        stem: the prefix of the file name.

    Returns:
        the name of the file, its size in bytes, and its digest.
    """
    chunks: list[Any] = []
    directory = []
    offset = 0
    for number, section in sections:
        head, blobs = _encode(section)
        size = sum(map(len, blobs))
        directory += [number, offset, size, xxh3_64_intdigest(b"".join(blobs)), head]
        chunks += blobs
        offset += size
    table = np.array(directory, np.uint64).tobytes()
    count = len(sections).to_bytes(8, "little")
    chunks.append(table + count + MAGIC.to_bytes(8, "little"))
    name = f"{stem}-{uuid.uuid4().hex}{PACK}"
    size_bytes = write_file(folder, name, chunks, files)
    files.sync_folder(folder)
    return name, size_bytes, hashlib.blake2b(table, digest_size=16).hexdigest()


class Pack:
    """A mapped pack.

    Args:
        thorough: True to validate every value.

    Raises:
        CorruptLogError: if the file is missing, or its size or directory is not the expected one.

    Cost: to open it a few us for each section.
    """

    def __init__(
        self,
        folder: str,
        name: str,
        size_bytes: int,
        digest: str,
        *,
        files: Files = DISK,
        thorough: bool = False,
    ) -> None:
        self._folder, self._name, self._thorough = folder, name, thorough
        self._data = map_file(folder, name, files)
        if self._data.size != size_bytes:
            raise damaged_file_error(
                folder, name, f"it has {self._data.size} bytes, not {size_bytes}"
            )
        table, self._directory = _directory(self._data, folder, name)
        if hashlib.blake2b(table, digest_size=16).hexdigest() != digest:
            raise damaged_file_error(folder, name, "its directory does not match its checksum")
        self._ending = file_ending(self._data)
        self._sections: dict[int, tuple[Section, ...]] = {}

    @property
    def numbers(self) -> set[int]:
        """The numbers of the traces that have a section."""
        return {number for number, *_ in self._directory}

    def sections(self, number: int) -> tuple[Section, ...]:
        """Returns the sections of a trace, one for each layout that the trace had; may be empty.

        Raises:
            CorruptLogError: if a section is damaged, or the file was truncated.
        """
        if not self._ending.is_there():
            raise cut_off(self._folder, self._name)
        sections = self._sections.get(number)
        if sections is None:
            entries = [each for each in self._directory if each[0] == number]
            sections = tuple(self._section(*each) for each in entries)
            self._sections[number] = sections
        return sections

    def _section(self, number: int, offset: int, size: int, checksum: int, head: int) -> Section:
        """Decodes a section, after its checksum is verified."""
        data = self._data.slice(offset, size)
        if xxh3_64_intdigest(data) != checksum:
            raise damaged_file_error(
                self._folder,
                self._name,
                f"its section at offset {offset} does not match its checksum",
            )
        try:
            return _decode(data, head, thorough=self._thorough)
        except (*UNSOUND, OSError) as error:  # Arrow raises OSError for a truncated message
            why = f"its section at offset {offset} cannot be read: {error}"
            raise damaged_file_error(self._folder, self._name, why) from error


def _directory(data: pa.Buffer, folder: str, name: str) -> tuple[memoryview, list[list[int]]]:
    """Returns the directory of a mapped pack, as bytes and as entries."""
    words = np.frombuffer(data, np.uint64)
    count = int(words[-2]) if len(words) >= 2 and words[-1] == MAGIC else -1
    first = len(words) - 2 - DIRECTORY * count
    if count < 0 or first < 0:
        raise damaged_file_error(folder, name, "its end is missing or overwritten")
    table = words[first:-2]
    entries: list[list[int]] = table.reshape(count, DIRECTORY).tolist()
    if any(offset + size > first * 8 for _, offset, size, _, _ in entries):
        raise damaged_file_error(folder, name, "its directory does not match its checksum")
    return table.data.cast("B"), entries


def _encode(section: Section) -> tuple[int, list[Any]]:
    """Encodes a section, padded to a multiple of 8 bytes.

    Returns:
        the size of the header; and the header, followed by the other blobs of the section.
    """
    types = section.layout.types
    arrays = [store_file(c, t) for c, t in zip(section.columns, types, strict=True)]
    record = pa.record_batch(arrays, names=[f"c{i}" for i in range(len(arrays))])
    blobs: list[Any] = [*_padded(record.serialize())]
    offset = sum(map(len, blobs))
    levels = []
    for level in section.levels:
        places: list[tuple[str, int, int] | None] = []
        for array in level[1:]:
            if array is None:
                places.append(None)
                continue
            places.append((array.dtype.str, offset, len(array)))
            for blob in _padded(array.tobytes()):
                blobs.append(blob)
                offset += len(blob)
        levels.append((level.shift, places))
    header = {
        "layout": section.layout,
        "start": section.start,
        "stop": section.stop,
        "bytes": [i for i, a in enumerate(arrays) if a.type == pa.uint8()],
        "levels": levels,
        "large": section.large,
    }
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return len(head), [head, *blobs]


def _decode(data: pa.Buffer, head: int, *, thorough: bool) -> Section:
    """Decodes a section; columns and levels are views of the data."""
    header = json.loads(bytes(data.slice(0, head)))
    layout = Layout.from_json(header["layout"])
    bools = header["bytes"]
    schema = pa.schema(
        [
            pa.field(f"c{i}", pa.uint8() if i in bools else arrow_type(t))
            for i, t in enumerate(layout.types)
        ]
    )
    body = data.slice(head)
    record = arrow_file.record_batch(body, schema)
    check_record(record, layout.types, thorough=thorough)
    columns = [load_file(record.column(i), t) for i, t in enumerate(layout.types)]
    levels = []
    for shift, places in header["levels"]:
        arrays = [None if p is None else np.frombuffer(body, p[0], p[2], p[1]) for p in places]
        level = GridLevel(shift, *arrays)  # type: ignore[arg-type]
        check_level(level.starts, level.group, level.row, level.diff, record.num_rows)
        levels.append(level)
    large = tuple((epoch, refs_from_json(parts)) for epoch, parts in header["large"])
    return Section(layout, header["start"], header["stop"], columns, tuple(levels), large)


def _padded(blob: Any) -> Iterator[Any]:
    """Yields a blob, and zeros that pad it to a multiple of 8 bytes."""
    yield blob
    if len(blob) % 8:
        yield bytes(-len(blob) % 8)
