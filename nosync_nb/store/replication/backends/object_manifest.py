"""Account: what a copy in an object store holds, as a chain of records that one writer may extend.

A record's number is its object's name, and it is created only if there is none of that name. So of
two who go on at the same place one does and the other is refused. That is all the fencing there is:
a promise is a record in the same chain, with which a writer begins his reign.

Failure: an earlier owner goes on after a later promise, at any moment: before it was made, while it
is made, long after. 1. His record was made before the promise: the promise follows it, and who made
that has read it. 2. It comes later: its number is the promise's, and it is refused. There is no
moment at which he has looked and not yet written. What he writes beside the chain, pieces of files,
has names that hold his token, and counts for nothing since no record of the chain names it.

Failure: records that nobody needs any more are deleted, and a number that was taken is free again.
Who slept meanwhile would go on there. But what comes after the last record of a writer is the
beginning of a reign, and these stay for ever: some hundred bytes for each process that ships,
however many files there are, since it says only that it goes on with what is there.

Failure: a request is not answered, and may be done later, or never. The writer does not go on from
what he knows: he reads the chain again. If it is done after that, its number is taken, or it is
what the chain says then, and his next record is refused once.

Failure: what a record makes useless is deleted, and it turns out that the record never was. Hence
objects are deleted when the record is known to be there, never before, and no name is used twice.

Records: one step of a copy in an object store, as an object says it.

A copy is a chain of numbered records. Each says what changed of its files: of which pieces a file
is made, and where in which object a piece lies. Short pieces lie in the record itself, behind what
it says. Every `FAN`th or so says all, so that the state is read from few objects; one that begins a
writer's reign stays for ever, and says no more than that.

    magic, size of what it says, its checksum | what it says, as JSON | bytes of pieces

It comes from a place where others may write: everything is checked before it is believed.
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
from nosync_nb.store.replication import fencing_grant, file_layout
from nosync_nb.store.replication.backends.object_requests import ObjectName, ObjectStoreClient
from nosync_nb.store.replication.fencing_grant import FencingGrant
from nosync_nb.store.replication.protocol import LogName, OwnerTerm

FAN = 16
"""So many pieces of a segment are merged into one; after so many records one says all."""

RECORD_BYTES_MAX = 64 << 20
"""A record is not larger; what is cannot be one."""

MERGED_BYTES = 2 << 20
"""A piece is not merged beyond."""

_MAGIC = b"nosync 1"
_HEAD = len(_MAGIC) + 8
_KEY = re.compile(r"state/\d{12}|data/\d{12}-[0-9a-f]{16}-[0-9a-f]{32}")
_TOKEN = re.compile(r"[0-9a-f]{16}")
_SLOT_MAX = 10**12
_SIZE_MAX = 1 << 50

_TRIES_MAX = 64


class ObjectPiece(NamedTuple):
    """Bytes of a file: where they lie in an object, and how often pieces were merged into it.

    A `key` that is empty is that of the record which says so, and `start` counts from its end of
    words.
    """

    key: str
    start: int
    size: int
    rank: int = 0


class FileContent(NamedTuple):
    """A file: its pieces in order, and the digest of all its bytes; empty if that is not known."""

    pieces: tuple[ObjectPiece, ...]
    digest: bytes = b""

    @property
    def size(self) -> int:
        """Of the file, in bytes."""
        return sum(piece.size for piece in self.pieces)


class FileChange(NamedTuple):
    """What becomes of a file: how many of its pieces it keeps, and what comes after them."""

    keep: int
    more: tuple[ObjectPiece, ...]
    digest: bytes = b""


class CopyState(NamedTuple):
    """A copy after a record.

    Attributes:
        slot: the record's number.
        full: the number of the last one that says all.
        promise: whom the copy obeys.
        writer: who made the record, a token of a process.
        reigns: the numbers of the records with which writers began; they stay for ever.
        seq: the frame up to which the log can be read back.
    """

    slot: int
    full: int
    promise: FencingGrant
    writer: str
    reigns: tuple[int, ...]
    seq: int
    files: Mapping[str, FileContent]


class CopyRecord(NamedTuple):
    """What a record says.

    Attributes:
        reigns: as the state has them, if it says all; else None.
        begins: a reign, with what the record before it left.
    """

    slot: int
    writer: str
    promise: FencingGrant
    seq: int
    changes: Mapping[str, FileChange | None]
    reigns: tuple[int, ...] | None
    begins: bool = False


def record_key(slot: int) -> str:
    """The key of a record."""
    return f"state/{slot:012d}"


def record_slot(key: str) -> int | None:
    """The number that a key has; None if it is none of a record or of a piece."""
    return int(key.split("/")[1][:12]) if _KEY.fullmatch(key) else None


def is_record(key: str) -> bool:
    """Tells whether a key is one of a record."""
    return key.startswith("state/") and record_slot(key) is not None


def pieces_to_merge(pieces: Sequence[ObjectPiece], size: int) -> tuple[int, int]:
    """Returns how many of the last pieces become one with what is appended, and its rank.

    As a counter carries: `FAN` of a rank become one of the next, so that of each rank there are
    fewer, and each byte is written again once for each rank.

    Args:
        size: of what is appended.
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
    """Returns a record as an object, with the bytes of those of its pieces that have no key.

    Raises:
        DurabilityError: it says too much.
    """
    said = {
        "slot": record.slot,
        "writer": record.writer,
        "promise": fencing_grant.encode_grant(record.promise).decode(),
        "seq": record.seq,
        "reigns": record.reigns,
        "begins": record.begins,
        "bytes": len(data),
        "files": {
            name: change and [change.keep, change.more, change.digest.hex()]
            for name, change in record.changes.items()
        },
    }
    words = json.dumps(said, separators=(",", ":")).encode()
    head = len(words).to_bytes(4, "little") + zlib.crc32(words).to_bytes(4, "little")
    whole = b"".join((_MAGIC, head, words, data))
    if len(whole) > RECORD_BYTES_MAX:
        raise DurabilityError(
            f"a copy in a bucket cannot say of {len(record.changes)} files what they are made of",
            hint="keep this log's copies in folders or at servers",
        )
    return whole


