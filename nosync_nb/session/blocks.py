"""Blocks: `with session.epoch() as e`, an epoch that is committed as a whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nosync_nb.session.commits import Commits
from nosync_nb.session.input import check_once
from nosync_nb.session.loads import BLOCK, Loads, loaded
from nosync_nb.session.transactions import Transaction, Transactions


class EpochBlock:
    """What `with session.epoch() as e` gives: `number` once committed, `skipped`."""

    number: int | None = None
    skipped: bool = False


class Blocks:
    """Makes blocks; owns nothing."""

    def __init__(self, transactions: Transactions, commits: Commits, loads: Loads) -> None:
        self._transactions, self._commits, self._loads = transactions, commits, loads

    @contextmanager
    def epoch(self, once: Any, label: str | None) -> Iterator[EpochBlock]:
        """See `Session.epoch`."""
        check_once(once, "epoch")
        block = EpochBlock()
        mark = None if once is None else f"{BLOCK}{once}"
        block.skipped = mark is not None and self._loads.seen(mark)
        transaction = Transaction(label, keyed=mark is not None)
        try:
            with self._transactions.block(transaction):
                yield block
                if mark is not None and block.skipped:
                    self._loads.skip("epoch", once, mark, loaded(transaction), stacklevel=5)
                else:
                    if mark is not None:
                        transaction.record({mark: loaded(transaction)})
                    self._commits.commit(transaction, None, label)
        finally:
            block.number = transaction.epoch
            self._commits.discard(transaction)
