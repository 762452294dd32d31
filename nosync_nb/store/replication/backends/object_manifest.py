"""The manifest chain of a copy in an object store: numbered records that one writer may extend.

Each record lists the changed files of the copy: the pieces of each file, and the object and offset
of each piece. Short pieces are embedded in the record, after its JSON. About every `FAN`th record
is complete: it lists all files, so that the state can be read from few objects. A record that
begins a writer's term is kept forever, and contains little more than the grant.

    magic, size and checksum of the JSON | JSON | bytes of pieces

Other users may write to the store, so everything is checked before it is used.

A record's number is its object's name, and the object is created only if the name is free. So if
two writers create a record of the same number, one succeeds and the other is refused. There is no
other fencing: a promise is a record of the same chain, with which a writer begins its term.

Failure: an earlier owner continues after a later promise, at any moment: before it, during it, or
long after. 1. Its record precedes the promise: the writer of the promise has read it. 2. Its record
comes later: its number is taken by the promise, and it is refused. There is no moment between a
check and a write. Objects that it writes beside the chain, pieces of files, have names with its
token. They have no effect because no record of the chain names them.

Failure: obsolete records are deleted, and their numbers are free again. A writer that was suspended
would continue there. But the record after a writer's last one begins a term, and such records are
kept forever. They take a few hundred bytes for each process that ships, however many files there
are, because they only continue the state before them.

Failure: a request is not answered, and may be executed later, or never. The writer does not
continue from its cached state: it reads the chain again. If the request is executed after that,
either its number is taken, or the next record of the writer is refused once.

Failure: objects that a record makes obsolete are deleted, and then the record turns out not to
exist. Hence objects are deleted only when the record is known to exist, and no name is used twice.
"""

from __future__ import annotations

import json
import re
import secrets
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nosync_nb.errors import CorruptLogError, DurabilityError
from nosync_nb.store.replication import file_layout, protocol
from nosync_nb.store.replication.backends.object_requests import ObjectName, ObjectStoreClient
from nosync_nb.store.replication.protocol import FencingGrant, LogName, OwnerTerm

FAN = 16
"""The number of pieces of a segment that are merged into one, and of records per complete one."""

RECORD_BYTES_MAX = 64 << 20
"""The maximum size of a record in bytes; a larger object is not a record."""

MERGED_BYTES = 2 << 20
"""The maximum size of a merged piece in bytes."""

_MAGIC = b"nosync 1"
_HEAD = len(_MAGIC) + 8
_KEY = re.compile(r"state/\d{12}|data/\d{12}-[0-9a-f]{16}-[0-9a-f]{32}")
_TOKEN = re.compile(r"[0-9a-f]{16}")
_SLOT_MAX = 10**12
_SIZE_MAX = 1 << 50

_TRIES_MAX = 64


class ObjectPiece(NamedTuple):
    """A piece of a file: its object, offset and size, and how often it was merged (`rank`).

    An empty `key` means the record itself; then `start` counts from the end of its JSON.
    """

    key: str
    start: int
    size: int
    rank: int = 0


class FileContent(NamedTuple):
    """A file: its pieces in order, and the digest of all its bytes, which is empty if unknown."""

    pieces: tuple[ObjectPiece, ...]
    digest: bytes = b""

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return sum(piece.size for piece in self.pieces)


class FileChange(NamedTuple):
    """The change of a file: the number of retained pieces, the further pieces, and the digest."""

    keep: int
    more: tuple[ObjectPiece, ...]
    digest: bytes = b""


class CopyState(NamedTuple):
    """A copy after a record.

    Attributes:
        slot: the record's number.
        full: the number of the last complete record.
        promise: the grant of the copy.
        writer: token of the process that wrote the record.
        reigns: the numbers of the records with which writers began; they are kept forever.
        seq: the frame up to which the log can be read back.
        files: the files of the copy, by name.
    """

    slot: int
    full: int
    promise: FencingGrant
    writer: str
    reigns: tuple[int, ...]
    seq: int
    files: Mapping[str, FileContent]


class CopyRecord(NamedTuple):
    """The content of a record.

    Attributes:
        changes: the changed files, by name; a deleted file has the value None.
        reigns: as in `CopyState` if the record is complete; else None.
        begins: True if the record begins a writer's term and continues the state before it.
    """

    slot: int
    writer: str
    promise: FencingGrant
    seq: int
    changes: Mapping[str, FileChange | None]
    reigns: tuple[int, ...] | None
    begins: bool = False


def record_key(slot: int) -> str:
    """Returns the key of a record."""
    return f"state/{slot:012d}"


