"""Recognises loads that are already committed: warns of repeats, skips keyed ones.

A notebook that runs again after a crash repeats its inserts, unless its loads are idempotent
(`once=KEY`, `set`). So after a recovery, inserts into inputs without a key are compared with the
changes of the recovered epochs. A single call is compared, and all pending calls together, because
an epoch does not record its calls.

This is a help, not a guarantee. It compares with the first and the last epochs of a long history,
and only during the first epochs after a recovery. It writes nothing, and hashes nothing until an
insert has as many rows as an old epoch.

For a load with an idempotency key the log records a fingerprint. A cell with edited rows and an
unchanged key is then warned that its load was skipped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from itertools import chain, islice
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import CorruptLogError, SchemaError, TimeError, warn
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.subscriptions import Subscriptions
from nosync_nb.session.state.transactions import PendingCall, Transaction, Transactions
from nosync_nb.trace import Trace, stats
from nosync_nb.trace.batch import Layout, Updates, arrange, concat_updates

if TYPE_CHECKING:
    from nosync_nb.trace.history.history import Epochs, History


BLOCK = "epoch:"
"""Prefix of the key of a load that is a whole epoch."""

EPOCHS_MAX = 64
"""The number of epochs after a recovery in which inserts are compared."""

ALREADY = "is loaded already, nothing to do"
"""Suffix of the notice of a skipped load."""

COMPARED_MAX = 128
"""The number of epochs at each end of the recovered history to compare inserts with."""


def is_skipped_load(notice: str) -> bool:
    """Returns True if a notice of a session reports a load that was skipped.

    Examples:
        >>> skipped = [each for each in notices if is_skipped_load(each)]
    """
    return notice.endswith(ALREADY)


_CALLER = 4  # frames from the warning to the user's insert


class RepeatedLoads:
    """The inserts of the epochs before a recovery; empty without a recovery.

    Threads: any may call it. Two threads that ask for the same input at once may both read its
    epochs, and get the same result.
    """

    def __init__(self) -> None:
        self._state: _RecoveredLoads | None = None

    def start_comparing(self, upto: int) -> None:
        """Starts to compare inserts with the recovered epochs, up to `upto`."""
        self._state = _RecoveredLoads(upto, {})

    @property
    def is_comparing(self) -> bool:
        """True if inserts are compared."""
        return self._state is not None

    def exclude_after(self, epoch: int) -> None:
        """Excludes the epochs after `epoch`, which a rewind has undone."""
        state = self._state
        if state is not None:
            self._state = _RecoveredLoads(min(state.upto, epoch), {})

    def recovered_epochs(
        self, history: History, number: int, now: int, count: int
    ) -> LoadedEpochs | None:
        """Returns the recovered epochs that only added rows to an input; None if comparing is over.

        `EPOCHS_MAX` epochs after the recovery, comparing ends and its cache is dropped.

        Args:
            history: the history of the log.
            number: the number of the input's log.
            now: the last epoch.
            count: the number of rows of the longest load to compare. Epochs with more rows in files
                are not read.

        Cost: at the first call for an input, O(rows in packs and in memory) of at most 256 epochs.
        The hashes of rows in files are stored, so they are not computed.
        """
        state = self._state
        if state is None:
            return None
        if now >= state.upto + EPOCHS_MAX:
            self._state = None
            return None
        added = state.known.get(number)
        if added is None:
            added = state.known.setdefault(number, _epochs_to_compare(history, number, state.upto))
        for epoch in [each for each, least in added.large.items() if least <= count]:
            digest = _epoch_fingerprint(history, number, epoch)
            if digest is not None:
                added.note(epoch, digest)
            added.large.pop(epoch, None)
        return added


class LoadedEpochs(NamedTuple):
    """Epochs that only added rows to an input.

    Attributes:
        small: epochs by row count and fingerprint.
        large: epochs not read yet, because their rows are in files, each with its least row count.
    """

    small: dict[int, dict[LoadFingerprint, int]]
    large: dict[int, int]

    def note(self, epoch: int, added_rows: LoadFingerprint) -> None:
        """Adds the fingerprint of an epoch."""
        self.small.setdefault(added_rows.rows, {})[added_rows] = epoch


class _RecoveredLoads(NamedTuple):
    """The epochs to compare with.

    Attributes:
        upto: the epoch that was recovered.
        known: the epochs that added rows, by log.
    """

    upto: int
    known: dict[int, LoadedEpochs]


def _epochs_to_compare(history: History, number: int, upto: int) -> LoadedEpochs:
    """Returns the epochs to compare with: the first and the last readable ones."""
    readable = [each for each in history.epochs(number, upto) if each]
    added = LoadedEpochs({}, {})
    lower = 0
    for some in (_first_epochs(readable), _last_epochs(readable)):
        epochs = [each for each in some if each >= lower]
        if not epochs:
            continue
        lower = epochs[-1] + 1
        with suppress(CorruptLogError):  # then there is nothing to compare with
            changes = history.changes_by_epoch(number, epochs[0], lower)
            wanted = set(epochs)
            large = {e: least for e, least in changes.large.items() if e in wanted}
            added.large.update(large)
            for epoch, digest in _epoch_fingerprints(changes.small):
                if epoch in wanted and epoch not in large:
                    added.note(epoch, digest)
    return added


def _first_epochs(readable: Sequence[range]) -> list[int]:
    """Returns the first epochs of some ranges."""
    return [*islice(chain.from_iterable(readable), COMPARED_MAX)]


def _last_epochs(readable: Sequence[range]) -> list[int]:
    """Returns the last epochs of some ranges, ascending."""
    backwards = chain.from_iterable(map(reversed, reversed(readable)))
    return [*islice(backwards, COMPARED_MAX)][::-1]


class LoadRegistry:
    """Looks up recorded loads, and reports repeated ones.

    Args:
        repeated_loads: the inserts before the recovery.
    """

    def __init__(
        self,
        repeated_loads: RepeatedLoads,
        publisher: Publisher,
        transactions: Transactions,
        subscriptions: Subscriptions,
        is_frame: Callable[[Any], bool],
    ) -> None:
        self.repeated_loads = repeated_loads
        self._publisher = publisher
        self._transactions = transactions
        self._subscriptions = subscriptions
        self._is_frame = is_frame

    def is_loaded(self, mark: str) -> bool:
        """Returns True if an epoch, or the current transaction, has recorded a load."""
        return self._publisher.ledger.loaded(mark) or mark in self._transactions.current.once

    def last_note(self, mark: str) -> str:
        """Returns the last text that an epoch has recorded under a mark; empty if there is none."""
        return self._publisher.ledger.load(mark)

    def warn_if_repeated(self, name: str) -> None:
        """Warns if the last insert is equal to one from before the restart.

        It reports each such epoch once.
        """
        if not self.repeated_loads.is_comparing:
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
        recovered = self.repeated_loads.recovered_epochs(
            history, number, snapshot.epoch, _rows_count(changes)
        )
        if recovered is None:
            return
        for calls in (changes[-1:], changes)[: len(changes)]:
            same = recovered.small.get(_rows_count(calls))
            if not same:
                continue
            epoch = same.pop(fingerprint_of_calls(calls, stage.schema.types), None)
            rows_before = transaction.inputs[name].earlier(len(calls))
            if epoch is not None and _are_present(snapshot.contents(name), calls, rows_before):
                warn(_repeat_warning(name, calls, epoch), stacklevel=_CALLER)
                return

    def alike(self, before: int, now: int) -> list[str]:
        """Returns the inputs without a key that contain twice the rows that both epochs have added.

        Cost: O(rows of those epochs).
        """
        snapshot, history = self._publisher.snapshot, self._publisher.store.history
        same = []
        for name, stage in snapshot.catalog.items():
            number = snapshot.graph.named[name].log if stage.is_input else None
            if number is None or stage.key is not None:
                continue
            rows = _epoch_fingerprint(history, number, now)
            if rows is None or rows != _epoch_fingerprint(history, number, before):
                continue
            added = history.changes(number, now - 1, now)
            if _contains(snapshot.contents(name), [batch.updates for batch in added], times=2):
                same.append(name)
        return same

    def skip(self, what: str, once: Any, mark: str, load: str, *, stacklevel: int) -> None:
        """Reports that a load is skipped; warns if its rows differ from the recorded ones."""
        self._transactions.current.skip()
        before = self._publisher.ledger.load(mark) or self._transactions.current.once.get(mark, "")
        if _loads_differ(before, load):
            warn(
                f"{what.rstrip(':')}: its rows differ from those loaded as {once!r}; nothing"
                " was inserted\nHint: use set(rows) to make the input equal to them, or"
                " another key",
                stacklevel=stacklevel,
            )
        else:
            self._subscriptions.add_notice(f"{what} {once!r} {ALREADY}")

    def skipped_fingerprint(self, name: str, kind: str, data: Any) -> str:
        """Returns the fingerprint of a skipped call; empty for DataFrames and iterators.

        Those would have to be consumed. Rows that do not fit the input have a fingerprint unlike
        any other.
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
    """Returns the fingerprints of all inputs of a transaction as one text."""
    inputs = transaction.inputs.values()
    loads = {
        each.stage.name: load_text(each.stage, each.changes) for each in inputs if each.changes
    }
    return json.dumps(loads, sort_keys=True) if loads else ""


