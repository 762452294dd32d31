"""Writes and maps parts: immutable files with the rows of a layer, or with updates of a job.

A part is an Arrow file (arrow_file.py), whose header names the layout and the number of rows. Its
columns are the data columns `c0, c1, ..`, then `khash`, `rhash` (omitted if it equals `khash`),
`code` (if the layout has an order) and `diff` (omitted if every diff is 1). A column with few
distinct texts is stored as one-byte codes, and the header has the texts. The suffix of the file
name is then `CODED`.

If an epoch removes all rows of a part, its frame does not contain them again. Their file gets a
second name, a hard link that ends with `REMOVED`. A part of such a name has the rows of the file
with opposite counts. It is shipped, verified and deleted by its own name, like any other part.

A layer may have several parts, which are disjoint and ascending in key hash. Parts that remove the
rows of other layers follow, and are in an order of their own. Each has at most
`ROWS_MAX` rows and `BYTES_MAX` bytes, unless a single key hash has more: all rows of one key hash
are in the same part.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa

from nosync_nb.errors import CorruptLogError
from nosync_nb.files.filesystem import Files
from nosync_nb.files.memory_map import FileEnd
from nosync_nb.files.safe_names import PART, checked_file_name, checked_path_within
from nosync_nb.rows import buffers, dictionary
from nosync_nb.rows.arrow import Column, to_arrow
from nosync_nb.trace.batch import Batch, Diffs, Layout, Updates
from nosync_nb.trace.parts.arrow_file import (
    DISK,
    UNSOUND,
    WITH_TEXTS,
    check_record,
    damaged_file_error,
    load_file,
    open_mapped,
    store_file,
    write_arrow,
)

ROWS_MAX = 4 << 20
BYTES_MAX = 1 << 30
CODED = f"-coded{PART}"
"""The suffix of the file name of a part with coded columns."""

REMOVED = f"-removed{PART}"
"""The suffix of the file name of a part whose counts are the opposite of those in the file."""

REMOVED_CODED = f"-removed{CODED}"
"""The corresponding suffix of a part with coded columns."""

CODED_ROWS = 4096
"""Parts with fewer rows have no coded columns, because codes would cost more than they save."""

FRAME = "frame-"
"""The prefix of the names of files whose rows came from a Spark DataFrame; used for placement."""


class MappedBatch(Batch):
    """A batch whose rows are in a mapped part file.

    Attributes:
        is_there: returns True if the file still has the length that it had when it was mapped. It
            takes 1 us.
        again: maps the current file of the same name.
    """

    __slots__ = ("again", "is_there")

    def __init__(self, batch: Batch, ending: FileEnd, again: Callable[[], Batch]) -> None:
        super().__init__(
            batch.layout, batch.columns, batch.khash, batch.rhash, batch.diff, batch.code
        )
        self.is_there, self.again = ending.is_there, again

    def __reduce__(self) -> Any:
        return Batch, (self.layout, self.columns, self.khash, self.rhash, self.diff, self.code)


def readable(parts: tuple[Batch, ...]) -> tuple[Batch, ...]:
    """Returns parts that can be read: a part whose file was truncated is mapped again.

    Raises:
        CorruptLogError: if such a file was not repaired.

    Cost: 1 us for each mapped part.
    """
    for part in parts:  # a loop, which is faster than `any`, because each lookup runs it
        if type(part) is MappedBatch and not part.is_there():
            break
    else:
        return parts
    return tuple(
        part.again() if isinstance(part, MappedBatch) and not part.is_there() else part
        for part in parts
    )


class PartRef(NamedTuple):
    """The reference to a part in the log, as a plain tuple of JSON values.

    Args:
        path: the file name, relative to the folder of parts.
        rows: the number of rows.
        low, high: the key hashes of the part are in `[low, high)`; `high` may be 2**64.
        size_bytes: the size of the file.
        digest: the digest of the checksums of the contents.
    """

    path: str
    rows: int
    low: int
    high: int
    size_bytes: int
    digest: str

    @property
    def from_frame(self) -> bool:
        """True if most of the rows came from a Spark DataFrame, or were computed from such rows."""
        return self.path.startswith(FRAME)

    @property
    def removes(self) -> bool:
        """True if the counts of the part are the opposite of those in its file."""
        return self.path.endswith((REMOVED, REMOVED_CODED))

    @property
    def contents(self) -> PartRef:
        """The reference with only the sign of its counts as a name; equal for equal rows."""
        return self._replace(path=REMOVED if self.removes else "")


def refs_from_json(data: Iterable[Any]) -> tuple[PartRef, ...]:
    """Reads references from a log, and validates them, because they name files to open and delete.

    Raises:
        CorruptLogError: if a reference is malformed, or does not name a part file.
    """
    return tuple(map(_checked_ref, data))


def frame_rows(refs: Iterable[PartRef]) -> int:
    """Counts the rows of the files whose rows came from a Spark DataFrame."""
    return sum(ref.rows for ref in refs if ref.from_frame)


def _checked_ref(data: Any) -> PartRef:
    if not isinstance(data, list | tuple) or len(data) != len(PartRef._fields):
        raise CorruptLogError(
            f"the log names a part file by {type(data).__name__}, not by its six fields",
            hint="restore the log from a copy",
        )
    ref = PartRef(*data)
    checked_file_name(ref.path, PART)
    counts = all(type(number) is int and 0 <= number <= 2**64 for number in ref[1:5])
    if not counts or not isinstance(ref.digest, str):
        raise CorruptLogError(
            f"the log names '{ref.path}' with an invalid size or digest",
            hint="restore the log from a copy",
        )
    return ref


def write_part(
    folder: str, batch: Batch, stem: str, *, files: Files = DISK, sync_folder: bool = True
) -> PartRef:
    """Writes a batch as one new file, and syncs the file and its folder.

    Args:
        stem: the prefix of the name (stage, interval, generation). A unique suffix follows, so two
            attempts never write the same file.
        sync_folder: False if the caller syncs the folder.

    Raises:
        DurabilityError: if the write fails; no usable file is left.
    """
    batch.check()
    names = [f"c{i}" for i in range(len(batch.columns))]
    arrays, texts = _stored_columns(batch)
    extra: dict[str, Any] = {"khash": batch.khash}
    if batch.rhash is not batch.khash:
        extra["rhash"] = batch.rhash
    if batch.code is not None:
        extra["code"] = batch.code
    if not (batch.diff == 1).all():
        extra["diff"] = batch.diff
    names += extra
    arrays += [buffers.arrow_from_numpy(values) for values in extra.values()]
    head: dict[str, Any] = {"layout": batch.layout, "rows": len(batch)}
    if texts:
        head |= {"format": WITH_TEXTS, "texts": texts}
    path = _unique_name(stem, CODED if texts else PART)
    size, digest = write_arrow(folder, path, names, arrays, head, files)
    if sync_folder:
        files.sync_folder(folder)
    bounds = (int(batch.khash[0]), int(batch.khash[-1]) + 1) if len(batch) else (0, 0)
    return PartRef(path, len(batch), *bounds, size, digest)


def _stored_columns(batch: Batch) -> tuple[list[pa.Array], dict[str, list[str]]]:
    """Returns the columns in their stored form, and the texts of dictionary-encoded columns.

    The texts are keyed by the position of the column.
    """
    arrays, texts = [], {}
    for i, (column, type_) in enumerate(zip(batch.columns, batch.layout.types, strict=True)):
        few = encode_few_texts(column, type_)
        if few is None:
            arrays.append(store_file(column, type_))
        else:
            codes, texts[str(i)] = dictionary.sorted_dictionary(few)
            arrays.append(codes)
    return arrays, texts


def encode_few_texts(column: Column, type_: str) -> pa.DictionaryArray | None:
    """Dictionary-encodes a column with few distinct texts and many rows; None for any other."""
    if type_ != "string" or len(column) < CODED_ROWS:
        return None
    return dictionary.dictionary_encoded(
        to_arrow(column, type_) if isinstance(column, np.ndarray) else column
    )


def write_parts(
    folder: str, batches: Iterable[Batch], stem: str, *, files: Files = DISK
) -> list[PartRef]:
    """Writes batches that are disjoint and ascending in key hash as parts of bounded size.

    A batch is dropped before the next one is requested, so an iterator needs memory for one batch.

    Raises:
        DurabilityError: if the write fails; no usable file is left.
    """
    refs: list[PartRef] = []
    try:
        for batch in batches:
            for piece in split(batch):
                refs.append(write_part(folder, piece, stem, files=files, sync_folder=False))
                del piece
            del batch
        if refs:
            files.sync_folder(folder)
    except BaseException:
        for ref in refs:
            files.unlink(checked_path_within(folder, ref.path))
        raise
    return refs


def write_and_release(
    folder: str, batches: Iterable[Batch], layout: Layout, stem: str, *, files: Files = DISK
) -> tuple[list[Batch], list[PartRef]]:
    """Writes batches with `write_parts`, and maps the files, so that memory can be released.

    Raises:
        DurabilityError: if the write fails; no file is left.
        MemoryError: if the files cannot be mapped; no file is left.
    """
    refs = write_parts(folder, batches, stem, files=files)
    try:
        return [open_part(folder, ref, layout, files=files) for ref in refs], refs
    except BaseException:
        for ref in refs:
            files.unlink(checked_path_within(folder, ref.path))
        raise


def link_removed(
    folder: str, refs: Sequence[PartRef], stem: str, *, files: Files = DISK
) -> list[PartRef]:
    """Gives parts a second name, under which they have opposite counts; no row is written.

    The caller syncs the folder.

    Args:
        refs: parts in this folder, none of which has opposite counts already.

    Raises:
        DurabilityError: if a link fails, for example because the file system has no hard links; no
            link is left.
    """
    linked: list[PartRef] = []
    try:
        for ref in refs:
            assert not ref.removes
            first = f"{FRAME}{stem}" if ref.from_frame else stem
            path = _unique_name(first, REMOVED_CODED if ref.path.endswith(CODED) else REMOVED)
            source = checked_path_within(folder, ref.path)
            files.link(source, checked_path_within(folder, path))
            linked.append(ref._replace(path=path))
    except BaseException:
        for ref in linked:
            files.unlink(checked_path_within(folder, ref.path))
        raise
    return linked


def split(batch: Batch, rows_max: int = ROWS_MAX, bytes_max: int = BYTES_MAX) -> Iterator[Batch]:
    """Splits a batch into pieces of bounded size.

    All rows of one key hash stay in the same piece, even if they exceed a bound.
    """
    n = len(batch)
    size = sum(c.nbytes for c in batch.columns) + 24 * n
    count = max(-(-n // rows_max), -(-size // bytes_max))
    cuts = {0, n}
    if count > 1:
        middles = batch.khash[np.arange(1, count) * n // count]
        cuts.update(batch.khash.searchsorted(middles).tolist())
        if len(cuts) == 2:  # the rows of the first key hash reach beyond the last middle
            cuts.add(int(batch.khash.searchsorted(batch.khash[0], "right")))
    if len(cuts) == 2 and n:
        yield batch
    elif n:
        for start, stop in pairwise(sorted(cuts)):
            yield from split(batch.slice(start, stop), rows_max, bytes_max)


def open_part(
    folder: str,
    ref: PartRef,
    layout: Layout,
    *,
    files: Files = DISK,
    checked: bool = False,
    thorough: bool = False,
) -> Batch:
    """Maps a part.

    Args:
        checked: True to verify the checksum of every block, which reads the whole file, and to
            check that no offset points outside. A file that this process has already verified and
            still maps is not verified again, because a branch and its parent share files.
        thorough: True to validate every value as well.

    Raises:
        CorruptLogError: if the file is missing, is not the one that `ref` names, or if a check
            finds damage; `checksums` verifies the whole file.

    Cost: O(1) in the rows without `checked`; pages are read when they are touched.
    """
    identity = _identity(folder, ref, files) if checked and not thorough else None
    mapped = None if identity is None else _MAPPED_PARTS.get(identity)
    if mapped is not None and mapped.layout == layout and mapped.is_there():
        return mapped
    try:
        batch = _map_part(folder, ref, layout, files, checked=checked, thorough=thorough)
    except UNSOUND as error:
        raise damaged_file_error(folder, ref.path, f"it cannot be read: {error}") from error
    if identity is not None:
        _MAPPED_PARTS[identity] = batch
    return batch


_MAPPED_PARTS: WeakValueDictionary[tuple[Any, ...], MappedBatch] = WeakValueDictionary()
"""Mapped parts whose checksums were verified, by the identity of their files."""


def _identity(folder: str, ref: PartRef, files: Files) -> tuple[Any, ...] | None:
    """Returns the identity of a file, whatever its name, with the fields of its reference.

    Returns None if the identity is unknown.
    """
    own = files.identity(checked_path_within(folder, ref.path))
    return None if own is None else (*own, *ref.contents)


def _map_part(
    folder: str, ref: PartRef, layout: Layout, files: Files, *, checked: bool, thorough: bool
) -> MappedBatch:
    """Maps a part.

    Raises:
        CorruptLogError: if the file is damaged, or is not the one that `ref` names.
        Exception: one of `UNSOUND` if the contents are invalid.
    """
    header, record, ending = _open_file(folder, ref, files, checked=checked)
    stored_layout = header.get("layout")  # None if the file has unsorted updates
    if stored_layout is None or Layout.from_json(stored_layout) != layout:
        raise damaged_file_error(
            folder, ref.path, f"it is ordered by {stored_layout}, not by {layout}"
        )
    texts = {int(i): held for i, held in header.get("texts", {}).items()}
    if checked:
        check_record(record, layout.types, thorough=thorough, texts=texts)
    columns = [
        dictionary.dictionary_column(record.column(i), texts[i])
        if i in texts
        else load_file(record.column(i), type_)
        for i, type_ in enumerate(layout.types)
    ]
    extra = {name: record.column(name) for name in record.schema.names[len(columns) :]}
    n = record.num_rows
    khash = buffers.numbers(extra["khash"], np.uint64)
    rhash = buffers.numbers(extra["rhash"], np.uint64) if "rhash" in extra else khash
    diff = buffers.numbers(extra["diff"], np.int64) if "diff" in extra else _all_ones(n)
    code = buffers.numbers(extra["code"], np.uint64) if "code" in extra else None
    if ref.removes:
        diff = -diff if diff.strides[0] else np.broadcast_to(-diff[:1], n)
    batch = Batch(layout, columns, khash, rhash, diff, code)
    if n and (int(khash[0]), int(khash[-1]) + 1) != (ref.low, ref.high):
        raise damaged_file_error(folder, ref.path, "its hashes are not in the range the log names")
    if thorough and (khash[1:] < khash[:-1]).any():
        raise damaged_file_error(folder, ref.path, "its hashes do not ascend")
    reopen = partial(open_part, folder, ref, layout, files=files, checked=True, thorough=thorough)
    return MappedBatch(batch, ending, reopen)


def write_updates(
    folder: str, updates: Updates, types: Sequence[str], stem: str, *, files: Files = DISK
) -> PartRef:
    """Writes unsorted updates without hashes as one new file.

    The file is not synced, because only the next job of the same run reads it.
    """
    names = [f"c{i}" for i in range(len(types))]
    arrays = [store_file(c, t) for c, t in zip(updates.columns, types, strict=True)]
    if not (updates.diff == 1).all():
        names.append("diff")
        arrays.append(buffers.arrow_from_numpy(updates.diff))
    head = {"types": list(types), "rows": len(updates.diff)}
    path = _unique_name(stem)
    size, digest = write_arrow(folder, path, names, arrays, head, files, sync=False)
    return PartRef(path, len(updates.diff), 0, 2**64, size, digest)


def open_updates(folder: str, ref: PartRef, types: Sequence[str]) -> Updates:
    """Maps updates that `write_updates` has written.

    Cost: O(1) in the rows.
    """
    header, record, _ = _open_file(folder, ref, DISK)
    if header.get("types") != list(types):
        raise damaged_file_error(
            folder, ref.path, f"its columns are {header.get('types')}, not {types}"
        )
    columns = [load_file(record.column(i), t) for i, t in enumerate(types)]
    if "diff" in record.schema.names:
        return Updates(columns, buffers.numbers(record.column("diff"), np.int64))
    return Updates(columns, _all_ones(record.num_rows))


def _all_ones(n: int) -> Diffs:
    """Returns `n` diffs of 1 as a view of a single number, in O(1)."""
    return np.broadcast_to(np.int64(1), n)


def _unique_name(stem: str, ending: str = PART) -> str:
    """Returns a unique file name with the given prefix and suffix."""
    return f"{stem}-{uuid.uuid4().hex}{ending}"


def _open_file(
    folder: str, ref: PartRef, files: Files, *, checked: bool = False
) -> tuple[dict[str, Any], pa.RecordBatch, FileEnd]:
    header, record, ending = open_mapped(
        folder, ref.path, ref.size_bytes, ref.digest, files, checked=checked
    )
    if not record.num_rows == header["rows"] == ref.rows:
        raise damaged_file_error(folder, ref.path, f"it has {record.num_rows} rows, not {ref.rows}")
    return header, record, ending
