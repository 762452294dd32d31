"""Copies of logs in an object store, whose objects are created and never changed.

    bucket/prefix/LOG-ID/
      once                              created twice, to check that the store refuses the second
      state/NUMBER                      the records of the manifest chain; see `object_manifest`
      data/NUMBER-WRITER-DIGEST         bytes of a file that are too many for a record

A file is a sequence of pieces. Bytes appended to a segment are buffered until `sync`, which writes
one record of them, in one request. From time to time, small pieces are merged into larger ones
(`pieces_to_merge`). So a segment of n appends has about 15 log16(n) pieces, and a byte is sent
again for each merge.

`digest` returns the digest that was computed when the bytes were sent, because an object never
changes and the store has checksums of its own. It also checks that the objects exist. They are read
back only if another process has extended a segment, because this process cannot continue the digest
then.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from nosync_nb.errors import DurabilityError
from nosync_nb.store.replication import file_layout
from nosync_nb.store.replication.backends import object_manifest
from nosync_nb.store.replication.backends.object_manifest import (
    FileChange,
    FileContent,
    ManifestChain,
    ObjectPiece,
)
from nosync_nb.store.replication.backends.object_requests import ObjectStoreClient
from nosync_nb.store.replication.protocol import FencingGrant, LogName, OwnerTerm, ReplicaHoldings
from nosync_nb.store.replication.remote_call import Beat

EMBEDDED_BYTES = 1 << 16
"""The maximum number of bytes of each file that a record embeds."""

_PART_BYTES = 2 << 20
_CACHED_MAX = 2 * object_manifest.FAN
_READ_BYTES = 8 << 20
_ID = re.compile(r"[0-9a-f]{32}")


class ObjectSite:
    """A folder of an object store; see `ReplicaSite`."""

    def __init__(self, bucket: ObjectStoreClient) -> None:
        self._bucket = bucket

    def prepare(self) -> bool:
        """Checks the client only: there is no folder to create, and the store may be offline."""
        self._bucket.check()
        return True

    def logs(self, beat: Beat = lambda: None) -> dict[bytes, FencingGrant]:
        """Returns the grants of the logs that the site holds copies of, by log id."""
        grants = {}
        for name in self._bucket.folders():
            beat()
            if _ID.fullmatch(name):
                state = ManifestChain(self._bucket, name).current_state()
                if state is not None and any(map(file_layout.is_frames, state.files)):
                    grants[bytes.fromhex(name)] = state.promise
        return grants

    def replica(self, log_id: bytes) -> ObjectReplica:
        """Returns the copy of one log, which need not exist yet."""
        return ObjectReplica(self._bucket, log_id)


class _Growth:
    """New bytes of a file: the parts that were sent, and the buffered rest."""

    def __init__(self, name: str, start: int, digest: hashlib.blake2b | None) -> None:
        self.name, self.size, self.digest = name, start, digest
        self.parts: list[ObjectPiece] = []
        self.rest = bytearray()

    def add(self, data: bytes) -> None:
        """Adds bytes to the buffer, the size and the digest."""
        self.rest += data
        self.size += len(data)
        if self.digest is not None:
            self.digest.update(data)


class ObjectReplica:
    """The copy of one log in an object store; see `Replica`.

    Args:
        bucket: the folder for the copies of several logs.
        log_id: the id of this log.
    """

    def __init__(self, bucket: ObjectStoreClient, log_id: bytes) -> None:
        self._bucket = bucket
        self._chain = ManifestChain(bucket, log_id.hex())
        self._growths: dict[str, _Growth] = {}
        self._new_file: _Growth | None = None
        self._digests: dict[str, tuple[int, hashlib.blake2b]] = {}  # of segments, with their size
        self._cached_pieces: dict[tuple[str, int], bytes] = {}  # small pieces that will be merged

    @property
    def folder(self) -> str | None:
        """Always None, because the copy is not on this machine."""
        return None

    def promised(self) -> OwnerTerm | None:
        """Returns the term whose writes the copy accepts; None if it has no grant."""
        state = self._chain.current_state()
        return state.promise.term if state else None

    def promise(self, term: OwnerTerm, name: LogName) -> ReplicaHoldings:
        """Makes the copy reject all writes of earlier terms; returns the files that it holds."""
        self.close()
        self._chain.accept_term(term, name)
        return self.held()

    def held(self) -> ReplicaHoldings:
        """Returns the files that the copy holds."""
        state = self._chain.current_state()
        if state is None:
            return ReplicaHoldings("", {})
        sizes = {name: content.size for name, content in state.files.items()}
        return ReplicaHoldings(state.promise.incarnation, sizes)

    def store(self, term: OwnerTerm, name: str, offset: int, data: bytes, *, last: bool) -> None:
        """Writes the next piece of a new file, which appears with its last piece."""
        file_layout.file_path("", name)
        self._chain.reign(term)
        if offset == 0:
            self._new_file = _Growth(name, 0, hashlib.blake2b(digest_size=16))
        new = self._new_file
        if new is None or new.name != name or new.size != offset:
            self._new_file = None
            raise DurabilityError(
                f"'{self._chain.where}': a part of '{name}' at byte {offset}"
                " does not follow the file"
            )
        try:
            self._add_bytes(term, new, data)
            if last:
                self._commit(term, [new], keep=False)
        except BaseException:
            self._new_file = None
            raise
        if last:
            self._new_file = None

    def append(self, term: OwnerTerm, name: str, offset: int, data: bytes) -> None:
        """Appends to a segment at its end; the next `sync` makes the bytes durable."""
        growth = self._growths.get(name)
        if growth is None:
            self._chain.reign(term)
            content = self._content(name)
            at, digest = self._digests.get(name, (-1, None))
            hasher = digest.copy() if digest is not None and at == content.size else None
            growth = self._growths[name] = _Growth(name, content.size, hasher)
        if growth.size != offset:
            raise DurabilityError(
                f"'{self._chain.where}' holds {growth.size} bytes of '{name}', but the next"
                f" part begins at byte {offset}"
            )
        self._add_bytes(term, growth, data)

    def sync(self, term: OwnerTerm, seq: int | None) -> None:
        """Writes a record of the appended bytes, which proves that the term is still accepted.

        If there is nothing to write, the chain is checked instead.
        """
        state = self._chain.reign(term)
        if self._growths or seq not in (None, state.seq):
            self._commit(term, list(self._growths.values()), keep=True, seq=seq)
            self._growths.clear()
        else:
            self._chain.present(term)
            self._chain.refuse_if_extended(term)
            self._chain.clear()

    def acknowledged(self) -> int:
        """Returns the number of the last acknowledged frame; 0 if no frame was acknowledged."""
        state = self._chain.current_state()
        return state.seq if state else 0

    def digest(self, name: str, size: int) -> bytes:
        """Returns the digest of the first `size` bytes of a file; empty if an object is lost."""
        file_layout.file_path("", name)
        content = self._content(name)
        if content.digest and size >= content.size:
            if not self._objects_exist(content):
                content = self._content(name, fresh=True)
                return (
                    content.digest if size >= content.size and self._objects_exist(content) else b""
                )
            return content.digest
        hasher = hashlib.blake2b(digest_size=16)
        size = min(size, content.size)
        for start in range(0, size, _READ_BYTES):
            hasher.update(self.read(name, start, min(_READ_BYTES, size - start)))
        if size == content.size:
            self._digests[name] = size, hasher
        return hasher.digest()

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Returns `size` bytes of a file from an offset; fewer only at the end of the file."""
        file_layout.file_path("", name)
        before = self._chain.cached_state()
        try:
            return self._read_range(name, offset, size)
        except DurabilityError:
            if self._chain.current_state() is before:
                raise
            return self._read_range(name, offset, size)  # because pieces were merged meanwhile

    def _read_range(self, name: str, offset: int, size: int) -> bytes:
        grown = self._growths.get(name)
        pieces = self._content(name).pieces
        selected = []
        start, stop = 0, offset + size
        for piece in (*pieces, *grown.parts) if grown else pieces:
            low, high = max(offset, start), min(stop, start + piece.size)
            if low < high:
                selected.append(ObjectPiece(piece.key, piece.start + low - start, high - low))
            start += piece.size
        data = self._read_pieces(selected)
        if grown is not None and stop > start:
            data += grown.rest[max(0, offset - start) : stop - start]
        return data

    def discard(self, term: OwnerTerm, names: Iterable[str]) -> None:
        """Deletes files of the log."""
        state = self._chain.reign(term)
        changes = {name: None for name in names if name in state.files}
        for name in changes:
            self._growths.pop(name, None)
            self._digests.pop(name, None)
        if changes:
            self._chain.commit(term, changes, b"")
        else:
            self._chain.refuse_if_extended(term)

    def close(self) -> None:
        """Discards buffered bytes and cached pieces."""
        self._new_file = None
        self._growths.clear()
        self._digests.clear()
        self._cached_pieces.clear()

    # -- pieces ------------------------------------------------------------------------------

    def _content(self, name: str, *, fresh: bool = False) -> FileContent:
        state = self._chain.current_state() if fresh else self._chain.cached_state()
        if not fresh and (state is None or name not in state.files):
            state = self._chain.current_state()
        if state is None or name not in state.files:
            raise DurabilityError(f"'{self._chain.where}' has no data of '{name}'")
        return state.files[name]

    def _objects_exist(self, content: FileContent) -> bool:
        """Returns True if the objects of a file exist with all their bytes."""
        needed: dict[str, int] = {}
        for piece in content.pieces:
            needed[piece.key] = max(needed.get(piece.key, 0), piece.start + piece.size)
        sizes = self._bucket.sizes([self._chain.path(key) for key in needed])
        return all(size >= least for size, least in zip(sizes, needed.values(), strict=True))

    def _add_bytes(self, term: OwnerTerm, growth: _Growth, data: bytes) -> None:
        """Adds bytes to a file, and sends complete parts as objects."""
        growth.add(data)
        while len(growth.rest) >= _PART_BYTES:
            growth.parts.append(self._put_piece(term, bytes(growth.rest[:_PART_BYTES]), 0))
            del growth.rest[:_PART_BYTES]

    def _put_piece(self, term: OwnerTerm, data: bytes, rank: int) -> ObjectPiece:
        """Writes bytes as an object; its name contains the number of the next record.

        That record will refer to the object. If two files of the record have the same bytes, they
        share the object.
        """
        slot = self._chain.reign(term).slot + 1
        content_hash = hashlib.blake2b(data, digest_size=16).hexdigest()
        key = f"data/{slot:012d}-{self._chain.writer}-{content_hash}"
        self._bucket.put(self._chain.path(key), data)
        return ObjectPiece(key, 0, len(data), rank)

    def _commit(
        self, term: OwnerTerm, grown: list[_Growth], *, keep: bool, seq: int | None = None
    ) -> None:
        """Writes a record of new bytes of files.

        Args:
            keep: True if the bytes are appended; False if they replace the files.
        """
        files = self._chain.reign(term).files
        changes: dict[str, FileChange | None] = {}
        data = b""
        for growth in grown:
            pieces = files[growth.name].pieces if keep else ()
            more, rest, rank = growth.parts, bytes(growth.rest), 0
            if keep and rest and not more:
                count, rank = object_manifest.pieces_to_merge(pieces, len(rest))
                pieces, merged = pieces[: len(pieces) - count], pieces[len(pieces) - count :]
                rest = self._read_pieces(merged) + rest
            if len(rest) > EMBEDDED_BYTES:
                more = [*more, self._put_piece(term, rest, rank)]
            elif rest:
                more = [*more, ObjectPiece("", len(data), len(rest), rank)]
                data += rest
            digest = growth.digest.digest() if growth.digest is not None else b""
            changes[growth.name] = FileChange(len(pieces), tuple(more), digest)
        self._chain.commit(term, changes, data, seq)
        for growth in grown:
            self._cache_growth(growth)

    def _cache_growth(self, growth: _Growth) -> None:
        """Caches the digest and the last small piece of a segment, for the next append."""
        if not file_layout.is_segment(growth.name):
            return
        if growth.digest is not None:
            self._digests[growth.name] = growth.size, growth.digest
        state = self._chain.current_state()
        assert state is not None
        piece = state.files[growth.name].pieces[-1] if growth.rest else None
        if piece is not None and piece.rank == 0 and piece.size == len(growth.rest):
            self._cached_pieces[piece.key, piece.start] = bytes(growth.rest)
        while len(self._cached_pieces) > _CACHED_MAX:
            del self._cached_pieces[next(iter(self._cached_pieces))]

    def _read_pieces(self, pieces: Iterable[ObjectPiece]) -> bytes:
        """Returns the bytes of pieces; those that are not cached are requested in parallel."""
        pieces = list(pieces)
        missing = [p for p in pieces if (p.key, p.start) not in self._cached_pieces]
        read = iter(
            self._bucket.read_all((self._chain.path(p.key), p.start, p.size) for p in missing)
        )
        cached = (self._cached_pieces.get((p.key, p.start)) for p in pieces)
        return b"".join(
            next(read) if data is None else data[: piece.size]
            for piece, data in zip(pieces, cached, strict=True)
        )