def _are_present(contents: Trace, calls: Sequence[PendingCall], earlier: Sequence[Updates]) -> bool:
    """Returns True if an input has the rows of some inserts already, after the earlier calls.

    Failure: 1. An epoch inserts rows. 2. After a restart `clear()` removes them, in the same
    transaction or before. 3. They are inserted again, and the warning says that they are there
    twice. Hence the current contents are checked as well.
    """
    types = contents.layout.types
    if earlier:
        contents = contents.with_batch(arrange(contents.layout, concat_updates(earlier, types)))
    return _contains(contents, [piece for call in calls for piece in call.row_parts], times=1)


def _contains(contents: Trace, parts: Sequence[Updates], *, times: int) -> bool:
    """Returns True if contents have some rows at least `times` times."""
    layout = contents.layout
    rows_wanted = concat_updates(parts, layout.types)
    negated = arrange(layout, Updates(rows_wanted.columns, rows_wanted.diff * -times))
    return not stats.has_negative(contents.with_batch(negated), negated.updates)


def _loads_differ(before: str, now: str) -> bool:
    """Returns True if two loads are known to differ.

    Loads of columns with other types cannot be compared.
    """
    if not before or not now:
        return False
    block = now.startswith("{")
    return before != now and (block or before.partition(" ")[0] == now.partition(" ")[0])