def decode_record(data: bytes, where: str) -> CopyRecord:
    """Returns what a record says; its pieces have keys.

    Args:
        where: what people call the copy, for the error.

    Raises:
        CorruptLogError: it is damaged, or none.
    """
    size, crc = (int.from_bytes(data[at : at + 4], "little") for at in (_HEAD - 8, _HEAD - 4))
    words = data[_HEAD : _HEAD + size]
    try:
        if data[: len(_MAGIC)] != _MAGIC or zlib.crc32(words) != crc:
            raise ValueError("checksum")
        said: dict[str, Any] = json.loads(words)
        slot, seq = _number(said["slot"], _SLOT_MAX), _number(said["seq"], 1 << 63)
        if len(data) != _HEAD + size + _number(said["bytes"], _SIZE_MAX):
            raise ValueError("size")
        if not _TOKEN.fullmatch(said["writer"]):
            raise ValueError("writer")
        promise = fencing_grant.decode_grant(said["promise"].encode(), where)
        reigns = said["reigns"]
        if reigns is not None:
            reigns = tuple(_number(each, _SLOT_MAX) for each in reigns)
        changes = {
            name: _change(name, each, record_key(slot), _HEAD + size)
            for name, each in said["files"].items()
        }
        begins = said.get("begins", False) is True
        return CopyRecord(slot, said["writer"], promise, seq, changes, reigns, begins)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptLogError(
            f"a record of '{where}' is damaged: it cannot be told what the copy holds",
            hint=f"delete '{where}': the copy is made anew",
        ) from error


def _change(name: str, said: Any, own: str, start: int) -> FileChange | None:
    if not file_layout.is_file(name):
        raise ValueError("name")
    if said is None:
        return None
    keep, more, digest = said
    pieces = []
    for key, at, size, rank in more:
        if key and not _KEY.fullmatch(key):
            raise ValueError("key")
        at = _number(at, _SIZE_MAX) + (0 if key else start)
        pieces.append(ObjectPiece(key or own, at, _number(size, _SIZE_MAX), _number(rank, 64)))
    return FileChange(_number(keep, _SIZE_MAX), tuple(pieces), bytes.fromhex(digest))


