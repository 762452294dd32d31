"""Compares two collections: two stages, or versions, epochs or sessions of one.

The difference of two epochs of one collection is read as its changes, at a cost proportional to
them. For two collections both states are read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from graphlib import TopologicalSorter
from itertools import chain
from typing import Any, NamedTuple

from nosync_nb.collections.collection import Collection
from nosync_nb.collections.comparison import (
    Comparison,
    ComparisonSide,
    RowChanges,
    differing_counts,
    first_row_changes,
    restricted_comparison,
    row_difference,
)
from nosync_nb.collections.definition import Definition
from nosync_nb.collections.session_protocol import SessionProtocol, definition_of, session_of
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.errors import SchemaError, StageError, one_line
from nosync_nb.operators.registry import row_key
from nosync_nb.operators.spec import Key
from nosync_nb.rows import Schema
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.trace.batch import Batch, Updates, no_updates
from nosync_nb.trace.history import pack_tree
from nosync_nb.trace.history.archive import add_sums


class _ResolvedSide(NamedTuple):
    """One side of a comparison: its epoch, host and definition, and its column positions."""

    side: ComparisonSide
    host: SessionProtocol
    definition: Definition
    places: Sequence[int]


class CompareService:
    """Compares the collections of a session; has no state.

    Args:
        host: the host of the session's own collections.
    """

    def __init__(self, publisher: Publisher, host: SessionProtocol) -> None:
        self._publisher = publisher
        self._host = host

    def compare(
        self,
        a: Collection,
        b: Collection | None,
        at: Any,
        by: str | Sequence[str] | None,
        columns: Sequence[str] | None,
    ) -> Comparison:
        """Compares both collections at their epochs; see `Session.compare`."""
        pair = isinstance(at, tuple | list)
        if b is None and not pair:
            raise StageError(
                f"compare: there is nothing to compare {a!r} with",
                hint="pass another stage, or two epochs: at=(5, 9)",
            )
        other = a if b is None else b
        for each in (a, other):
            definition_of("compare", each)
        epochs = tuple(at) if pair else (at, at)
        if len(epochs) != 2:
            raise SchemaError(
                f"compare: at={at!r} is not an epoch, nor a pair of them",
                hint="write at=5, or at=(5, 9) for the first one at 5 and the second one at 9",
            )
        schema = _common_columns(a.schema, other.schema, columns)
        one, two = _resolve_side(a, epochs[0], schema), _resolve_side(other, epochs[1], schema)
        name = one.host.name_of(one.definition)
        if one.host is two.host and name and name == two.host.name_of(two.definition):
            difference = _epoch_difference(one, two, schema)
        else:
            difference = row_difference(
                _rows_of_side(one, schema), _rows_of_side(two, schema), schema.types
            )
        count = a.count(one.side.epoch)
        local = one if one.host is self._host else two
        live = None
        if epochs == (None, None) and one.host is two.host:
            live = partial(differing_counts, _with_columns(a, schema), _with_columns(other, schema))
        by_key = self._matching_places(local, schema, by)
        over = None
        if name and two.host.name_of(two.definition) and one.side.epoch == two.side.epoch:
            over = partial(
                _compare_epochs,
                one,
                two,
                schema,
                by_key,
                pack_tree.common(a.history(), other.history()),
            )
        return Comparison(one.side, two.side, schema, difference, count, by_key, live, over)

    def changes(self, collection: Collection, after: Any, upto: Any, *, limit: int) -> RowChanges:
        """Returns the first changes of a collection in `(after, upto]`, paired by its key if any.

        Args:
            after: the epoch before the changes; `None` means from the beginning.
            limit: the most changes to return.

        Raises:
            TimeError: an epoch is not readable.

        Cost: one vectorised pass over the changes.
        """
        definition, host = definition_of("changes", collection), session_of(collection)
        changes = host.changes(definition, after, upto)
        key = inferred_key(self._publisher.snapshot, definition) if host is self._host else None
        return first_row_changes(changes, collection.schema, key or (), limit)

    def _matching_places(
        self, one: _ResolvedSide, schema: Schema, by: str | Sequence[str] | None
    ) -> Key:
        """Returns the positions of the columns that match a row with its changed version.

        Args:
            one: a side that belongs to this session, if there is one.
        """
        if by is not None:
            return tuple(map(schema.index, [by] if isinstance(by, str) else by))
        if one.host is not self._host:
            return None
        key = inferred_key(self._publisher.snapshot, one.definition)
        if key is None or not all(place in one.places for place in key):
            return None
        return tuple(one.places.index(place) for place in key)


def _common_columns(a: Schema, b: Schema, columns: Sequence[str] | None) -> Schema:
    """Returns the columns to compare.

    Raises:
        SchemaError: the columns of both sides differ; quotes both schemas.
    """
    sides = (a, b) if columns is None else (a.select(columns), b.select(columns))
    if sides[0].types != sides[1].types or sides[0].names != sides[1].names:
        shared = [f.name for f in a.fields if f in b.fields]
        only = (
            f"compare the columns that both have: columns={shared}"
            if shared and columns is None
            else ""
        )
        raise SchemaError(
            f"compare: the columns differ: ({sides[0].ddl}) and ({sides[1].ddl})",
            hint=only or "give both the same columns with select('...')",
        )
    return sides[0]


def _with_columns(collection: Collection, schema: Schema) -> Collection:
    """Returns a collection with only the columns to compare."""
    if collection.schema.names == schema.names:
        return collection
    return collection.select(*("`" + name.replace("`", "``") + "`" for name in schema.names))


def _resolve_side(collection: Collection, at: Any, schema: Schema) -> _ResolvedSide:
    """Resolves one side: its epoch, its host and its columns."""
    definition, host = definition_of("compare", collection), session_of(collection)
    name = collection.name or one_line(repr(collection))
    places = [collection.schema.index(each) for each in schema.names]
    if at is None:
        host.apply_to_trace(definition, lambda _: None)  # raises if it depends on pending changes
    epoch = host.epoch(at)
    if at is None and (readable := collection.history()):
        epoch = readable[-1][-1]  # an earlier version has stopped
    return _ResolvedSide(ComparisonSide(name, epoch), host, definition, places)


def _rows_of_side(read: _ResolvedSide, schema: Schema) -> Updates:
    """Returns the rows of a side at its epoch."""
    return _rows_at(read, read.side.epoch, schema)


def _epoch_difference(one: _ResolvedSide, other: _ResolvedSide, schema: Schema) -> Batch:
    """Returns the difference between two epochs of one collection."""
    first, last = sorted((one.side.epoch, other.side.epoch))
    changed = restricted_comparison(
        one.host.changes(one.definition, first, last), one.places, schema.types
    )
    none = no_updates(schema.types)
    sides = (none, changed) if first == one.side.epoch else (changed, none)
    return row_difference(*sides, schema.types)


def _compare_epochs(
    one: _ResolvedSide,
    two: _ResolvedSide,
    schema: Schema,
    by: Key,
    readable: list[range],
    most: int,
) -> Iterator[Comparison]:
    """Yields comparisons at up to `most` epochs at which both sides can be read, oldest first.

    Each comparison is computed from the previous one and the changes since then.
    """
    upto = one.side.epoch
    epochs = [each[: bisect_right(each, upto)] for each in readable]
    many = sum(map(len, epochs))
    every = chain.from_iterable(epochs)
    gaps = max(1, most - 1)
    picked = {many - 1 - i * (many - 1) // gaps for i in range(most)} if many else set()
    difference, last = None, 0
    for epoch in (epoch for place, epoch in enumerate(every) if place in picked):
        if difference is None:
            a, b = (_rows_at(each, epoch, schema) for each in (one, two))
        else:
            a, b = (_changes_between(each, last, epoch, schema) for each in (one, two))
        step = row_difference(a, b, schema.types)
        difference = (
            step
            if difference is None
            else add_sums(difference.layout, [difference.updates, step.updates])
        )
        last = epoch
        left, right = (each.side._replace(epoch=epoch) for each in (one, two))
        yield Comparison(left, right, schema, difference, 0, by)


def _rows_at(read: _ResolvedSide, epoch: int, schema: Schema) -> Updates:
    """Returns the rows of a side at an epoch."""
    return restricted_comparison(read.host.read(read.definition, epoch), read.places, schema.types)


def _changes_between(read: _ResolvedSide, after: int, upto: int, schema: Schema) -> Updates:
    """Returns the changes of a side in `(after, upto]`."""
    changed = read.host.changes(read.definition, after, upto)
    return restricted_comparison(changed, read.places, schema.types)


def inferred_key(snapshot: Snapshot, definition: Definition) -> Key:
    """Returns the key columns of a definition, inferred through the stages that it reads."""
    reads: dict[str, tuple[str, ...]] = {}
    waiting = list(definition.references)
    while waiting:
        name = waiting.pop()
        stage = snapshot.catalog.get(name)
        if stage is not None and name not in reads:
            reads[name] = stage.definition.references if stage.definition else ()
            waiting += reads[name]
    keys: dict[str, Key] = {}
    for name in TopologicalSorter(reads).static_order():
        stage = snapshot.catalog.get(name)
        if stage is not None:
            tree = stage.definition
            keys[name] = stage.key if tree is None else row_key(tree.walk(), keys.get)
    return row_key(definition.walk(), keys.get)