def _repeat_warning(name: str, calls: Sequence[PendingCall], epoch: int) -> str:
    """Returns the text of the warning about a repeated insert."""
    count = _rows_count(calls)
    return (
        f"input '{name}': the {count} rows to insert are those that epoch {epoch} inserted"
        " before the restart; they will be counted twice\nHint: use insert(rows, once=KEY) to"
        " load rows once, or set(rows) to make the input equal to rows; session.discard()"
        " drops the pending changes"
    )


def _epoch_fingerprint(history: History, number: int, epoch: int) -> LoadFingerprint | None:
    """Returns the fingerprint of the rows that an epoch added to an input.

    Returns None if the epoch added no rows, or removed some.
    """
    try:
        batches = history.changes(number, epoch - 1, epoch)
    except (TimeError, CorruptLogError):  # downsampled, or not readable: nothing to compare with
        return None
    batches = [batch for batch in batches if len(batch)]
    if not batches or any((batch.diff < 0).any() for batch in batches):
        return None
    return fingerprint((batch.rhash, batch.diff) for batch in batches)


def _epoch_fingerprints(
    pieces: Sequence[tuple[Layout, Epochs, Updates]],
) -> Iterator[tuple[int, LoadFingerprint]]:
    """Yields the fingerprint of each epoch that only added rows."""
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


