"""Ensures that only one process writes a log, and that a replaced owner does no harm.

There are three files. `lock` is locked only during an opening or a close, so that these run one
after the other. `owner` names the writer, for messages and to determine if it is alive.
`generation` holds words in mapped memory, for safety.

Failure: 1. An owner is stopped (SIGSTOP, a long call). 2. Another process takes over. 3. The old
owner continues. Hence a takeover rewrites the generation word in place and syncs it, *then* reads
the tail. An owner checks the word after each write and before it publishes, after each sync and
before `durable` rises; all owners of one machine see the same page. A frame that it wrote before
the word changed is in the tail that the new owner reads. A frame written afterwards is in a segment
of the old generation, beyond the offset where the new owner's segment begins. So it is no part of
the log. A lock does not suffice, because a stopped process keeps it. A lease with a time limit does
not suffice, because it ends while its holder sleeps.

Failure: 1. The disk is full when a log is closed, or in the middle of an opening. 2. `owner` still
names this process as the writer. Hence a process does not consult the file about itself: the leases
that it holds are in `_leases`, and it has released all others.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
from contextlib import closing

from nosync_nb.errors import CorruptLogError, DurabilityError, FencedError
from nosync_nb.files.filesystem import Files, Lock
from nosync_nb.files.memory_map import MappedFile
from nosync_nb.store.log import owner as owners
from nosync_nb.store.log.frames import FORMAT, check_format
from nosync_nb.store.log.owner import HostIdentity, LastWriter, LogOwner

OPEN_WAIT_S = 10.0
SILENT_S = float(os.environ.get("NOSYNC_SILENT_SECONDS") or 2.0)
"""Seconds without a heartbeat after which an owner on another host or container counts as dead."""
HEARTBEAT_S = min(0.5, SILENT_S / 4)

_WORDS = 512
_MAGIC = int.from_bytes(b"\x89NSYNCG\n", "little")
_MASK = (1 << 64) - 1
_HEAD, _FORMAT, _GENERATION, _INVERSE, _BEAT, _PUBLISHED, _DURABLE, _DURABLE_INVERSE = range(8)
_NOTED, _NOTED_INVERSE, _OUTBID, _OUTBID_INVERSE = 8, 9, 10, 11
_OUTBID_MAX = 1 << 22
_TAG_BITS, _VALUE_BITS = 20, 44


class ControlBlock:
    """The control words of a log, shared by all processes that map them."""

    def __init__(self, mapped: MappedFile) -> None:
        self._map = mapped
        self.words = mapped.words
        if len(self.words) < _WORDS or self.words[_HEAD] != _MAGIC:
            raise CorruptLogError(
                f"'{mapped.path}' is damaged",
                hint="delete it while no process uses the log; it is created again",
            )
        check_format(self.words[_FORMAT], FORMAT, f"'{mapped.path}'")

    @property
    def generation(self) -> int:
        """The generation that may write; 0 if the word is damaged."""
        word = self.words[_GENERATION]
        return word if word == self.words[_INVERSE] ^ _MASK else 0

    @property
    def beats(self) -> int:
        """The total number of heartbeats of all owners; a count, because clocks of hosts differ."""
        return self.words[_BEAT]

    def published(self, generation: int) -> int | None:
        """Returns the end offset of the frames that the owner of a generation has published."""
        place = _unpack_word(self.words[_PUBLISHED], generation)
        return None if place is None else place << 3

    def durable(self, generation: int) -> int | None:
        """Returns the number of the last frame that a generation's owner knew to be on disk."""
        return self._read_twice(_DURABLE, _DURABLE_INVERSE, generation)

    def last_note(self, generation: int) -> int | None:
        """Returns the last number that a generation's owner recorded; see `WriterLease.note`."""
        return self._read_twice(_NOTED, _NOTED_INVERSE, generation)

    @property
    def outbid(self) -> int:
        """The latest generation that a replica is known to accept; 0 if it is not known.

        A very large generation is ignored, because it would leave too few later ones.
        """
        word = self.words[_OUTBID]
        return word if word == self.words[_OUTBID_INVERSE] ^ _MASK and word < _OUTBID_MAX else 0

    def _read_twice(self, place: int, inverse: int, generation: int) -> int | None:
        """Returns the number in a word that is stored twice; None if the copies differ."""
        word = self.words[place]
        return None if word != self.words[inverse] ^ _MASK else _unpack_word(word, generation)

    def close(self) -> None:
        """Unmaps the words."""
        self._map.close()


