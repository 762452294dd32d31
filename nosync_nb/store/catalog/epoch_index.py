"""The epochs of a session: when each was committed, its label, its loads, and its frame.

Only `EpochIndex` stores these facts, and its lock guards them. A record is entered completely or
not at all, and entering it a second time changes nothing. So the next caller can complete a commit
that was interrupted.
"""

from __future__ import annotations

import bisect
import threading
import time
from array import array
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple, overload

from nosync_nb.errors import CorruptLogError, TimeError, likely
from nosync_nb.store.catalog.validation import check_count, check_marks, check_pairs, check_texts
from nosync_nb.store.durability import EpochOffsets

REWINDS_MAX = 64
"""The number of rewinds that are recorded. They determine which epochs of a copy are valid if the
copy lacks the frames of these rewinds.
"""


class EpochInfo(NamedTuple):
    """One readable epoch; `committed_at` is None for epoch 0."""

    number: int
    label: str | None
    committed_at: datetime | None


class EpochSequence(Sequence[EpochInfo]):
    """A lazy sequence of readable epochs."""

    def __init__(
        self, ranges: Sequence[range], times: Sequence[float], labels: Mapping[int, str]
    ) -> None:
        self._ranges = [each for each in ranges if each]
        self._ends = [*accumulate(map(len, self._ranges))]
        self._times = times
        self._labels = labels

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> EpochInfo: ...
    @overload
    def __getitem__(self, index: slice) -> list[EpochInfo]: ...
    def __getitem__(self, index: int | slice) -> EpochInfo | list[EpochInfo]:
        if isinstance(index, slice):
            return [self._epoch(self._number(at)) for at in range(len(self))[index]]
        return self._epoch(self._number(range(len(self))[index]))

    def _number(self, at: int) -> int:
        """Returns the epoch at a position."""
        range_index = bisect.bisect_right(self._ends, at)
        return self._ranges[range_index][at - (self._ends[range_index - 1] if range_index else 0)]

    def _epoch(self, number: int) -> EpochInfo:
        at = None
        if 0 < number <= len(self._times):
            at = datetime.fromtimestamp(self._times[number - 1], UTC)
        return EpochInfo(number, self._labels.get(number), at)

    def __repr__(self) -> str:
        if not self:
            return "<no epochs>"
        steps = [f", each {r.step}th of {r[0]} to {r[-1]}" for r in self._ranges if r.step > 1]
        first, last = self._ranges[0][0], self._ranges[-1][-1]
        return f"<epochs {first} to {last}{''.join(steps)}>"


class RewindMark(NamedTuple):
    """A rewind, which undoes all epochs after `epoch`.

    Attributes:
        epoch: the last epoch that remains.
        incarnation: the number of rewinds, including this one; epochs are numbered within it.
        seq: the number of the rewind's frame.
    """

    epoch: int
    incarnation: int
    seq: int


class EpochRecord(NamedTuple):
    """The facts of an epoch, without its rows.

    Attributes:
        utc: the time of the commit, in seconds since 1970.
        seq: the number of the frame that contains the epoch.
        durable: the number of the last frame that was on disk when the epoch was recorded.
        once: the idempotency keys of its loads, each with a digest of the rows.
    """

    epoch: int
    utc: float
    seq: int
    durable: int
    label: str | None = None
    once: Mapping[str, str] = MappingProxyType({})


_NOTED_BITS = 32


def last_epoch_note(incarnation: int, epoch: int) -> int:
    """Encodes the last epoch as a number that the owner records for the next one (`Log.note`)."""
    return (incarnation & 0xFFF) << _NOTED_BITS | epoch & (1 << _NOTED_BITS) - 1


def lost_epochs(note: int, incarnation: int, epoch: int) -> range:
    """Returns the epochs that a note records and the log lacks; `epoch` is the last one of the log.

    If a rewind lies between the two, the result is empty. Either the note is older than the rewind,
    or the rewind itself is lost, and then no epoch before it is lost.
    """
    if note >> _NOTED_BITS != incarnation & 0xFFF:
        return range(0)
    return range(epoch + 1, (note & (1 << _NOTED_BITS) - 1) + 1)


class EpochNumbering(NamedTuple):
    """The number of rewinds and their targets, which determine what an epoch number denotes.

    Attributes:
        ends: the targets of the last rewinds, at most `REWINDS_MAX`, oldest first.
    """

    incarnation: int = 0
    ends: tuple[int, ...] = ()

    def has_left(self, epoch: int, incarnation: int) -> bool:
        """Returns True if a number may denote a different epoch than in an earlier incarnation."""
        count = self.incarnation - incarnation
        lately = self.ends[-count:] if count > 0 else ()
        return len(lately) < count or any(end < epoch for end in lately)