def _rows_count(calls: Sequence[PendingCall]) -> int:
    """Returns the row count of some inserts."""
    return sum(len(u.diff) for call in calls for u in call.row_parts)


class LoadFingerprint(NamedTuple):
    """A fingerprint of a load, computed from row hashes, that ignores the order of its rows.

    Equal multisets have equal fingerprints; different multisets have different ones, except by a
    rare chance. The log records one for each load with an idempotency key.
    """

    rows: int
    sum: int
    squares: int


def load_text(stage: Stage, calls: Sequence[PendingCall]) -> str:
    """Returns the calls on one input as a text for the log: equal for equal rows in any order."""
    every = stage.schema.types
    text = [type_kinds(every)]
    for kind in dict.fromkeys(call.kind for call in calls):
        types = every
        if kind == "delete":  # its rows are keys
            types = tuple(every[i] for i in stage.key or ())
        each = fingerprint_of_calls([call for call in calls if call.kind == kind], types)
        text.append(f"{kind} {each.rows} {each.sum:x} {each.squares:x}")
    return " ".join(text)


def type_kinds(types: Sequence[str]) -> str:
    """Returns a short digest of the types of columns.

    A fingerprint needs it because the hash of a number depends on its type.
    """
    return hashlib.blake2b("\n".join(types).encode(), digest_size=4).hexdigest()


def fingerprint_of_calls(calls: Sequence[PendingCall], types: Sequence[str]) -> LoadFingerprint:
    """Returns the fingerprint of the rows of some inserts."""
    return fingerprint(
        (rows.hash_columns(u.columns, types, len(u.diff)), u.diff)
        for call in calls
        for u in call.row_parts
    )


def fingerprint(
    parts: Iterator[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]],
) -> LoadFingerprint:
    """Returns the fingerprint of rows, given as hashes and counts.

    Neither the order of the rows nor their division into parts matters.
    """
    count = sums = squares = 0
    for hashes, diff in parts:
        times = diff.view(np.uint64)
        count += int(diff.sum())
        sums += int((hashes * times).sum())
        squares += int((hashes * hashes * times).sum())
    return LoadFingerprint(count, sums % 2**64, squares % 2**64)


# -- idempotency keys ---------------------------------------------------------------------------


def check_idempotency_key(once: Any, what: str) -> None:
    """Raises SchemaError if a key may have another text the next time that the cell is run.

    Raises:
        SchemaError: if it is not a text, a number, a date or time, or made of these.
    """
    parts = [once]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            parts += [*part.keys(), *part.values()]
        elif isinstance(part, list | tuple):
            parts += part
        elif not (part is None or isinstance(part, _KEY_TYPES) or hasattr(part, "isoformat")):
            kind = type(part).__name__
            raise SchemaError(
                f"{what}: once={once!r:.60} is not a key: type {kind} cannot be compared after"
                " a restart",
                hint="use a text, a number or a date, such as once='2024-01'",
            )


_KEY_TYPES = (str, int, float, Decimal, np.generic, PurePath, UUID)


def idempotency_mark(uid: str, kind: str, once: Any) -> str:
    """Returns the text that the log records for a call with a key on an input."""
    return json.dumps([uid, kind, _json_key(once)])


def _json_key(once: Any) -> Any:
    """Returns a key as JSON: numbers and texts unchanged, other values as text."""
    return once if isinstance(once, str | int | float | bool) else str(once)
