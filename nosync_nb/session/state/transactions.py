"""The transactions of a session: changes of inputs that wait for their epoch.

A transaction stores the calls of users (insert, remove, set, upsert, ...) for each input. It
becomes one epoch, or none.

A call is stored with its effect on the current contents of the input. So invalid data is an error
at the call, and leaves everything unchanged. If another transaction changes the input first, the
effect is computed again at the commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from nosync_nb import rows
from nosync_nb.dataflow.runtime.delta import ArrangedChange, Delta
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import SchemaError
from nosync_nb.operators.grouping import Groups, group_rows
from nosync_nb.operators.user_functions import named_tuples
from nosync_nb.rows import Schema
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Layout, Updates, arrange, concat_updates, merge, no_updates

_FEW = 96
_SLICE = 1 << 14
_get_parts = attrgetter("parts")


class PendingCall(NamedTuple):
    """One call on an input, with the rows as they were at the call.

    The rows of a DataFrame or of a large insert are in files. Then `held` has them by layout, and
    `updates` is None.
    """

    kind: str
    updates: Updates | None
    held: Mapping[Layout, ArrangedChange] = MappingProxyType({})

    def asks(self, *, keyed: bool) -> bool:
        """Returns True if its effect depends on the contents of the input."""
        return keyed or self.kind not in ("insert", "remove")

    @property
    def files(self) -> set[str]:
        """The files that were written for the call."""
        return {ref.path for held in self.held.values() for ref in held.refs}

    @property
    def row_parts(self) -> list[Updates]:
        """The rows; those in files are memory-mapped, not read."""
        if self.updates is not None:
            return [self.updates]
        return [part.updates for part in next(iter(self.held.values())).parts]


class RecordedCall(NamedTuple):
    """An accepted call, its effect after the earlier calls, and its thread.

    `once` is the idempotency key of a load, with the fingerprint of its rows.
    """

    change: PendingCall
    parts: Sequence[Updates]
    thread: int
    once: tuple[str, str] | None = None


class _CallsOnBase(NamedTuple):
    """Calls, and the contents of the input that their effects were computed for."""

    base: Trace
    calls: list[RecordedCall]


class PendingInputChanges:
    """The pending changes of one input.

    IMPORTANT: an interrupt may come between any two steps, and must not lose pending rows. So all
    that is recorded of a call is one value, which one step appends; everything else is derived from
    these values.
    """

    def __init__(self, stage: Stage, contents: Trace) -> None:
        self.stage = stage
        self._state = _CallsOnBase(contents, [])
        self._no_key_or_file = (
            True  # no call has a key or files; False before such a call is appended
        )

    @property
    def calls(self) -> int:
        """The number of pending calls (insert, remove, set, ...)."""
        return len(self._state.calls)

    @property
    def changes(self) -> list[PendingCall]:
        """The pending calls, in order."""
        return [call.change for call in self._state.calls]

    @property
    def files(self) -> set[str]:
        """The files that were written for the calls."""
        files: set[str] = set()
        for call in () if self._no_key_or_file else self._state.calls:
            if call.change.held:
                files |= call.change.files
        return files

    @property
    def parts(self) -> list[Updates]:
        """The effects of the calls, as updates."""
        return _effects(self._state.calls)

    @property
    def threads(self) -> set[int]:
        """The threads that made the calls; other threads read committed rows."""
        return {call.thread for call in self._state.calls}

    @property
    def idempotency_keys(self) -> dict[str, str]:
        """The idempotency keys of the pending loads, each with a fingerprint."""
        once = {}
        for call in () if self._no_key_or_file else self._state.calls:
            if call.once is not None:
                once[call.once[0]] = call.once[1]
        return once

    @property
    def waits(self) -> bool:
        """True if the pending calls change anything."""
        return any(call.parts for call in self._state.calls)

    @property
    def rows(self) -> int:
        """The number of rows that the calls add and remove, duplicates included."""
        return _rows_count(self.parts)

    @property
    def removed(self) -> int:
        """The number of rows that the calls remove, duplicates included."""
        return sum(-int(p.diff[p.diff < 0].sum()) for p in self.parts)

    def earlier(self, last: int) -> list[Updates]:
        """Returns the effects of the calls, without those of the newest `last` ones."""
        calls = self._state.calls
        return _effects(calls[: len(calls) - last])

    def absent(self, change: PendingCall) -> Updates | None:
        """Returns the rows that a `remove` by key, one of the calls, did not find.

        None if it found all of them.
        """
        call = next(call for call in self._state.calls if call.change is change)
        types = self.stage.schema.types
        both = concat_updates([*change.row_parts, *call.parts], types)
        if not int(both.diff.sum()):
            return None
        return arrange(Layout(types, self.stage.key), both).updates

    def add(self, change: PendingCall, contents: Trace, once: tuple[str, str] | None = None) -> int:
        """Adds a call; returns the number of rows that it adds and removes, duplicates included.

        Raises:
            SchemaError: if a key is null or already present; then nothing is added.
        """
        if contents is not self._state.base:
            self._recompute(contents)
        calls = self._state.calls
        parts = _effect(self.stage, change, contents, calls)
        if once is not None or change.held:
            self._no_key_or_file = False
        call = RecordedCall(change, parts, threading.get_ident(), once)
        count = _rows_count(parts)
        calls.append(call)
        return count

    def delta(self, contents: Trace) -> Delta | None:
        """Returns the change of the input for its epoch; None if there is no change."""
        keyed = self.stage.key is not None
        calls = self._state.calls
        if contents is not self._state.base and any(c.change.asks(keyed=keyed) for c in calls):
            self._recompute(contents)
            calls = self._state.calls
        parts = _effects(calls)
        if not parts:
            return None
        types = self.stage.schema.types
        if len(calls) == 1 and calls[0].change.kind == "insert":
            held = calls[0].change.held
            # The files are not the whole change if the load also repairs a count below 0.
            if held and (not keyed or self.rows == _copies_count(next(iter(held.values())))):
                return Delta(types, None, dict(held))
        return Delta(types, concat_updates(parts, types))

    def contents_after(self, contents: Trace) -> Trace:
        """Returns the contents of the input with the effects of the calls applied."""
        keyed = self.stage.key is not None
        calls = self._state.calls
        if contents is not self._state.base and any(c.change.asks(keyed=keyed) for c in calls):
            self._recompute(contents)
        return _with_earlier(contents, self.parts)

    def fork(self) -> PendingInputChanges:
        """Returns a copy to which calls can be added without changing this one."""
        copied = PendingInputChanges(self.stage, self._state.base)
        copied._no_key_or_file = self._no_key_or_file
        copied._state = _CallsOnBase(self._state.base, [*self._state.calls])
        return copied

    def _recompute(self, contents: Trace) -> None:
        """Recomputes the effects, because another transaction has changed the input."""
        calls: list[RecordedCall] = []
        for call in self._state.calls:
            calls.append(call._replace(parts=_effect(self.stage, call.change, contents, calls)))
        self._state = _CallsOnBase(contents, calls)


def _effects(calls: Sequence[RecordedCall]) -> list[Updates]:
    """Returns the effects of calls, in order."""
    return [*chain.from_iterable(map(_get_parts, calls))]


def _rows_count(parts: Sequence[Updates]) -> int:
    """Returns the number of rows that updates add and remove, duplicates included."""
    total = 0
    for part in parts:
        if len(part.diff) <= _FEW:
            total += sum(map(abs, part.diff.tolist()))
            continue
        # In slices, because the message of an out-of-memory error needs the count, too.
        slices = range(0, len(part.diff), _SLICE)
        total += sum(int(np.abs(part.diff[at : at + _SLICE]).sum()) for at in slices)
    return total


def _copies_count(change: ArrangedChange) -> int:
    """Returns the number of rows that a change adds, duplicates included."""
    return sum(int(part.diff.sum()) for part in change.parts)


def _effect(
    stage: Stage, change: PendingCall, contents: Trace, before: Sequence[RecordedCall]
) -> list[Updates]:
    """Returns the effect of a call as updates.

    The effect applies to the contents after the earlier calls of the transaction.
    """
    if stage.key is None and change.kind == "insert":
        parts = change.row_parts
    elif stage.key is None and change.kind == "remove":
        parts = [piece.negated() for piece in change.row_parts]
    else:
        parts = [_effect_on_contents(stage, change, contents, _effects(before))]
    return [updates for updates in parts if len(updates.diff)]


def _effect_on_contents(
    stage: Stage, change: PendingCall, contents: Trace, before: Sequence[Updates]
) -> Updates:
    """Returns the effect of a call that depends on the contents of the input."""
    layout = Layout(stage.schema.types, stage.key)
    pieces = change.row_parts
    updates = concat_updates(pieces, layout.types) if pieces else no_updates(layout.types)
    trace = _with_earlier(contents, before)
    if change.kind in ("set", "clear"):
        target = arrange(layout, _last_row_of_keys(stage, updates))
        old = [p for p in trace.parts() if len(p)]
        if not old:
            return target.updates
        now = merge(trace.layout, old)
        if not len(target):
            return now.updates.negated()
        return arrange(
            layout, concat_updates([target.updates, now.updates.negated()], layout.types)
        ).updates
    assert stage.key is not None
    if change.kind == "delete":
        return rows_of_keys(stage, updates.columns, trace).negated()
    if change.kind == "remove":
        return _present_removed(stage, updates, trace)
    rows_ = _last_row_of_keys(stage, updates, unique=change.kind == "insert")
    keys = [rows_.columns[i] for i in stage.key]
    old_rows = rows_of_keys(stage, keys, trace)
    if change.kind == "insert":
        _refuse_existing(stage, old_rows)
    both = concat_updates([old_rows.negated(), rows_], layout.types)
    return arrange(layout, both).updates  # rows that are already present cancel out


def _with_earlier(contents: Trace, before: Sequence[Updates]) -> Trace:
    """Returns the contents with the transaction's earlier updates applied."""
    if not before:
        return contents
    return contents.with_batch(
        arrange(contents.layout, concat_updates(before, contents.layout.types))
    )


