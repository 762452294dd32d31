"""The transactions of a session: changes of inputs that wait for their epoch.

A transaction stores the calls of users (insert, remove, set, upsert, ...) for each input; see
`pending_changes`. It becomes one epoch, or none.
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

    Attributes:
        keyed: True if all of it is one load with an idempotency key.
        logged: True if a frame of the log may name its files, even if its commit failed.
        epoch: the epoch that it became last, whatever its commit raised.
        skipped: True if one of its loads was already committed.
    """

    label: str | None = None
    inputs: dict[str, PendingInputChanges] = field(default_factory=dict)
    keyed: bool = False
    logged: bool = False
    epoch: int | None = None
    skipped: bool = False
    ender: Callable[[Transaction, bool, Any, Any], Any] | None = None
    _whole: Mapping[str, str] = field(default_factory=dict)  # keys of the whole transaction
    _notes: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def once(self) -> dict[str, str]:
        """The idempotency keys that this epoch records, each with a fingerprint of its rows."""
        once = dict(self._whole)
        for changes in list(self.inputs.values()):
            once.update(changes.idempotency_keys)
        return once

    def record(self, once: Mapping[str, str]) -> None:
        """Records that all of it is a load of these keys, each with a fingerprint."""
        self._whole = {**self._whole, **once}

    @property
    def notes(self) -> Mapping[str, tuple[str, str]]:
        """Notes of this epoch in the log: by mark, the new text and the expected current text."""
        return self._notes

    def note(self, mark: str, text: str, before: str) -> None:
        """Adds to `notes`."""
        self._notes = {**self._notes, mark: (text, before)}

    @property
    def pending(self) -> dict[str, PendingInputChanges]:
        """The inputs with pending changes."""
        return {n: c for n, c in list(self.inputs.items()) if c.waits}

    @property
    def files(self) -> set[str]:
        """The files that were written for pending rows."""
        files: set[str] = set()
        for changes in self.inputs.values():
            files |= changes.files
        return files

    def __bool__(self) -> bool:
        return any(c.waits for c in self.inputs.values()) or bool(self.once or self._notes)

    def commit(self, wait: str | None = None, label: str | None = None) -> int:
        """Commits as one epoch and ends the transaction; returns the epoch's number."""
        assert self.ender is not None, "the session commits its own transaction"
        return int(self.ender(self, True, wait, label))

    def discard(self) -> int:
        """Drops the pending changes and ends the transaction; returns the rows dropped."""
        if self.ender is not None:
            return int(self.ender(self, False, None, None))
        return self.clear()

    def clear(self) -> int:
        """Drops everything; returns the number of updates dropped."""
        count = sum(c.rows for c in self.inputs.values())
        self.forget()
        return count

    def forget(self) -> None:
        """Drops everything."""
        self.inputs.clear()
        self._whole, self._notes = {}, {}
        self.logged = False

    def skip(self) -> None:
        """Records that a load was left out because it is already committed."""
        self.skipped = True

    def log(self) -> None:
        """Records that a frame may name its files from now on."""
        self.logged = True

    def stands(self, epoch: int) -> None:
        """Records the epoch that it has become, and drops its changes; may be repeated."""
        self.forget()
        self.epoch = epoch


class _Block(threading.local):
    """The transaction of a thread's block."""

    transaction: Transaction | None = None


class Transactions:
    """Finds the transaction that a call on an input belongs to.

    Threads: each thread has its own block, which only it changes; the shared transaction is one
    reference. The contents of a transaction are changed with the writer lock, so that a commit
    loses no call that comes meanwhile.

    Attributes:
        shared: the transaction of all threads that are not in a block.
    """

    def __init__(self) -> None:
        self.shared = Transaction()
        self._local = _Block()

    @property
    def current(self) -> Transaction:
        """The transaction of the thread's block, or the shared one."""
        own = self._local.transaction
        return self.shared if own is None else own

    @property
    def open(self) -> bool:
        """True if this thread is in a block."""
        return self._local.transaction is not None

    def share(self, transaction: Transaction) -> None:
        """Sets the transaction of all threads that are not in a block."""
        self.shared = transaction

    @contextmanager
    def block(self, transaction: Transaction) -> Iterator[None]:
        """A block of this thread in which a transaction is the current one."""
        outer = self._local.transaction
        self._local.transaction = transaction
        try:
            yield
        finally:
            self._local.transaction = outer
