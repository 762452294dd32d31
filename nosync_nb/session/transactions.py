"""Transactions: changes of inputs that wait for their epoch.

A transaction keeps what users asked for (insert, remove, set, upsert, ...) and, as soon as it is
asked, what it means over the inputs as they are now, so that bad data is an error at the call and
leaves everything as it was. If another transaction changes an input first, the meaning is computed
again at the commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from nosync_nb import rows
from nosync_nb.dataflow.delta import Delta, Held
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import SchemaError
from nosync_nb.operators.functions import tuples
from nosync_nb.operators.keys import group
from nosync_nb.rows import Schema
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Layout, Updates, arrange, concat_updates, merge, no_updates

_FEW = 96


class Change(NamedTuple):
    """One call on an input: what was asked, with the rows as they were at the call.

    Rows that came as a DataFrame lie in files: `held`, by layout, and no `updates`.
    """

    kind: str
    updates: Updates | None
    held: Mapping[Layout, Held] = MappingProxyType({})

    def asks(self, *, keyed: bool) -> bool:
        """Whether what it means depends on what is there."""
        return self.kind not in (("remove",) if keyed else ("insert", "remove"))

    @property
    def files(self) -> set[str]:
        """The files that were written for it."""
        return {ref.path for held in self.held.values() for ref in held.refs}

    @property
    def pieces(self) -> list[Updates]:
        """The rows; those of files are mapped, not read."""
        if self.updates is not None:
            return [self.updates]
        return [part.updates for part in next(iter(self.held.values())).parts]


@dataclass
class InputChanges:
    """The pending changes of one input.

    Attributes:
        calls: insert, remove, set... calls so far.
        changes: the calls.
        parts: what they mean as updates over `base`, the input's contents when it was computed.
        threads: who made them; others read what is committed.
    """

    stage: Stage
    calls: int = 0
    changes: list[Change] = field(default_factory=list)
    parts: list[Updates] = field(default_factory=list)
    base: Trace | None = None
    threads: set[int] = field(default_factory=set)

    @property
    def rows(self) -> int:
        """Rows that wait to be added or taken away, copies counted."""
        return _rows(self.parts)

    @property
    def removed(self) -> int:
        """How many of them are to be taken away."""
        return sum(-int(p.diff[p.diff < 0].sum()) for p in self.parts)

    @property
    def takes_away(self) -> bool:
        """Whether somebody called `remove`, with rows."""
        if self.parts:
            for change in self.changes:
                if change.kind == "remove":
                    return True
        return False

    def add(self, change: Change, contents: Trace) -> int:
        """Adds a call; returns the number of rows it means, copies counted.

        Raises:
            SchemaError: if a key is null or there already; nothing is added then.
        """
        if self.changes and contents is not self.base:
            self._again(contents)
        self.base = contents
        made = _meant(self.stage, change, contents, self.parts)
        self.calls += 1
        self.changes.append(change)
        self.parts += made
        return _rows(made)

    def delta(self, contents: Trace) -> Delta | None:
        """The change of the input for its epoch, None if there is none."""
        keyed = self.stage.key is not None
        if contents is not self.base and any(c.asks(keyed=keyed) for c in self.changes):
            self._again(contents)
        if not self.parts:
            return None
        types = self.stage.schema.types
        if len(self.changes) == 1 and self.changes[0].kind == "insert":
            held = self.changes[0].held
            # Of two rows with one key one counts; then what lies in files is not the change.
            if held and (not keyed or self.rows == _copies(next(iter(held.values())))):
                return Delta(types, None, dict(held))
        return Delta(types, concat_updates(self.parts, types))

    def _again(self, contents: Trace) -> None:
        """Computes the meaning anew, as somebody else changed the input."""
        parts: list[Updates] = []
        for change in self.changes:
            parts += _meant(self.stage, change, contents, parts)
        self.parts, self.base = parts, contents


@dataclass
class Transaction:
    """Pending changes that will be one epoch, all or none.

    `once` holds the keys of repeatable loads that this epoch records, each with a digest of what it
    loads; `keyed` says that all of it is such a load; `logged` that a frame of the log may name its
    files, even if its commit failed; `epoch` is what it became last, whatever its commit raised.
    """

    label: str | None = None
    inputs: dict[str, InputChanges] = field(default_factory=dict)
    once: dict[str, str] = field(default_factory=dict)
    keyed: bool = False
    logged: bool = False
    epoch: int | None = None
    ender: Callable[[Transaction, bool, Any, Any], Any] | None = None

    @property
    def pending(self) -> dict[str, InputChanges]:
        """The inputs with changes that wait."""
        return {n: c for n, c in list(self.inputs.items()) if c.parts}

    @property
    def files(self) -> set[str]:
        """The files that were written for what waits."""
        files: set[str] = set()
        for changes in self.inputs.values():
            for change in changes.changes:
                if change.held:
                    files |= change.files
        return files

    def __bool__(self) -> bool:
        return bool(self.once) or any(c.parts for c in self.inputs.values())

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
        self.once.clear()
        self.logged = False

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


def taken(parts: Sequence[Updates], types: Sequence[str]) -> Updates:
    """Those rows of updates that are to be taken away."""
    changed = concat_updates(parts, types)
    return changed.take((changed.diff < 0).nonzero()[0])


def _rows(parts: Sequence[Updates]) -> int:
    """How many rows updates add and take away, copies counted."""
    total = 0
    for part in parts:
        diff = part.diff
        total += sum(map(abs, diff.tolist())) if len(diff) <= _FEW else int(np.abs(diff).sum())
    return total


def _copies(held: Held) -> int:
    """How many rows a change adds, copies counted."""
    return sum(int(part.diff.sum()) for part in held.parts)


def _meant(
    stage: Stage, change: Change, contents: Trace, before: Sequence[Updates]
) -> list[Updates]:
    """What a call means as updates, over the contents and the transaction's earlier updates."""
    updates = change.updates
    if stage.key is None and change.kind == "insert":
        made = change.pieces if updates is None else [updates]
    elif change.kind == "remove":
        pieces = change.pieces if updates is None else [updates]
        made = [piece.negated() for piece in pieces]
    else:
        made = [_meaning(stage, change, contents, before)]
    return [updates for updates in made if len(updates.diff)]