def _last_row_of_keys(stage: Stage, updates: Updates, *, unique: bool = False) -> Updates:
    """Returns the last row of each key.

    Raises:
        SchemaError: a key is null, or, if `unique`, two rows have the same key.
    """
    if stage.key is None or not len(updates.diff):
        return updates
    names = [stage.schema.names[i] for i in stage.key]
    keys = [updates.columns[i] for i in stage.key]
    for name, column in zip(names, keys, strict=True):
        null = rows.null_mask(column)
        if null is not None and null.any():
            raise SchemaError(
                f"input '{stage.name}': key '{name}' is null in row {int(null.argmax())}",
                hint="drop the rows without a key, or use an input without key=",
            )
    groups = group_rows(keys, [stage.schema.types[i] for i in stage.key], len(updates.diff))
    if unique and int(updates.diff.sum()) > len(groups.starts):
        _refuse_twice(stage, updates, groups)
    if len(groups.starts) < len(updates.diff):
        ends = np.append(groups.starts[1:], len(groups.order)) - 1
        updates = updates.take(np.sort(groups.order[ends]))
    if not (updates.diff == 1).all():  # equal rows of a DataFrame arrive as one row with a count
        updates = Updates(updates.columns, np.ones(len(updates.diff), np.int64))
    return updates