class EpochIndex:
    """The facts of all epochs of a session, from 1 to the last.

    Threads: any thread may read and record. Everything is guarded by one lock, under which no other
    code is called. To record is one assignment. The next caller enters the record into labels,
    times and loads before it reads them, and entering it twice does no harm. So an interrupt
    between any two instructions leaves an epoch either recorded or not.

    Args:
        epoch: the last epoch.
        times: the commit times of the epochs 1 to `epoch`, as doubles.
        incarnation: the number of rewinds so far.
        rewinds: the last rewinds, oldest first: the number of the frame, and the target epoch.
        labels: the labelled epochs, by label.
        once: the epochs of loads with an idempotency key, by key.
        loads: the digests of the rows of such loads, by key.
    """

    def __init__(
        self,
        epoch: int = 0,
        times: bytes = b"",
        *,
        incarnation: int = 0,
        rewinds: Sequence[tuple[int, int]] = (),
        labels: Mapping[str, int] | None = None,
        once: Mapping[str, int] | None = None,
        loads: Mapping[str, str] | None = None,
    ) -> None:
        self._lock = threading.RLock()  # a signal handler may call in the middle of a call
        self._times = array("d")
        self._times.frombytes(times)
        if len(self._times) != epoch:
            raise CorruptLogError(f"the checkpoint has {len(self._times)} times for {epoch} epochs")
        self._labels = dict(labels or {})
        self._load_epochs = dict(once or {})
        self._load_digests = dict(loads or {})
        self._offsets = EpochOffsets(epoch)
        self._last = epoch
        self._incarnation = incarnation
        self._rewinds = tuple(rewinds)
        self._pending: list[EpochRecord] | RewindMark | None = (
            None  # recorded, but not yet entered into the fields above
        )

    @classmethod
    def restored(cls, epoch: int, times: bytes, meta: Mapping[str, Any]) -> EpochIndex:
        """Returns the index that a checkpoint contains; see `saved`.

        Raises:
            CorruptLogError: the content is invalid.
        """
        return cls(
            epoch,
            times,
            incarnation=check_count(meta.get("incarnation", 0), "the incarnation"),
            rewinds=check_pairs(meta.get("rewinds", ()), "a rewind"),
            labels=check_marks(meta.get("labels", {}), epoch, "a label"),
            once=check_marks(meta.get("once", {}), epoch, "the key of a load"),
            loads=check_texts(meta.get("loads", {}), "the key of a load"),
        )

    def saved(self, upto: int | None = None) -> tuple[dict[str, Any], bytes]:
        """Returns the parts of a checkpoint: entries of its JSON, and the times.

        Args:
            upto: the last epoch to include; `None` means all epochs.
        """
        with self._lock:
            self._apply_pending()
            last = self._last if upto is None else upto
            once = {mark: epoch for mark, epoch in self._load_epochs.items() if epoch <= last}
            return {
                "labels": {label: epoch for label, epoch in self._labels.items() if epoch <= last},
                "once": once,
                "loads": {mark: load for mark, load in self._load_digests.items() if mark in once},
                "incarnation": self._incarnation,
                "rewinds": self._rewinds if upto is None else (),
            }, self._times[:last].tobytes()

    # -- recording -------------------------------------------------------------------------------

    def record(self, *records: EpochRecord) -> None:
        """Records epochs, each the successor of the last; a repeated call changes nothing.

        Cost: a few us.
        """
        with self._lock:
            self._apply_pending()
            fresh = [record for record in records if record.epoch > self._last]
            assert all(r.epoch == n for n, r in enumerate(fresh, self._last + 1)), "out of turn"
            self._pending = fresh or None

    def rewind(self, rewound: RewindMark) -> None:
        """Removes the epochs that a rewind undoes, with their times, labels and loads.

        A repeated call changes nothing.
        """
        with self._lock:
            self._apply_pending()
            if rewound.incarnation <= self._incarnation:
                return
            assert rewound.epoch <= self._last, f"{rewound.epoch} is behind {self._last}"
            self._pending = rewound

    def _apply_pending(self) -> None:
        """Enters the pending record; every step can be repeated. The caller holds the lock."""
        newest = self._pending
        if newest is None:
            return
        if isinstance(newest, RewindMark):
            self._apply_rewind(newest)
            return
        times, note = self._times, self._offsets.note
        for epoch, utc, seq, durable, label, once in newest:
            if len(times) < epoch:
                times.append(utc)
            note(seq, epoch, durable)
            if label is not None:
                self._labels[label] = epoch
            for mark, load in once.items() if once else ():
                self._load_epochs[mark] = epoch
                self._load_digests[mark] = load
        self._last = newest[-1].epoch
        self._pending = None

    def _apply_rewind(self, rewound: RewindMark) -> None:
        """Removes the facts of undone epochs. Previously returned sequences do not change."""
        last = rewound.epoch
        self._times = self._times[:last]
        self._labels = {label: epoch for label, epoch in self._labels.items() if epoch <= last}
        self._load_epochs = {
            mark: epoch for mark, epoch in self._load_epochs.items() if epoch <= last
        }
        self._load_digests = {
            mark: load for mark, load in self._load_digests.items() if mark in self._load_epochs
        }
        self._offsets.drop_after(last)
        self._last = last
        if (rewound.seq, last) not in self._rewinds:
            self._rewinds = (*self._rewinds[1 - REWINDS_MAX :], (rewound.seq, last))
        self._incarnation = rewound.incarnation
        self._pending = None

    def not_before(self, utc: float) -> float:
        """Returns `utc`, or the time of the last epoch if the clock was set back to before it."""
        if isinstance(newest := self._pending, list):  # only the recording thread calls this then
            return max(utc, newest[-1].utc)
        with self._lock:
            self._apply_pending()
            return max(utc, self._times[-1]) if self._times else utc

    # -- queries ---------------------------------------------------------------------------------

    @property
    def numbering(self) -> EpochNumbering:
        """The number of rewinds, and their last targets."""
        with self._lock:
            return EpochNumbering(self.incarnation, tuple(last for _, last in self.rewinds))

    @property
    def rewinds(self) -> tuple[tuple[int, int], ...]:
        """The last rewinds, oldest first: the number of the frame, and the target epoch."""
        with self._lock:
            self._apply_pending()
            return self._rewinds

    @property
    def incarnation(self) -> int:
        """The number of rewinds; an epoch number is unique only together with it."""
        with self._lock:
            self._apply_pending()
            return self._incarnation

    def labelled(self, label: str) -> int | None:
        """Returns the epoch with a label, if there is one."""
        with self._lock:
            self._apply_pending()
            return self._labels.get(label)

    def loaded(self, mark: str) -> bool:
        """Returns True if a load with this idempotency key was committed."""
        with self._lock:
            self._apply_pending()
            return mark in self._load_epochs

    def load(self, mark: str) -> str:
        """Returns the digest of the rows of a load with this idempotency key; "" if unknown."""
        with self._lock:
            self._apply_pending()
            return self._load_digests.get(mark, "")

    def has_loads(self, prefix: str) -> bool:
        """Returns True if a load was committed whose key has this prefix."""
        with self._lock:
            self._apply_pending()
            return any(mark.startswith(prefix) for mark in self._load_epochs)

    def durable(self, frames: int) -> int:
        """Returns the last epoch that is on disk, if the frames up to `frames` are.

        IMPORTANT: read `frames` from the log first, so that this index is at least as new.
        """
        with self._lock:
            self._apply_pending()
            return self._offsets.upto(frames)

    def last_contained_epoch(self, frames: int, epoch: int) -> int:
        """Returns the last epoch of the current history that a copy contains.

        If the copy lacks the frame of a rewind, its epochs after the target of this rewind are
        undone and do not count.

        Args:
            frames: the last frame of the copy.
            epoch: the last epoch of the copy.
        """
        with self._lock:
            self._apply_pending()
            return min([epoch, *(upto for seq, upto in self._rewinds if seq > frames)])

    def committed(self, number: int) -> float | None:
        """Returns when an epoch was committed, in seconds since 1970; None if it does not exist."""
        with self._lock:
            self._apply_pending()
            return self._times[number - 1] if 0 < number <= len(self._times) else None

    def since(self, seconds: float) -> int:
        """Returns the first epoch that is at most `seconds` old; 0 if no epoch is older."""
        with self._lock:
            self._apply_pending()
            older = bisect.bisect_left(self._times, time.time() - seconds)
            return older + 1 if older else 0

    def epochs(self, ranges: Sequence[range]) -> EpochSequence:
        """Returns the epochs of ascending ranges, with their times and labels."""
        with self._lock:
            self._apply_pending()
            labels = {number: label for label, number in self._labels.items()}
            return EpochSequence(ranges, self._times, labels)

    def resolve(self, at: Any, now: int) -> int:
        """Returns the epoch for `at`: a number, a negative offset, a label or a datetime.

        Args:
            now: the last epoch that the reader sees; the owner may have committed later ones.

        Raises:
            TimeError: `at` denotes no epoch; the hint lists the possible values.
        """
        if isinstance(at, str):
            return self._labelled(at, now)
        if hasattr(at, "__index__") and not isinstance(at, bool):
            number = at.__index__()
            number = now + number if number < 0 else number
            if not 0 <= number <= now:
                raise TimeError(f"epoch {at} is not readable", hint=f"epochs 0 to {now} are")
            return int(number)
        if isinstance(at, datetime):
            seconds = at.timestamp()
            with self._lock:
                self._apply_pending()
                return bisect.bisect_right(self._times, seconds, 0, now)
        raise TimeError(f"{at!r} is not an epoch", hint="use a number, a label or a datetime")

    def _labelled(self, label: str, now: int) -> int:
        with self._lock:
            self._apply_pending()
            epoch = self._labels.get(label)
            if epoch is not None and epoch <= now:
                return epoch
            labels = [each for each, epoch in self._labels.items() if epoch <= now]
        hint = likely(label, labels, "labels")
        raise TimeError(f"no epoch is labelled '{label}'", hint=hint)