def _number(said: Any, most: int) -> int:
    if type(said) is not int or not 0 <= said < most:
        raise ValueError("number")
    return said


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
        raise CorruptLogError(f"a record of '{where}' does not follow the one before it")
    for name, change in record.changes.items():
        if change is None:
            files.pop(name, None)
            continue
        kept = files[name].pieces[: change.keep] if change.keep and name in files else ()
        if len(kept) != change.keep:
            raise CorruptLogError(f"a record of '{where}' goes on with a file that is not there")
        files[name] = FileContent(kept + change.more, change.digest)
    return CopyState(record.slot, full, record.promise, record.writer, reigns, record.seq, files)


class _PrunedError(Exception):
    """Records that were listed are not there any more: who goes on has deleted them."""


class ManifestChain:
    """The chain of one copy; all calls from one thread.

    Args:
        root: the copy's folder in the bucket.

    Attributes:
        where: what people call the copy.
        writer: the token of whoever extends the chain here.
    """

    def __init__(self, bucket: ObjectStoreClient, root: str) -> None:
        self._bucket, self._root = bucket, root
        self.where = f"{bucket.where}/{root}"
        self.writer = secrets.token_hex(8)
        self._known: tuple[ObjectName | None, CopyState | None] = (None, None)
        self._state: CopyState | None = None  # of the own reign, while nothing is in doubt
        self._later: OwnerTerm | None = None
        self._uses: Counter[str] = Counter()  # pieces of the state that lie in an object
        self._useless: set[str] = set()
        self._tried = False

    def path(self, key: str) -> str:
        """The name of an object in the bucket."""
        return f"{self._root}/{key}"

    def look(self) -> CopyState | None:
        """What the copy holds; None if it holds nothing.

        Raises:
            CorruptLogError: the last record is damaged.
        """
        return self._state or self._read()

    def known(self) -> CopyState | None:
        """As `look`, as far as it was known before, if it was."""
        return self._state or self._known[1] or self._read()

    def reign(self, term: OwnerTerm) -> CopyState:
        """The state, if a term may go on with it.

        Raises:
            FencedError: the copy has promised itself to a later one.
            DurabilityError: it is to be promised first, or again after a request failed.
        """
        if self._later is not None:
            raise fencing_grant.grant_conflict_error(self.where, self._later)
        if self._state is None:
            raise DurabilityError(
                f"'{self.where}' is to be promised anew", hint="it is tried again"
            )
        if self._state.promise.term != term:
            raise fencing_grant.grant_conflict_error(self.where, self._state.promise.term)
        return self._state

    def begin(self, term: OwnerTerm, name: LogName) -> CopyState:
        """Has the copy promise itself; see `Replica.promise`."""
        was, self._state = self._state, None
        self._try()
        state = self._read()
        for _ in range(_TRIES_MAX):
            if state is None:
                state = CopyState(0, 0, _nobody(name), "", (), 0, {})
            said = state.promise
            if fencing_grant.conflicts(said.term, term):
                self._later = said.term
                raise fencing_grant.grant_conflict_error(self.where, said.term)
            if (state.writer, said.term, said.name) == (self.writer, term, name):
                return self._begun(state, swept=state is was)
            made = FencingGrant(term, said.incarnation, name)
            slot = state.slot + 1
            first = CopyRecord(slot, self.writer, made, state.seq, {}, None, begins=True)
            if state.full == 0:  # nothing is known that it could go on with
                first = first._replace(reigns=(*state.reigns, slot))
            other = self._create(first, encode_record(first, b""), state)
            if other is None:
                assert self._known[1] is not None
                return self._begun(self._known[1], swept=False)
            state = self._follow(state, other)
        raise DurabilityError(f"'{self.where}' is being written by somebody else", hint="try again")

    def commit(
        self,
        term: OwnerTerm,
        changes: Mapping[str, FileChange | None],
        data: bytes,
        seq: int | None = None,
    ) -> None:
        """Goes on with a record, all or nothing; then what it makes useless is deleted.

        Args:
            data: the bytes of those pieces of the changes that have no key.
        """
        before = self.present(term)
        slot = before.slot + 1
        seq = before.seq if seq is None else seq
        record = CopyRecord(slot, self.writer, before.promise, seq, changes, None)
        if slot - before.full >= FAN - 1:
            record = _whole(before, record, self.where)
        made = encode_record(record, data)
        self._state = None  # until the answer is there, it is not known what the state is
        other = self._create(record, made, before)
        if other is not None:
            raise self._refused(other, term)
        self._state = self._known[1]
        self._count(before, changes)
        self.clear()

    def present(self, term: OwnerTerm) -> CopyState:
        """Returns the state of the copy, if it has the last record that is known.

        Raises:
            DurabilityError: it was deleted, or an old version of it was put back.
        """
        state = self.reign(term)
        if not self._bucket.holds(self.path(record_key(state.slot))):
            self._state = None
            current = self._read()
            if current is not None and fencing_grant.conflicts(current.promise.term, term):
                self._later = current.promise.term  # a later owner has deleted the record
                raise fencing_grant.grant_conflict_error(self.where, self._later)
            raise DurabilityError(
                f"'{self.where}' is not the copy any more that it was",
                hint="it is filled anew at the next try",
            )
        return state

    def still(self, term: OwnerTerm) -> None:
        """Raises if somebody else has gone on with the copy."""
        path = self.path(record_key(self.reign(term).slot + 1))
        if self._bucket.holds(path):
            self._state = None
            raise self._refused(
                decode_record(self._bucket.get(path, most=RECORD_BYTES_MAX) or b"", self.where),
                term,
            )

    def clear(self) -> None:
        """Deletes objects that no record names any more; what cannot be is tried again."""
        if self._useless:
            self._bucket.delete(map(self.path, sorted(self._useless)))
            self._useless.clear()

    # -- reading -----------------------------------------------------------------------------

    def _read(self) -> CopyState | None:
        """What the chain says; None if it is empty."""
        for _ in range(_TRIES_MAX):
            there = self._there()
            if not there:
                return None
            last = max(there)
            try:
                return self._read_once(there, last)
            except _PrunedError:
                continue
            except CorruptLogError:  # or the copy was deleted and begun anew while it was read
                if self._there().get(last) == there[last]:
                    raise
        raise DurabilityError(f"'{self.where}' is being written by somebody else", hint="try again")

    def _there(self) -> dict[int, ObjectName]:
        """The records that there are, by their numbers."""
        return {
            slot: each
            for each in self._bucket.listed(self.path("state"))
            if (slot := record_slot(each.key.removeprefix(f"{self._root}/"))) is not None
        }

    def _read_once(self, there: Mapping[int, ObjectName], last: int) -> CopyState | None:
        if self._known[0] == there[last]:
            return self._known[1]
        read: list[bytes | None] = []
        said: list[CopyRecord] = []
        first = last + 1
        while first - 1 in there and not any(each.reigns is not None for each in said):
            stop = first
            while first - 1 in there and stop - first < FAN:
                first -= 1
            some = self._bucket.get_all(
                [there[slot].key for slot in range(first, stop)], most=RECORD_BYTES_MAX
            )
            read = some + read
            if read[-1] is None:
                raise _PrunedError
            said = self._decoded(read)
            if len(said) < len(read):
                break  # nothing before the one that cannot be read is any help
        whole = [i for i, record in enumerate(said) if record.reigns is not None]
        state: CopyState | None = None
        for record in said[whole[-1] :] if whole else ():
            state = state_after(state, record, self.where)
        if state is None and None in read:
            raise _PrunedError
        if state is None:
            state = _lost(said[-1])
        self._known = there[last], state
        return state

    def _decoded(self, read: Sequence[bytes | None]) -> list[CopyRecord]:
        """What records say, after the last one but the newest that cannot be read."""
        said: list[CopyRecord] = []
        for data in read:
            try:
                said.append(decode_record(data or b"", self.where))
            except CorruptLogError:
                if data is read[-1]:
                    raise
                said.clear()  # what follows is read if it says all
        return said

    def _follow(self, state: CopyState, other: CopyRecord) -> CopyState:
        """The state after a record that was made meanwhile."""
        try:
            return state_after(state, other, self.where)
        except CorruptLogError:
            self._known = None, None
            known = self._read()
            if known is None:
                raise
            return known

    # -- writing -----------------------------------------------------------------------------

    def _try(self) -> None:
        """Raises unless the store refuses to make an object twice: some take no heed of it."""
        once = self.path("once")
        if self._tried or self._bucket.create(once, b"") is None:
            self._tried = True
        elif self._bucket.create(once, b"") is not None:
            raise DurabilityError(
                f"'{self._bucket.where}' makes an object that is there already when it is asked to"
                " make a new one: no owner can be kept from writing there",
                hint="use a store with conditional writes (If-None-Match)",
            )

    def _create(self, record: CopyRecord, data: bytes, before: CopyState) -> CopyRecord | None:
        """Makes a record; returns the one that has taken its place, if one has."""
        path = self.path(record_key(record.slot))
        tag = self._bucket.create(path, data)
        if tag is None:
            there = self._bucket.get(path, most=RECORD_BYTES_MAX)
            if there is None:
                raise DurabilityError(  # a request that is refused then may be as well
                    f"'{self.where}': somebody else is making a record", hint="it is tried again"
                )
            if there != data:
                return decode_record(there, self.where)
            tag = ""  # the request was made twice, for want of an answer
        placed = decode_record(data, self.where)
        self._known = (
            ObjectName(path, tag),
            state_after(before, placed, self.where),
        )
        return None

    def _refused(self, other: CopyRecord, term: OwnerTerm) -> Exception:
        """Why a record of somebody else keeps a term from going on."""
        if fencing_grant.conflicts(other.promise.term, term):
            self._later = other.promise.term
            return fencing_grant.grant_conflict_error(self.where, self._later)
        return DurabilityError(
            f"'{self.where}' is not as it was: a request that failed was done later",
            hint="it is tried again",
        )

    def _begun(self, state: CopyState, *, swept: bool) -> CopyState:
        self._uses = Counter(
            piece.key for content in state.files.values() for piece in content.pieces
        )
        if not swept:
            self._sweep(state)
        self._state, self._later = state, None
        return state

    def _sweep(self, state: CopyState) -> None:
        """Deletes what earlier writers have left, and requests that were not answered.

        A piece that belongs to a record on its way has that record's number, which is not here yet.
        """
        self._useless = set()
        for each in self._bucket.listed(self._root):
            key = each.key.removeprefix(f"{self._root}/")
            slot = record_slot(key)
            if slot is None or self._uses[key] or slot > state.slot:
                continue
            if not is_record(key) or (slot < state.full and slot not in state.reigns):
                self._useless.add(key)
        self.clear()

    def _count(self, before: CopyState, changes: Mapping[str, FileChange | None]) -> None:
        """Notes which objects nothing lies in any more."""
        now = self._state
        assert now is not None
        gone: set[str] = set()
        for name, change in changes.items():
            old = before.files[name].pieces if name in before.files else ()
            new = now.files[name].pieces if name in now.files else ()
            keep = change.keep if change is not None else 0
            self._uses.subtract(piece.key for piece in old[keep:])
            self._uses.update(piece.key for piece in new[keep:])
            gone.update(piece.key for piece in old[keep:])
        if now.full == now.slot:
            gone.update(map(record_key, range(before.full, now.slot)))
        for key in gone:
            slot = record_slot(key)
            if self._uses[key] == 0 and slot is not None:
                del self._uses[key]
                record = is_record(key)
                if not record or (slot < now.full and slot not in now.reigns):
                    self._useless.add(key)


def _nobody(name: LogName) -> FencingGrant:
    """The promise of a copy that is begun."""
    return FencingGrant(OwnerTerm(0, ""), secrets.token_hex(8), name)


def _lost(last: CopyRecord) -> CopyState:
    """The state if its last record can be read and those before it cannot: it holds nothing."""
    promise = last.promise._replace(incarnation=secrets.token_hex(8))
    return CopyState(last.slot, 0, promise, "", (), 0, {})


def _all(files: Mapping[str, FileContent]) -> dict[str, FileChange | None]:
    return {name: FileChange(0, each.pieces, each.digest) for name, each in files.items()}


def _whole(before: CopyState, record: CopyRecord, where: str) -> CopyRecord:
    """The record, saying all: what is kept of a file is said as well."""
    after = state_after(before, record, where)
    return record._replace(changes=_all(after.files), reigns=before.reigns)