class WriterLease(ControlBlock):
    """The right to write, until another process takes it. Only `check` has a cost.

    Before `acquire` it is a claim that other processes do not see. `give_up` undoes `acquire`.

    Attributes:
        owner: the new owner.
        before: the previous owner.
        number: the generation of the new owner.
    """

    def __init__(
        self,
        files: Files,
        folder: str,
        mapped: MappedFile,
        owner: LogOwner,
        before: LogOwner | None,
    ):
        super().__init__(mapped)
        self._files, self._folder = files, folder
        self.owner, self.before = owner, before
        self.number = owner.generation
        self._tag = (owner.generation & ((1 << _TAG_BITS) - 1)) << _VALUE_BITS
        self._pid = os.getpid()
        self._lease_key = _lease_key_of(files, folder, owner.generation)

    def acquire(self) -> None:
        """Becomes the owner. The caller holds the opening lock.

        The caller reads the tail and creates its segment before it releases the lock. The sync of
        the segment's name also syncs the name of the owner file. Until that sync, no frame of this
        owner is on disk, and a power loss leaves no trace of this opening.
        """
        _leases.add(self._lease_key)
        owners.write_owner(self._files, self._folder, self.owner, named=False)
        _write_generation(self._files, self._folder, self, self.number)
        self.beat()

    def give_up(self) -> None:
        """Restores the log as it was before `acquire`, even if a later step was interrupted.

        The caller holds the opening lock. The previous owner can continue if the generation word
        was not rewritten.
        """
        try:
            with contextlib.suppress(DurabilityError):  # the original error is raised by the caller
                if self.generation == self.number:
                    self.leave(known=self.owner.known, closed=self.owner.wrote.closed)
                elif self.is_taken and self.before is not None:
                    owners.write_owner(self._files, self._folder, self.before)
                elif self.is_taken:
                    self._files.unlink(os.path.join(self._folder, "owner"))
        finally:
            self.close()

    def close(self) -> None:
        """Unmaps the words; this process does not hold the lease any more."""
        _leases.discard(self._lease_key)
        super().close()

    def check(self) -> None:
        """Raises FencedError if another process has taken over."""
        if self.words[_GENERATION] != self.number:
            raise self.fenced()

    @property
    def copied(self) -> list[str]:
        """The warning that this folder is a copy of another one, which still exists."""
        before = self.before
        original = before.place.folder_if_moved(self._files, self.owner.place) if before else None
        if original is None:
            return []
        return [
            f"this folder is a copy of '{original}': both have the same log id, and epochs"
            " written to one are missing in the other. To get an independent log,"
            f" {_branch_hint(original)}"
        ]

    @property
    def is_taken(self) -> bool:
        """True if the lease was acquired and is not closed."""
        return self._lease_key in _leases

    @property
    def inherited(self) -> bool:
        """True in a forked child of the owner."""
        return os.getpid() != self._pid

    def check_process(self) -> None:
        """Raises FencedError if this process is a forked child of the owner."""
        if os.getpid() != self._pid:
            raise FencedError(
                f"the log belongs to process {self._pid}, not to its child {os.getpid()}",
                hint='open the log with mode="r" in the child, or send rows to the parent',
            )

    def publish(self, offset: int) -> None:
        """Publishes the frames up to `offset` to readers."""
        self.words[_PUBLISHED] = self._tag | offset >> 3

    def publish_durable(self, seq: int) -> None:
        """Records the number of the last frame on disk, for the next opening."""
        word = self._tag | seq
        self.words[_DURABLE], self.words[_DURABLE_INVERSE] = word, word ^ _MASK

    def note(self, number: int) -> None:
        """Records a number for the next opening; a power loss may lose it."""
        word = self._tag | number
        self.words[_NOTED], self.words[_NOTED_INVERSE] = word, word ^ _MASK

    def go_beyond(self, generation: int) -> None:
        """Ensures that the next owner has a later generation than the one that a replica accepts.

        Otherwise the replica would refuse it, and each following owner up to that generation.
        """
        if generation > self.outbid:
            self.words[_OUTBID], self.words[_OUTBID_INVERSE] = generation, generation ^ _MASK

    def beat(self) -> None:
        """Counts a heartbeat for other hosts, unless another process has taken over."""
        if self.words[_GENERATION] == self.number:
            self.words[_BEAT] = (self.words[_BEAT] + 1) & _MASK

    def fenced(self) -> FencedError:
        """Returns the error for an owner that was replaced; it names the new owner."""
        owner = None
        with contextlib.suppress(DurabilityError, CorruptLogError):
            owner = owners.read_owner(self._files, self._folder)
        known = owner is not None and owner.generation != self.number
        who = f"{owner}, since {owner.since}" if owner and known else "another process"
        return FencedError(
            f"'{self._folder}' was taken over by {who}; the last writes of this process may be"
            " lost",
            hint=_REMEDY,
        )

    def leave(self, *, known: int, closed: bool) -> None:
        """Marks the log as released, closed properly or not. The caller holds the opening lock."""
        self.check()
        owner = self.owner._replace(known=known, closed=closed, released=True)
        owners.write_owner(self._files, self._folder, owner)

    def release(self, *, known: int, closed: bool) -> None:
        """Releases the log for other processes; `known` is the last seq on disk."""
        lock = opening_lock(self._files, self._folder)
        try:
            self.leave(known=known, closed=closed)
        finally:
            lock.release()