def rows_of_keys(stage: Stage, keys: Sequence[Any], trace: Trace) -> Updates:
    """Returns the rows stored under some keys, consolidated."""
    assert stage.key is not None
    types = stage.schema.types
    n = len(keys[0])
    khash = rows.hash_columns(list(keys), [types[i] for i in stage.key], n)
    _, first = np.unique(khash, return_index=True)
    keys = [rows.take(k, first) for k in keys]
    hit = trace.lookup(khash[first], keys)
    if hit is None:
        return Updates([rows.empty(t) for t in types], np.zeros(0, np.int64))
    return arrange(Layout(types, stage.key), Updates(hit.columns, hit.diff)).updates


def _present_removed(stage: Stage, updates: Updates, trace: Trace) -> Updates:
    """Returns the updates that remove those of some rows that are present.

    An absent row is left alone, because its key may belong to another row.
    """
    assert stage.key is not None
    layout = Layout(stage.schema.types, stage.key)
    present = rows_of_keys(stage, [updates.columns[i] for i in stage.key], trace)
    present = present.take((present.diff > 0).nonzero()[0])
    removed = updates.negated()
    left = arrange(layout, concat_updates([present, removed], layout.types)).updates
    absent = left.take((left.diff < 0).nonzero()[0]).negated()
    return arrange(layout, concat_updates([removed, absent], layout.types)).updates


def _refuse_existing(stage: Stage, existing: Updates) -> None:
    """Raises SchemaError if a key to insert is present or pending."""
    present = (existing.diff > 0).nonzero()[0]
    if len(present):
        key = key_text(stage, existing, int(present[0]))
        raise SchemaError(
            f"input '{stage.name}': key {key} exists already",
            hint=f"replace it with {stage.name}.upsert(rows), or delete it first",
        )


