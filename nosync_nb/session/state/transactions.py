"""Transactions: changes of inputs that wait for their epoch.

A transaction keeps what users asked for (insert, remove, set, upsert, ...), input by input; see
`calls`. It becomes one epoch, or none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from nosync_nb.session.state.pending_changes import PendingInputChanges


@dataclass
class Transaction:
    """Pending changes that will be one epoch, all or none.

    `keyed` says that all of it is a repeatable load; `logged` that a frame of the log may name its
    files, even if its commit failed; `epoch` is what it became last, whatever its commit raised;
    `skipped` that a load of it was there already.
    """

    label: str | None = None
    inputs: dict[str, PendingInputChanges] = field(default_factory=dict)
    keyed: bool = False
    logged: bool = False
    epoch: int | None = None
    skipped: bool = False
    ender: Callable[[Transaction, bool, Any, Any], Any] | None = None
    _whole: Mapping[str, str] = field(default_factory=dict)  # keys of which it is a load
    _notes: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def once(self) -> dict[str, str]:
        """The keys of repeatable loads that this epoch records, each with a digest of its rows."""
        once = dict(self._whole)
        for changes in list(self.inputs.values()):
            once.update(changes.once)
        return once

    def record(self, once: Mapping[str, str]) -> None:
        """All of it is a load of these keys, each with a digest."""
        self._whole = {**self._whole, **once}

    @property
    def notes(self) -> Mapping[str, tuple[str, str]]:
        """What the log says from this epoch on, by mark, and what it has to say until then."""
        return self._notes

    def note(self, mark: str, said: str, before: str) -> None:
        """Adds to `notes`."""
        self._notes = {**self._notes, mark: (said, before)}

    @property
    def pending(self) -> dict[str, PendingInputChanges]:
        """The inputs with changes that wait."""
        return {n: c for n, c in list(self.inputs.items()) if c.waits}

    @property
    def files(self) -> set[str]:
        """The files that were written for what waits."""
        files: set[str] = set()
        for changes in self.inputs.values():
            files |= changes.files
        return files

    def __bool__(self) -> bool:
        return any(c.waits for c in self.inputs.values()) or bool(self.once or self._notes)

    def commit(self, wait: str | None = None, label: str | None = None) -> int:
        """Commits as one epoch and ends the transaction; returns the epoch's number."""
        assert self.ender is not None, "the session's own transaction is committed by it"
        return int(self.ender(self, True, wait, label))

    def discard(self) -> int:
        """Drops what is pending and ends the transaction; returns the rows dropped."""
        if self.ender is not None:
            return int(self.ender(self, False, None, None))
        return self.clear()

    def clear(self) -> int:
        """Forgets everything; returns the updates forgotten."""
        count = sum(c.rows for c in self.inputs.values())
        self.forget()
        return count

    def forget(self) -> None:
        """Forgets everything."""
        self.inputs.clear()
        self._whole, self._notes = {}, {}
        self.logged = False

    def skip(self) -> None:
        """A load is there already, and was left out."""
        self.skipped = True

    def log(self) -> None:
        """A frame may name its files from now on."""
        self.logged = True

    def stands(self, epoch: int) -> None:
        """It has become an epoch; nothing waits any more. May be said again."""
        self.forget()
        self.epoch = epoch


class _Block(threading.local):
    """The transaction of a thread's block."""

    transaction: Transaction | None = None


class Transactions:
    """Which transaction a call on an input belongs to.

    Threads: each has its own block, which only it changes; the shared one is one reference. What a
    transaction holds is changed with the gate's lock, so that a commit forgets nothing that comes
    meanwhile.

    Attributes:
        shared: that of all threads which are in no block.
    """

    def __init__(self) -> None:
        self.shared = Transaction()
        self._local = _Block()

    @property
    def current(self) -> Transaction:
        """That of the thread's block, or the shared one."""
        own = self._local.transaction
        return self.shared if own is None else own

    @property
    def open(self) -> bool:
        """Whether this thread is in a block."""
        return self._local.transaction is not None

    def share(self, transaction: Transaction) -> None:
        """Makes a transaction the one of all threads which are in no block."""
        self.shared = transaction

    @contextmanager
    def block(self, transaction: Transaction) -> Iterator[None]:
        """A block of this thread, in which a transaction is the current one."""
        outer = self._local.transaction
        self._local.transaction = transaction
        try:
            yield
        finally:
            self._local.transaction = outer