def record_slot(key: str) -> int | None:
    """Returns the number in the key of a record or a piece; None for any other key."""
    return int(key.split("/")[1][:12]) if _KEY.fullmatch(key) else None


def is_record(key: str) -> bool:
    """Returns True for the key of a record."""
    return key.startswith("state/") and record_slot(key) is not None


def pieces_to_merge(pieces: Sequence[ObjectPiece], size: int) -> tuple[int, int]:
    """Returns the number of last pieces to merge with appended bytes, and the rank of the result.

    Merging works like the carry of a counter: `FAN` pieces of one rank become one piece of the next
    rank. So each rank has fewer than `FAN` pieces, and each byte is written once more for each
    rank.

    Args:
        size: the number of appended bytes.
    """
    count = rank = 0
    while True:
        stop = len(pieces) - count
        run = pieces[max(0, stop - FAN + 1) : stop]
        size += sum(piece.size for piece in run)
        if len(run) < FAN - 1 or size > MERGED_BYTES or any(p.rank != rank for p in run):
            return count, rank
        count, rank = count + len(run), rank + 1


def encode_record(record: CopyRecord, data: bytes) -> bytes:
    """Encodes a record as an object, with the bytes of its pieces that have no key.

    Raises:
        DurabilityError: the record is too large.
    """
    fields = {
        "slot": record.slot,
        "writer": record.writer,
        "promise": protocol.encode_grant(record.promise).decode(),
        "seq": record.seq,
        "reigns": record.reigns,
        "begins": record.begins,
        "bytes": len(data),
        "files": {
            name: change and [change.keep, change.more, change.digest.hex()]
            for name, change in record.changes.items()
        },
    }
    encoded = json.dumps(fields, separators=(",", ":")).encode()
    head = len(encoded).to_bytes(4, "little") + zlib.crc32(encoded).to_bytes(4, "little")
    whole = b"".join((_MAGIC, head, encoded, data))
    if len(whole) > RECORD_BYTES_MAX:
        raise DurabilityError(
            f"too many files ({len(record.changes)}) for one manifest record of a copy in a bucket",
            hint="use folders or replica servers for the copies of this log",
        )
    return whole


def decode_record(data: bytes, where: str) -> CopyRecord:
    """Decodes a record; embedded pieces get the key of the record.

    Args:
        where: the name of the copy in error messages.

    Raises:
        CorruptLogError: the bytes are damaged, or are not a record.
    """
    size, crc = (int.from_bytes(data[at : at + 4], "little") for at in (_HEAD - 8, _HEAD - 4))
    encoded = data[_HEAD : _HEAD + size]
    try:
        if data[: len(_MAGIC)] != _MAGIC or zlib.crc32(encoded) != crc:
            raise ValueError("checksum")
        fields: dict[str, Any] = json.loads(encoded)
        slot, seq = (
            _checked_number(fields["slot"], _SLOT_MAX),
            _checked_number(fields["seq"], 1 << 63),
        )
        if len(data) != _HEAD + size + _checked_number(fields["bytes"], _SIZE_MAX):
            raise ValueError("size")
        if not _TOKEN.fullmatch(fields["writer"]):
            raise ValueError("writer")
        promise = protocol.decode_grant(fields["promise"].encode(), where)
        reigns = fields["reigns"]
        if reigns is not None:
            reigns = tuple(_checked_number(each, _SLOT_MAX) for each in reigns)
        changes = {
            name: _decode_change(name, each, record_key(slot), _HEAD + size)
            for name, each in fields["files"].items()
        }
        begins = fields.get("begins", False) is True
        return CopyRecord(slot, fields["writer"], promise, seq, changes, reigns, begins)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptLogError(
            f"a record of '{where}' is damaged: the contents of the copy are unknown",
            hint=f"delete '{where}', and the copy is created again",
        ) from error


def _decode_change(name: str, fields: Any, own_key: str, start: int) -> FileChange | None:
    if not file_layout.is_file(name):
        raise ValueError("name")
    if fields is None:
        return None
    keep, more, digest = fields
    pieces = []
    for key, at, size, rank in more:
        if key and not _KEY.fullmatch(key):
            raise ValueError("key")
        at = _checked_number(at, _SIZE_MAX) + (0 if key else start)
        pieces.append(
            ObjectPiece(
                key or own_key, at, _checked_number(size, _SIZE_MAX), _checked_number(rank, 64)
            )
        )
    return FileChange(_checked_number(keep, _SIZE_MAX), tuple(pieces), bytes.fromhex(digest))


def _checked_number(value: Any, limit: int) -> int:
    if type(value) is not int or not 0 <= value < limit:
        raise ValueError("number")
    return value