def _refuse_twice(stage: Stage, updates: Updates, groups: Groups) -> None:
    """Raises SchemaError for the first key that has two rows in one insert."""
    many = np.add.reduceat(updates.diff[groups.order], groups.starts) > 1
    row = int(groups.order[groups.starts[many]].min())
    raise SchemaError(
        f"input '{stage.name}': key {key_text(stage, updates, row)} occurs twice in the rows",
        hint=f"keep one row of each key, or use {stage.name}.upsert(rows), which keeps the last",
    )


def key_text(stage: Stage, updates: Updates, row: int) -> str:
    """Returns the key of a row as text for messages."""
    assert stage.key is not None
    schema = Schema([stage.schema.fields[i] for i in stage.key])
    first = named_tuples(
        [rows.slice_(updates.columns[i], row, row + 1) for i in stage.key], schema, 1
    )[0]
    return repr(first[0] if len(first) == 1 else tuple(first))


@dataclass
class Transaction:
    """Pending changes that will be one epoch, all or none.

    Attributes:
        keyed: True if the whole transaction is one load with an idempotency key.
        logged: True if a frame of the log may name its files, even if its commit failed.
        epoch: the last epoch that it has become, even if the commit raised an error.
        skipped: True if one of its loads was already committed.
        unchanged: inputs that must not change before the commit, by name, each with the epoch from
            which its contents were complete when they were read.
        merged: the changes of the transaction that adopts this fork.
    """

    label: str | None = None
    inputs: dict[str, PendingInputChanges] = field(default_factory=dict)
    keyed: bool = False
    logged: bool = False
    epoch: int | None = None
    skipped: bool = False
    ender: Callable[[Transaction, bool, Any, Any], Any] | None = None
    unchanged: Mapping[str, int] = field(default_factory=dict)
    merged: dict[str, PendingInputChanges] | None = None
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
        """Records that the whole transaction is a load of these keys, each with a fingerprint."""
        self._whole = {**self._whole, **once}

    @property
    def notes(self) -> Mapping[str, tuple[str, str]]:
        """Notes of this epoch in the log: by mark, the new text and the expected current text."""
        return self._notes

    def note(self, mark: str, text: str, before: str) -> None:
        """Adds a note; see `notes`."""
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

    def fork(self) -> Transaction:
        """Returns a transaction with the same pending changes, to which more can be added."""
        inputs = {name: changes.fork() for name, changes in list(self.inputs.items())}
        return Transaction(inputs=inputs, unchanged=dict(self.unchanged))

    def adopt(self, fork: Transaction, base: Transaction, contents: Mapping[str, Trace]) -> None:
        """Adds the changes that a fork has in addition, in one step: all, or none.

        The caller must hold the writer lock.

        Args:
            fork: a fork of this transaction, with more calls.
            base: another fork, made at the same time and not changed since.
            contents: the current contents of the inputs.

        Raises:
            SchemaError: if they do not fit the calls that other threads have added meanwhile.
        """
        merged = dict(self.inputs)
        for name, changes in fork.inputs.items():
            before, now = base.inputs.get(name), self.inputs.get(name)
            known = 0 if before is None else before.calls
            if now is None or now.calls == known:
                merged[name] = changes
                continue
            merged[name] = joined = now.fork()
            for change in changes.changes[known:]:
                joined.add(change, contents[name])
        self.unchanged = {**self.unchanged, **fork.unchanged}
        fork.merged = merged
        self.inputs = merged  # IMPORTANT: the only step that adds the changes

    def has_adopted(self, fork: Transaction) -> bool:
        """Returns True if the changes of a fork were added, even if an interrupt followed."""
        return fork.merged is not None and self.inputs is fork.merged

    def require_unchanged(self, name: str, epoch: int) -> None:
        """Records that an input must not change before the commit; see `unchanged`."""
        self.unchanged = {**self.unchanged, name: epoch}

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
        """Drops all changes, keys and notes; returns the number of updates dropped."""
        count = sum(c.rows for c in self.inputs.values())
        self.forget()
        return count

    def forget(self) -> None:
        """Drops all changes, keys and notes."""
        self.inputs.clear()
        self.unchanged = {}
        self._whole, self._notes = {}, {}
        self.logged = False

    def skip(self) -> None:
        """Records that a load was left out because it is already committed."""
        self.skipped = True

    def log(self) -> None:
        """Records that a frame may name the files of the transaction."""
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
        """Sets the current transaction of this thread for a `with` block."""
        outer = self._local.transaction
        try:
            try:
                self._local.transaction = transaction
                yield
            finally:
                self._local.transaction = outer
        except BaseException:  # also one that is raised by the clean-up
            self._local.transaction = outer
            raise
