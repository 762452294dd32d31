"""`with session.epoch() as e`: commits everything in the block as one epoch, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nosync_nb.session.state.transactions import Transaction, Transactions
from nosync_nb.session.writes.commit import CommitService
from nosync_nb.session.writes.idempotency import BLOCK, LoadRegistry, load_summary
from nosync_nb.session.writes.input import check_idempotency_key


class EpochBlock:
    """The value of `with session.epoch() as e`: `number` once committed, `skipped`."""

    def __init__(self, transaction: Transaction, *, skipped: bool) -> None:
        self._transaction = transaction
        self.skipped = skipped

    def skip(self) -> None:
        """Records that all of its loads are committed already."""
        self.skipped = True

    def note(self, mark: str, said: str, before: str) -> None:
        """Notes a text in the log from this epoch on, if the current text is the expected one."""
        self._transaction.note(mark, said, before)

    @property
    def number(self) -> int | None:
        """The epoch that it has become, whatever was raised afterwards; None: no epoch."""
        return self._transaction.epoch


class EpochBlocks:
    """Makes blocks; has no state."""

    def __init__(
        self, transactions: Transactions, commits: CommitService, load_registry: LoadRegistry
    ) -> None:
        self._transactions, self._commits, self._load_registry = (
            transactions,
            commits,
            load_registry,
        )

    @contextmanager
    def epoch(self, once: Any, label: str | None) -> Iterator[EpochBlock]:
        """Runs a block as one transaction; see `Session.epoch`."""
        check_idempotency_key(once, "epoch")
        mark = None if once is None else f"{BLOCK}{once}"
        transaction = Transaction(label, keyed=mark is not None)
        block = EpochBlock(
            transaction, skipped=mark is not None and self._load_registry.is_loaded(mark)
        )
        try:
            with self._transactions.block(transaction):
                yield block
                if mark is not None and block.skipped:
                    self._load_registry.skip(
                        "epoch", once, mark, load_summary(transaction), stacklevel=5
                    )
                elif transaction.skipped and not transaction:  # all loads are recorded
                    block.skip()
                else:
                    if mark is not None:
                        transaction.record({mark: load_summary(transaction)})
                    self._commits.commit(transaction, None, label)
        finally:
            self._commits.discard(transaction)
