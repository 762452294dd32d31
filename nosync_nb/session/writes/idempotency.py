"""Loads: an insert after a restart that equals one from before it is told, not refused.

A notebook that is run again after a crash inserts again what is there already, unless its loads
are repeatable (`once=KEY`, `set`). So after a recovery the inserts into inputs without key are
compared with what the recovered epochs changed: one call by itself, and all calls that wait
together, as an epoch does not remember its calls.

It is a help, not a guard: it looks at the first and the last epochs of a long history, and only
for the first epochs after a recovery. Nothing is written for it, and until an insert has as many
rows as an old epoch, nothing is hashed for it.

Of a load with a key the log keeps a digest, so that a cell whose rows were edited, and whose key
was not, is told that nothing was done.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nosync_nb import rows
from nosync_nb.errors import CorruptLogError, SchemaError, TimeError, warn
from nosync_nb.session.state.load_fingerprint import (
    LoadFingerprint,
    fingerprint,
    fingerprint_of_calls,
    load_text,
    type_kinds,
)
from nosync_nb.session.state.pending_changes import PendingCall
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.subscriptions import Subscriptions
from nosync_nb.session.state.transactions import Transaction, Transactions
from nosync_nb.trace import Trace, stats
from nosync_nb.trace.batch import Layout, Updates, arrange, concat_updates

if TYPE_CHECKING:
    from nosync_nb.trace.history.epoch_reads import Epochs
    from nosync_nb.trace.history.history import History

BLOCK = "epoch:"
"""With this the key of a load begins that is all of an epoch."""

EPOCHS_MAX = 64
"""Epochs after a recovery in which inserts are compared."""

ALREADY = "is there already, nothing to do"
"""With this the notice of a load ends that was skipped."""

COMPARED_MAX = 128
"""Epochs at either end of the recovered history that they are compared with."""

_CALLER = 4  # frames from the warning to the user's insert


class RepeatedLoads:
    """What a session knows of the inserts from before its recovery; nothing without one.

    Threads: any may ask. Two that ask for the same input at once may both look through its epochs,
    and find the same.
    """

    def __init__(self) -> None:
        self._state: _State | None = None

    def begin(self, upto: int) -> None:
        """From now on inserts are compared with those up to an epoch, which was recovered."""
        self._state = _State(upto, {})

    @property
    def begun(self) -> bool:
        """Whether inserts are compared with any."""
        return self._state is not None

    def back(self, epoch: int) -> None:
        """The session has gone back to an epoch: later ones are not compared with any more."""
        state = self._state
        if state is not None:
            self._state = _State(min(state.upto, epoch), {})

    def known(self, history: History, number: int, now: int, count: int) -> LoadedEpochs | None:
        """The recovered epochs that only added rows to an input; None if there are none.

        Some epochs after the recovery there are none any more, and what was known is forgotten.

        Args:
            number: the input's log.
            now: the last epoch.
            count: the rows of the longest of the loads to compare. Epochs with more rows in files
                are not looked at.

        Cost: at the first call for an input O(rows of those epochs in packs and in memory), at most
        256 of them; rows that lie in files have their hashes there.
        """
        state = self._state
        if state is None:
            return None
        if now >= state.upto + EPOCHS_MAX:
            self._state = None
            return None
        added = state.known.get(number)
        if added is None:
            added = state.known.setdefault(number, _added(history, number, state.upto))
        for epoch in [each for each, least in added.large.items() if least <= count]:
            own = _of_epoch(history, number, epoch)
            if own is not None:
                added.note(epoch, own)
            added.large.pop(epoch, None)
        return added


class LoadedEpochs(NamedTuple):
    """Epochs that only added rows to an input.

    Attributes:
        small: by rows and digest.
        large: not looked at yet, as their rows are in files, each with the least that it has.
    """

    small: dict[int, dict[LoadFingerprint, int]]
    large: dict[int, int]

    def note(self, epoch: int, own: LoadFingerprint) -> None:
        """Takes in what an epoch added."""
        self.small.setdefault(own.rows, {})[own] = epoch


class _State(NamedTuple):
    """What there is to compare with.

    Attributes:
        upto: the epoch that was recovered.
        known: by log, what epochs added.
    """

    upto: int
    known: dict[int, LoadedEpochs]


def _added(history: History, number: int, upto: int) -> LoadedEpochs:
    """What there is to compare with: the first and the last epochs that can be read."""
    readable = [each for each in history.epochs(number, upto) if each]
    added = LoadedEpochs({}, {})
    lower = 0
    for some in (_first(readable), _last(readable)):
        epochs = [each for each in some if each >= lower]
        if not epochs:
            continue
        lower = epochs[-1] + 1
        with suppress(CorruptLogError):  # there is nothing to compare with
            changes = history.apart(number, epochs[0], lower)
            wanted = set(epochs)
            large = {e: least for e, least in changes.large.items() if e in wanted}
            added.large.update(large)
            for epoch, own in _digests(changes.small):
                if epoch in wanted and epoch not in large:
                    added.note(epoch, own)
    return added


def _first(readable: Sequence[range]) -> list[int]:
    """The first epochs of some ranges."""
    return [*islice(chain.from_iterable(readable), COMPARED_MAX)]


def _last(readable: Sequence[range]) -> list[int]:
    """The last epochs of some ranges, ascending."""
    backwards = chain.from_iterable(map(reversed, reversed(readable)))
    return [*islice(backwards, COMPARED_MAX)][::-1]


class LoadRegistry:
    """What a session tells of loads that are there already.

    Args:
        repeats: what inserts are compared with; its own.
    """

    def __init__(
        self,
        repeats: RepeatedLoads,
        publisher: Publisher,
        transactions: Transactions,
        listeners: Subscriptions,
        is_frame: Callable[[Any], bool],
    ) -> None:
        self.repeats = repeats
        self._publisher = publisher
        self._transactions = transactions
        self._listeners = listeners
        self._is_frame = is_frame

    def seen(self, mark: str) -> bool:
        """Whether an epoch, or the current transaction, has recorded a load."""
        return self._publisher.ledger.loaded(mark) or mark in self._transactions.current.once

    def noted(self, mark: str) -> str:
        """What an epoch has noted last under a mark; empty: nothing."""
        return self._publisher.ledger.load(mark)

    def tell(self, name: str) -> None:
        """Warns if the insert that was just taken is equal to one from before the restart.

        It tells of each such epoch once.
        """
        if not self.repeats.begun:
            return
        transaction, snapshot = self._transactions.current, self._publisher.snapshot
        stage = snapshot.catalog[name]
        if transaction.keyed or stage.key is not None:
            return
        number = snapshot.graph.named[name].log
        assert number is not None
        changes = transaction.inputs[name].changes
        if any(change.kind != "insert" for change in changes):
            changes = changes[-1:]
        history = self._publisher.store.history
        known = self.repeats.known(history, number, snapshot.epoch, _count(changes))
        if known is None:
            return
        for calls in (changes[-1:], changes)[: len(changes)]:
            same = known.small.get(_count(calls))
            if not same:
                continue
            epoch = same.pop(fingerprint_of_calls(calls, stage.schema.types), None)
            rows_before = transaction.inputs[name].earlier(len(calls))
            if epoch is not None and _are_there(snapshot.contents(name), calls, rows_before):
                warn(_told(name, calls, epoch), stacklevel=_CALLER)
                return

    def alike(self, before: int, now: int) -> list[str]:
        """The inputs without key that have the rows twice which two epochs added.

        Cost: O(rows of those epochs).
        """
        snapshot, history = self._publisher.snapshot, self._publisher.store.history
        same = []
        for name, stage in snapshot.catalog.items():
            number = snapshot.graph.named[name].log if stage.is_input else None
            if number is None or stage.key is not None:
                continue
            rows = _of_epoch(history, number, now)
            if rows is None or rows != _of_epoch(history, number, before):
                continue
            added = history.changes(number, now - 1, now)
            if _hold(snapshot.contents(name), [batch.updates for batch in added], times=2):
                same.append(name)
        return same

    def skip(self, what: str, once: Any, mark: str, load: str, *, stacklevel: int) -> None:
        """Says that a load is there, or warns if what it would load now is something else."""
        self._transactions.current.skip()
        before = self._publisher.ledger.load(mark) or self._transactions.current.once.get(mark, "")
        if _differ(before, load):
            warn(
                f"{what.rstrip(':')}: its rows differ from those loaded as {once!r}; nothing was"
                " done\nHint: use set(rows) to make the input equal to them, or another key",
                stacklevel=stacklevel,
            )
        else:
            self._listeners.say(f"{what} {once!r} {ALREADY}")

    def again(self, name: str, kind: str, data: Any) -> str:
        """What a call that is skipped would load; "" if only running something could tell.

        Rows that do not fit the input are others than those that were loaded.
        """
        if self._is_frame(data) or hasattr(data, "__next__"):
            return ""
        stage = self._publisher.snapshot.catalog[name]
        try:
            columns, n = rows.to_columns(data, stage.schema, f"input '{name}'")
        except SchemaError:
            return f"{type_kinds(stage.schema.types)} misfit"
        return load_text(stage, [PendingCall(kind, Updates(columns, np.ones(n, np.int64)))])


def load_summary(transaction: Transaction) -> str:
    """What a transaction loads, all inputs together."""
    inputs = transaction.inputs.values()
    loads = {
        each.stage.name: load_text(each.stage, each.changes) for each in inputs if each.changes
    }
    return json.dumps(loads, sort_keys=True) if loads else ""


def _are_there(contents: Trace, calls: Sequence[PendingCall], earlier: Sequence[Updates]) -> bool:
    """Whether an input has the rows of some inserts already, after the calls before them.

    Failure: 1. An epoch inserts rows. 2. After a restart `clear()` takes them away, in the same
    transaction or before. 3. They are inserted again, and are told to be there twice.
    """
    types = contents.layout.types
    if earlier:
        contents = contents.with_batch(arrange(contents.layout, concat_updates(earlier, types)))
    return _hold(contents, [piece for call in calls for piece in call.pieces], times=1)


def _hold(contents: Trace, parts: Sequence[Updates], *, times: int) -> bool:
    """Whether contents have some rows so many times."""
    layout = contents.layout
    wanted = concat_updates(parts, layout.types)
    asked = arrange(layout, Updates(wanted.columns, wanted.diff * -times))
    return stats.lacking(contents.with_batch(asked), asked.updates) is None


def _differ(before: str, now: str) -> bool:
    """Whether two loads are known not to be the same; columns of other types are not compared."""
    if not before or not now:
        return False
    block = now.startswith("{")
    return before != now and (block or before.partition(" ")[0] == now.partition(" ")[0])


def _told(name: str, calls: Sequence[PendingCall], epoch: int) -> str:
    """What the user is told."""
    count = _count(calls)
    return (
        f"input '{name}': the {count} rows to insert are those that epoch {epoch} inserted before"
        f" the restart; they will be there twice\n"
        f"Hint: insert(rows, once=KEY) takes a load once, set(rows) makes the input equal to rows;"
        " session.discard() drops what waits"
    )


def _of_epoch(history: History, number: int, epoch: int) -> LoadFingerprint | None:
    """The digest of what an epoch added to an input; None if it added nothing, or took away."""
    try:
        batches = history.changes(number, epoch - 1, epoch)
    except (TimeError, CorruptLogError):  # thinned out, or not readable: nothing to compare with
        return None
    batches = [batch for batch in batches if len(batch)]
    if not batches or any((batch.diff < 0).any() for batch in batches):
        return None
    return fingerprint((batch.rhash, batch.diff) for batch in batches)


def _digests(
    pieces: Sequence[tuple[Layout, Epochs, Updates]],
) -> Iterator[tuple[int, LoadFingerprint]]:
    """The digest of what each epoch added; none of those that added nothing, or took away."""
    if not pieces:
        return
    every = [epochs for _, epochs, _ in pieces]
    hashes = [rows.hash_columns(u.columns, of.types, len(u.diff)) for of, _, u in pieces]
    epochs, rhash = np.concatenate(every), np.concatenate(hashes)
    diff = np.concatenate([updates.diff for _, _, updates in pieces])
    order = epochs.argsort(kind="stable")
    epochs, rhash, diff = epochs[order], rhash[order], diff[order]
    ends = [*(np.flatnonzero(np.diff(epochs)) + 1).tolist(), len(epochs)]
    begin = 0
    for end in ends:
        if end > begin and (diff[begin:end] > 0).all():
            yield int(epochs[begin]), fingerprint(iter([(rhash[begin:end], diff[begin:end])]))
        begin = end


def _count(calls: Sequence[PendingCall]) -> int:
    """The rows of some inserts."""
    return sum(len(u.diff) for call in calls for u in call.pieces)