def _branch_hint(original: str) -> str:
    """Returns a hint for getting a log that is independent of the original of a copied folder."""
    return (
        f"use a branch of '{original}': session.branch(NAME) there, or in a notebook `%dd open"
        f" {original} --branch NAME`; or create another log with nosync.copy('{original}',"
        " FOLDER)"
    )


_leases: set[tuple[int, int, int]] = set()
"""The leases of this process, by the log's generation file (device and number) and generation."""

_REMEDY = 'open it with takeover=True, or read it with mode="r"'


def claim_lease(
    files: Files, folder: str, machine: HostIdentity, *, takeover: bool, generation_min: int
) -> WriterLease:
    """Returns the lease of the next owner, for `WriterLease.acquire`.

    The caller holds the opening lock.

    Args:
        generation_min: the generation of the newest segment.

    Raises:
        FencedError: the owner is alive, or may be alive, and `takeover` is False.
    """
    mapped = files.mapped(_control_path(files, folder), write=True)
    try:
        words = ControlBlock(mapped)
        before, here = _previous_owner(files, folder, takeover), owners.log_location(files, folder)
        if before is not None and not takeover and not _has_left(files, folder, before, machine):
            _refuse_live_owner(
                before, words, machine, folder, before.place.folder_if_moved(files, here)
            )
        floor = before.generation if before else 0
        number = max(words.generation, generation_min, floor, words.outbid) + 1
        owner = LogOwner(
            machine.identity(),
            number,
            machine.now_ms(),
            os.path.basename(sys.argv[0]) if sys.argv else "",
            before.known if before else 0,
            closed=False,
            released=False,
            wrote=before.last(generation_min) if before else LastWriter(),
            place=here,
        )
        return WriterLease(files, folder, mapped, owner, before)
    except BaseException:
        mapped.close()
        raise