def state_after(state: CopyState | None, record: CopyRecord, where: str) -> CopyState:
    """Returns the state after a record.

    Raises:
        CorruptLogError: the record does not follow the state.
    """
    files: dict[str, FileContent] = {}
    if record.reigns is not None:
        reigns, full = record.reigns, record.slot
    elif state is not None and state.slot + 1 == record.slot and record.begins:
        reigns, full = (*state.reigns, record.slot), state.full
        files.update(state.files)
    elif state is not None and state.slot + 1 == record.slot and state.writer == record.writer:
        reigns, full = state.reigns, state.full
        files.update(state.files)
    else:
        raise CorruptLogError(f"a record of '{where}' does not follow the previous one")
    for name, change in record.changes.items():
        if change is None:
            files.pop(name, None)
            continue
        kept = files[name].pieces[: change.keep] if change.keep and name in files else ()
        if len(kept) != change.keep:
            raise CorruptLogError(f"a record of '{where}' appends to a file that does not exist")
        files[name] = FileContent(kept + change.more, change.digest)
    return CopyState(record.slot, full, record.promise, record.writer, reigns, record.seq, files)


class _PrunedError(Exception):
    """Records disappeared after they were listed, because the writer has deleted them."""


class ManifestChain:
    """The chain of one copy; all calls come from one thread.

    Args:
        bucket: the client for the folder of several copies.
        root: the folder of this copy, below that one.

    Attributes:
        where: the name of the copy in messages.
        writer: the random token of this object, which its records and pieces contain.
    """

    def __init__(self, bucket: ObjectStoreClient, root: str) -> None:
        self._bucket, self._root = bucket, root
        self.where = f"{bucket.where}/{root}"
        self.writer = secrets.token_hex(8)
        self._cached: tuple[ObjectName | None, CopyState | None] = (None, None)
        self._state: CopyState | None = None  # None while a request is unanswered
        self._successor: OwnerTerm | None = None
        self._uses: Counter[str] = Counter()  # pieces of the state in each object
        self._obsolete: set[str] = set()
        self._probed = False

    def path(self, key: str) -> str:
        """Returns the name of an object in the bucket."""
        return f"{self._root}/{key}"

    def current_state(self) -> CopyState | None:
        """Returns the current state of the copy; None if the chain is empty.

        Raises:
            CorruptLogError: the last record is damaged.
        """
        return self._state or self._read()

    def cached_state(self) -> CopyState | None:
        """Returns the cached state of the copy; reads the chain only if no state is cached."""
        return self._state or self._cached[1] or self._read()

    def reign(self, term: OwnerTerm) -> CopyState:
        """Returns the state of the copy, if a term may extend the chain.

        Raises:
            FencedError: the copy has accepted a later term.
            DurabilityError: the copy must be promised first, or again after a failed request.
        """
        if self._successor is not None:
            raise protocol.grant_conflict_error(self.where, self._successor)
        if self._state is None:
            raise DurabilityError(
                f"'{self.where}': its fencing record must be written again",
                hint="wait: NoSync tries again",
            )
        if self._state.promise.term != term:
            raise protocol.grant_conflict_error(self.where, self._state.promise.term)
        return self._state

    def accept_term(self, term: OwnerTerm, name: LogName) -> CopyState:
        """Makes the copy accept a term; see `Replica.promise`."""
        was, self._state = self._state, None
        self._probe_store()
        state = self._read()
        for _ in range(_TRIES_MAX):
            if state is None:
                state = CopyState(0, 0, _new_grant(name), "", (), 0, {})
            grant = state.promise
            if protocol.conflicts(grant.term, term):
                self._successor = grant.term
                raise protocol.grant_conflict_error(self.where, grant.term)
            if (state.writer, grant.term, grant.name) == (self.writer, term, name):
                return self._start_term(state, swept=state is was)
            new_grant = FencingGrant(term, grant.incarnation, name)
            slot = state.slot + 1
            first = CopyRecord(slot, self.writer, new_grant, state.seq, {}, None, begins=True)
            if state.full == 0:  # the state before it is lost
                first = first._replace(reigns=(*state.reigns, slot))
            other = self._create(first, encode_record(first, b""), state)
            if other is None:
                assert self._cached[1] is not None
                return self._start_term(self._cached[1], swept=False)
            state = self._state_after_other(state, other)
        raise DurabilityError(
            f"'{self.where}' is being written by another process", hint="try again"
        )

    def commit(
        self,
        term: OwnerTerm,
        changes: Mapping[str, FileChange | None],
        data: bytes,
        seq: int | None = None,
    ) -> None:
        """Appends a record atomically, and then deletes the objects that it makes obsolete.

        Args:
            data: the bytes of the changed pieces without a key, which the record embeds.
            seq: the frame up to which the log can be read back; `None` leaves it unchanged.
        """
        before = self.present(term)
        slot = before.slot + 1
        seq = before.seq if seq is None else seq
        record = CopyRecord(slot, self.writer, before.promise, seq, changes, None)
        if slot - before.full >= FAN - 1:
            record = _completed(before, record, self.where)
        encoded = encode_record(record, data)
        self._state = None  # unknown until the request is answered
        other = self._create(record, encoded, before)
        if other is not None:
            raise self._refused_error(other, term)
        self._state = self._cached[1]
        self._count_uses(before, changes)
        self.clear()

    def present(self, term: OwnerTerm) -> CopyState:
        """Returns the state of the copy, if its last known record still exists.

        Raises:
            DurabilityError: the copy was deleted, or an old version of it was put back.
        """
        state = self.reign(term)
        if not self._bucket.holds(self.path(record_key(state.slot))):
            self._state = None
            current = self._read()
            if current is not None and protocol.conflicts(current.promise.term, term):
                self._successor = current.promise.term  # a later owner has deleted the record
                raise protocol.grant_conflict_error(self.where, self._successor)
            raise DurabilityError(
                f"'{self.where}' was replaced by another copy",
                hint="wait: the next attempt fills it again",
            )
        return state

    def refuse_if_extended(self, term: OwnerTerm) -> None:
        """Raises FencedError or DurabilityError if another writer has extended the chain."""
        path = self.path(record_key(self.reign(term).slot + 1))
        if self._bucket.holds(path):
            self._state = None
            raise self._refused_error(
                decode_record(self._bucket.get(path, most=RECORD_BYTES_MAX) or b"", self.where),
                term,
            )

    def clear(self) -> None:
        """Deletes objects that no record names any more; the next call retries failed deletions."""
        if self._obsolete:
            self._bucket.delete(map(self.path, sorted(self._obsolete)))
            self._obsolete.clear()

    # -- reading -----------------------------------------------------------------------------

    def _read(self) -> CopyState | None:
        """Reads the state from the chain; None if it is empty."""
        for _ in range(_TRIES_MAX):
            listed = self._listed_records()
            if not listed:
                return None
            last = max(listed)
            try:
                return self._read_once(listed, last)
            except _PrunedError:
                continue
            except CorruptLogError:  # or the copy was replaced while it was read
                if self._listed_records().get(last) == listed[last]:
                    raise
        raise DurabilityError(
            f"'{self.where}' is being written by another process", hint="try again"
        )

    def _listed_records(self) -> dict[int, ObjectName]:
        """Returns the records that exist, by their numbers."""
        return {
            slot: each
            for each in self._bucket.listed(self.path("state"))
            if (slot := record_slot(each.key.removeprefix(f"{self._root}/"))) is not None
        }

    def _read_once(self, listed: Mapping[int, ObjectName], last: int) -> CopyState | None:
        if self._cached[0] == listed[last]:
            return self._cached[1]
        read: list[bytes | None] = []
        records: list[CopyRecord] = []
        first = last + 1
        while first - 1 in listed and not any(each.reigns is not None for each in records):
            stop = first
            while first - 1 in listed and stop - first < FAN:
                first -= 1
            batch = self._bucket.get_all(
                [listed[slot].key for slot in range(first, stop)], most=RECORD_BYTES_MAX
            )
            read = batch + read
            if read[-1] is None:
                raise _PrunedError
            records = self._decode_all(read)
            if len(records) < len(read):
                break  # records before a damaged one are useless
        whole = [i for i, record in enumerate(records) if record.reigns is not None]
        state: CopyState | None = None
        for record in records[whole[-1] :] if whole else ():
            state = state_after(state, record, self.where)
        if state is None and None in read:
            raise _PrunedError
        if state is None:
            state = _empty_state(records[-1])
        self._cached = listed[last], state
        return state

    def _decode_all(self, read: Sequence[bytes | None]) -> list[CopyRecord]:
        """Returns the records after the last damaged one; raises if the newest is damaged."""
        records: list[CopyRecord] = []
        for data in read:
            try:
                records.append(decode_record(data or b"", self.where))
            except CorruptLogError:
                if data is read[-1]:
                    raise
                records.clear()  # the next complete record starts over
        return records

    def _state_after_other(self, state: CopyState, other: CopyRecord) -> CopyState:
        """Returns the state after a record that another writer has created meanwhile."""
        try:
            return state_after(state, other, self.where)
        except CorruptLogError:
            self._cached = None, None
            current = self._read()
            if current is None:
                raise
            return current

    # -- writing -----------------------------------------------------------------------------

    def _probe_store(self) -> None:
        """Raises DurabilityError if the store creates an object twice, as some stores do."""
        once = self.path("once")
        if self._probed or self._bucket.create(once, b"") is None:
            self._probed = True
        elif self._bucket.create(once, b"") is not None:
            raise DurabilityError(
                f"'{self._bucket.where}' overwrites existing objects on a conditional create,"
                " so it cannot exclude a second writer",
                hint="use a store with conditional writes (If-None-Match)",
            )

    def _create(self, record: CopyRecord, data: bytes, before: CopyState) -> CopyRecord | None:
        """Creates a record; returns the existing record if the number is taken, else None."""
        path = self.path(record_key(record.slot))
        tag = self._bucket.create(path, data)
        if tag is None:
            existing = self._bucket.get(path, most=RECORD_BYTES_MAX)
            if existing is None:
                raise DurabilityError(  # caused by a concurrent request, which may itself fail
                    f"'{self.where}': another process is writing a record",
                    hint="wait: NoSync tries again",
                )
            if existing != data:
                return decode_record(existing, self.where)
            tag = ""  # the unanswered request was retried
        placed = decode_record(data, self.where)
        self._cached = (ObjectName(path, tag), state_after(before, placed, self.where))
        return None

    def _refused_error(self, other: CopyRecord, term: OwnerTerm) -> Exception:
        """Returns the error for a record that was refused because `other` has its number."""
        if protocol.conflicts(other.promise.term, term):
            self._successor = other.promise.term
            return protocol.grant_conflict_error(self.where, self._successor)
        return DurabilityError(
            f"'{self.where}' has changed: a request that had failed was executed later",
            hint="wait: NoSync tries again",
        )

    def _start_term(self, state: CopyState, *, swept: bool) -> CopyState:
        self._uses = Counter(
            piece.key for content in state.files.values() for piece in content.pieces
        )
        if not swept:
            self._sweep(state)
        self._state, self._successor = state, None
        return state

    def _sweep(self, state: CopyState) -> None:
        """Deletes objects that earlier writers and unanswered requests have left.

        Pieces of a record that is still being written are not deleted, because their number is that
        of the record, which is higher than the state's.
        """
        self._obsolete = set()
        for each in self._bucket.listed(self._root):
            key = each.key.removeprefix(f"{self._root}/")
            slot = record_slot(key)
            if slot is None or self._uses[key] or slot > state.slot:
                continue
            if not is_record(key) or (slot < state.full and slot not in state.reigns):
                self._obsolete.add(key)
        self.clear()

    def _count_uses(self, before: CopyState, changes: Mapping[str, FileChange | None]) -> None:
        """Updates the use counts of objects after a commit, and records the obsolete objects."""
        now = self._state
        assert now is not None
        candidates: set[str] = set()
        for name, change in changes.items():
            old = before.files[name].pieces if name in before.files else ()
            new = now.files[name].pieces if name in now.files else ()
            keep = change.keep if change is not None else 0
            self._uses.subtract(piece.key for piece in old[keep:])
            self._uses.update(piece.key for piece in new[keep:])
            candidates.update(piece.key for piece in old[keep:])
        if now.full == now.slot:
            candidates.update(map(record_key, range(before.full, now.slot)))
        for key in candidates:
            slot = record_slot(key)
            if self._uses[key] == 0 and slot is not None:
                del self._uses[key]
                record = is_record(key)
                if not record or (slot < now.full and slot not in now.reigns):
                    self._obsolete.add(key)


def _new_grant(name: LogName) -> FencingGrant:
    return FencingGrant(OwnerTerm(0, ""), secrets.token_hex(8), name)


def _empty_state(last: CopyRecord) -> CopyState:
    """Returns a state without files after a last record, because the records before it are lost."""
    promise = last.promise._replace(incarnation=secrets.token_hex(8))
    return CopyState(last.slot, 0, promise, "", (), 0, {})


def _all_changes(files: Mapping[str, FileContent]) -> dict[str, FileChange | None]:
    return {name: FileChange(0, each.pieces, each.digest) for name, each in files.items()}


def _completed(before: CopyState, record: CopyRecord, where: str) -> CopyRecord:
    """Returns a record as a complete one, which also lists the unchanged files."""
    after = state_after(before, record, where)
    return record._replace(changes=_all_changes(after.files), reigns=before.reigns)