def _meaning(stage: Stage, change: Change, contents: Trace, before: Sequence[Updates]) -> Updates:
    """What a call means that asks what is there."""
    layout = Layout(stage.schema.types, stage.key)
    pieces = change.pieces
    updates = concat_updates(pieces, layout.types) if pieces else no_updates(layout.types)
    trace = _overlaid(contents, before)
    if change.kind in ("set", "clear"):
        wanted = arrange(layout, _keyed(stage, updates))
        old = [p for p in trace.parts() if len(p)]
        if not old:
            return wanted.updates
        now = merge(trace.layout, old)
        return arrange(
            layout, concat_updates([wanted.updates, now.updates.negated()], layout.types)
        ).updates
    assert stage.key is not None
    if change.kind == "delete":
        return _found(stage, updates.columns, trace).negated()
    rows_ = _keyed(stage, updates)
    keys = [rows_.columns[i] for i in stage.key]
    old_rows = _found(stage, keys, trace)
    if change.kind == "insert":
        _refuse_existing(stage, [old_rows.columns[i] for i in stage.key], contents)
    both = concat_updates([old_rows.negated(), rows_], layout.types)
    return arrange(layout, both).updates  # rows that are there already change nothing


def _overlaid(contents: Trace, before: Sequence[Updates]) -> Trace:
    """The contents with the transaction's earlier updates."""
    if not before:
        return contents
    return contents.with_batch(
        arrange(contents.layout, concat_updates(before, contents.layout.types))
    )


def _keyed(stage: Stage, updates: Updates) -> Updates:
    """One row for each key, the last; null keys are an error."""
    if stage.key is None or not len(updates.diff):
        return updates
    names = [stage.schema.names[i] for i in stage.key]
    keys = [updates.columns[i] for i in stage.key]
    for name, column in zip(names, keys, strict=True):
        null = rows.null_mask(column)
        if null is not None and null.any():
            raise SchemaError(
                f"input '{stage.name}': key '{name}' is null in row {int(null.argmax())}",
                hint="drop the rows without a key, or use an input without key",
            )
    groups = group(keys, [stage.schema.types[i] for i in stage.key], len(updates.diff))
    if len(groups.starts) < len(updates.diff):
        ends = np.append(groups.starts[1:], len(groups.order)) - 1
        updates = updates.take(np.sort(groups.order[ends]))
    if not (updates.diff == 1).all():  # equal rows of a DataFrame come as one, counted
        updates = Updates(updates.columns, np.ones(len(updates.diff), np.int64))
    return updates


def _found(stage: Stage, keys: Sequence[Any], trace: Trace) -> Updates:
    """The rows held under given keys, added up."""
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


def _refuse_existing(stage: Stage, keys: Sequence[Any], contents: Trace) -> None:
    """Raises if a key that an insert would replace was there before the transaction."""
    held = _found(stage, keys, contents)
    if not len(held.diff):
        return
    assert stage.key is not None
    schema = Schema([stage.schema.fields[i] for i in stage.key])
    first = tuples([rows.slice_(held.columns[i], 0, 1) for i in stage.key], schema, 1)[0]
    shown = first[0] if len(first) == 1 else tuple(first)
    raise SchemaError(
        f"input '{stage.name}': key {shown!r} is there already",
        hint=f"replace it with {stage.name}.upsert(rows), or delete it first",
    )