def _has_left(files: Files, folder: str, before: LogOwner, machine: HostIdentity) -> bool:
    """Returns True if the previous owner is this process, and it no longer holds the lease."""
    if before.identity != machine.identity():
        return False
    return _lease_key_of(files, folder, before.generation) not in _leases


def _lease_key_of(files: Files, folder: str, generation: int) -> tuple[int, int, int]:
    """Returns the identity of a lease in this process, which survives a rename of the folder."""
    status = files.status(os.path.join(folder, "generation"))
    return status.st_dev, status.st_ino, generation


def opening_lock(files: Files, folder: str) -> Lock:
    """Waits for and returns the lock that each opening and close of a log takes.

    Raises:
        FencedError: another process has held the lock for `OPEN_WAIT_S`.
    """
    lock = files.lock(os.path.join(folder, "lock"), wait_s=OPEN_WAIT_S)
    if lock is None:
        raise FencedError(
            f"'{folder}' has been opened or closed by another process for {OPEN_WAIT_S:.0f} s",
            hint='try again, or read it with mode="r"',
        )
    return lock


def create_control_block(files: Files, folder: str, number: int = 0) -> None:
    """Creates the generation file of a log; the next owner has a later generation than `number`."""
    words = [_MAGIC, FORMAT, number, number ^ _MASK] + [0] * (_WORDS - 4)
    data = struct.pack(f"<{_WORDS}Q", *words)
    files.replace(os.path.join(folder, "generation"), data)


def _control_path(files: Files, folder: str) -> str:
    """Returns the path of the generation file; creates the file if it is missing."""
    path = os.path.join(folder, "generation")
    if not files.exists(path):
        create_control_block(files, folder)
    return path


def _previous_owner(files: Files, folder: str, takeover: bool) -> LogOwner | None:
    try:
        return owners.read_owner(files, folder)
    except CorruptLogError:
        if takeover:
            return None
        raise


def _refuse_live_owner(
    before: LogOwner, words: ControlBlock, machine: HostIdentity, folder: str, original: str | None
) -> None:
    """Raises FencedError unless the owner has released the log or is dead.

    An owner on another host or in another container is observed by its heartbeats. If it was only
    suspended, it finds itself fenced afterwards; a wrong decision has no other effect.

    Args:
        original: the original if this folder is a copy; the owner writes there.
    """
    if before.released:
        return
    alive = machine.alive(before.identity)
    if alive is None:
        alive = machine.changes(lambda: words.beats, SILENT_S)
        state = "it is alive"
    else:
        state = "this process" if before.identity == machine.identity() else "alive"
    if alive and original is not None:
        raise FencedError(
            f"'{folder}' is a copy of '{original}', which {before} writes, since {before.since}",
            hint=f"{_branch_hint(original)}; or continue with this copy: takeover=True",
        )
    if alive:
        raise FencedError(
            f"'{folder}' is written by {before}, since {before.since}: {state}", hint=_REMEDY
        )


def _write_generation(files: Files, folder: str, words: ControlBlock, number: int) -> None:
    """Writes the generation in place, syncs it, and checks that the map shows it."""
    with closing(files.open(os.path.join(folder, "generation"), write=True)) as file:
        both = number.to_bytes(8, "little") + (number ^ _MASK).to_bytes(8, "little")
        file.write_at(8 * _GENERATION, both)
        file.sync()
    if words.generation != number:
        raise DurabilityError(
            f"'{folder}' is on a file system whose memory maps do not show writes",
            hint="keep the log on a local disk",
        )


def _unpack_word(word: int, generation: int) -> int | None:
    """Returns the value in a word of a generation; None if the word is of another generation."""
    tag = generation & ((1 << _TAG_BITS) - 1)
    return word & ((1 << _VALUE_BITS) - 1) if word >> _VALUE_BITS == tag else None
