"""Reads the rows of a collection at an epoch, its changes, and its readable epochs.

A read takes the session's snapshot once and works on it without a lock.

A count below 0 is allowed for some epochs, because the row may still be inserted. Until then each
read raises an error, which ends with a command that inserts the row.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from nosync_nb import rows
from nosync_nb.collections.definition import Definition
from nosync_nb.collections.explain_output import ExplainOutput
from nosync_nb.collections.position import Epoch, Position
from nosync_nb.collections.session_protocol import Stopped
from nosync_nb.dataflow.compiler import Compiler
from nosync_nb.dataflow.graph import Graph
from nosync_nb.dataflow.runtime.epoch_result import VersionState
from nosync_nb.dataflow.runtime.runner import Runner
from nosync_nb.dataflow.snapshot import (
    Snapshot,
    check_epoch,
    collection_state,
    last_shown,
    trace_at,
)
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import SchemaError, StageError
from nosync_nb.expressions import statement_clock
from nosync_nb.operators import Evaluate
from nosync_nb.rows import Schema
from nosync_nb.session.reads.explain import explain_collection
from nosync_nb.session.reads.position_changes import PositionReader
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.transactions import Transactions
from nosync_nb.spark.sql_settings import SparkTypes
from nosync_nb.trace import Trace, empty_batch
from nosync_nb.trace.batch import Batch, Updates, arrange
from nosync_nb.trace.history.archive import total_of


class SnapshotReader:
    """Reads the published snapshot; has no state, and takes no lock.

    Args:
        evaluate: evaluates expressions that only Spark can.
    """

    def __init__(
        self,
        publisher: Publisher,
        transactions: Transactions,
        types: SparkTypes,
        evaluate: Evaluate,
    ) -> None:
        self._publisher = publisher
        self._transactions = transactions
        self._definition_names = publisher.definition_names
        self._types = types
        self._evaluate = evaluate
        self._positions = PositionReader(publisher)

    def epoch(self, at: Any, snapshot: Snapshot) -> int:
        """Returns the number of the epoch that `at` names; `None` means the last one.

        Raises:
            TimeError: there is no such epoch, or a rewind has undone it.
        """
        if at is None:
            return snapshot.epoch
        if isinstance(at, Position | Epoch):
            self._positions.check_not_undone(snapshot, at)
            at = at.epoch if isinstance(at, Position) else int(at)
        return self._publisher.ledger.resolve(at, snapshot.epoch)

    def read(self, definition: Definition, at: Any) -> Batch:
        """Returns the consolidated rows of a collection at an epoch."""
        snapshot = self._publisher.snapshot
        name = self._definition_names.name_of(definition)
        number = self.epoch(at, snapshot)
        if at is None:
            self.refuse_pending(snapshot, definition, name)
        if name is None:
            return self.scratch(snapshot, definition, number)
        stage = same_columns_definition(snapshot, name, definition.schema)
        if at is None and stage.frozen:
            number = snapshot.last(stage)
        return collection_state(snapshot, name, number)

    def current_trace(self, definition: Definition) -> Trace | None:
        """Returns the trace of a named collection at the last epoch.

        None if the collection must be evaluated or read by `read`.
        """
        snapshot = self._publisher.snapshot
        name = self._definition_names.name_of(definition)
        self.refuse_pending(snapshot, definition, name)
        if name is None:
            return None
        stage = same_columns_definition(snapshot, name, definition.schema)
        if not stage.frozen and (snapshot.last(stage) != snapshot.epoch or stage.in_memory):
            return None  # it has stopped: `read` raises the reason
        numbers = snapshot.graph.named[name].traces.values()
        found = (snapshot.version.traces.get(number) for number in numbers)
        return next((trace for trace in found if trace is not None), None)

    def trace_at_epoch(self, definition: Definition, at: Any) -> Trace | None:
        """Returns the trace of a named collection at an epoch; None if it has no name."""
        snapshot = self._publisher.snapshot
        name = self._definition_names.name_of(definition)
        if name is None:
            return None
        same_columns_definition(snapshot, name, definition.schema)
        return trace_at(snapshot, name, self.epoch(at, snapshot))[1]

    def why_stopped(self, snapshot: Snapshot, definition: Definition) -> Stopped | None:
        """Returns the reason why a collection is stale or reads a stale one, and its last epoch.

        Returns None if neither is the case, or if the collection was dropped.
        """
        name = self._definition_names.name_of(definition)
        stages = [
            snapshot.catalog.get(each) for each in ([name] if name else definition.references)
        ]
        stale = [stage for stage in stages if stage is not None and stage.reason is not None]
        if not stale:
            return None
        epochs = [last_shown(snapshot, stage) for stage in stale]
        known = [epoch for epoch in epochs if epoch is not None]
        epoch = min(known) if len(known) == len(epochs) else None
        reason = stale[0].reason if name else f"it reads '{stale[0].name}', which is stale"
        return Stopped(reason or "", epoch)

    def changes(self, definition: Definition, after: Any, upto: Any) -> Batch:
        """Returns the net changes in `(after, upto]`, consolidated; see `Readable.changes`."""
        snapshot = self._publisher.snapshot
        name = self._definition_names.name_of(definition)
        if name is None:
            raise StageError(
                "an unnamed collection has no history", hint="name it: session.stage('name', c)"
            )
        stage, node = (
            same_columns_definition(snapshot, name, definition.schema),
            snapshot.graph.named[name],
        )
        assert node.log is not None
        last = snapshot.last(stage) if upto is None else self.epoch(upto, snapshot)
        if isinstance(after, Epoch):
            after = self._positions.epoch_position(snapshot, name, after)
        if isinstance(after, Position):
            if not self._positions.is_current(snapshot, name, after):
                return self._positions.changes(snapshot, name, after, last)
            after = after.epoch
        first = None if after is None else self.epoch(after, snapshot)
        check_epoch(snapshot, stage, last)
        if first is not None:
            check_epoch(snapshot, stage, first)
            found = snapshot.history.changes(node.log, first, last)
        else:
            found = snapshot.history.state(node.log, last)
        return total_of(found, node.log_layout)

    def position_of(self, definition: Definition) -> Position:
        """Returns the position of a named collection at its last epoch."""
        snapshot = self._publisher.snapshot
        name = self._definition_names.name_of(definition)
        if name is None:
            raise StageError(
                "an unnamed collection has no position", hint="name it: session.stage('name', c)"
            )
        same_columns_definition(snapshot, name, definition.schema)
        return self._positions.position(snapshot, name)

    def history_of(self, definition: Definition) -> list[range]:
        """Returns the readable epochs of a collection."""
        snapshot = self._publisher.snapshot
        name = self._definition_names.name_of(definition)
        if name is None:
            return []
        last, log = snapshot.last(snapshot.stage(name)), snapshot.graph.named[name].log
        assert log is not None
        return snapshot.history.epochs(log, last)

    def refuse_pending(self, snapshot: Snapshot, definition: Definition, name: str | None) -> None:
        """Raises StageError if the read would not show pending changes of this thread.

        Another thread, such as that of a view, reads committed rows while this one inserts.
        """
        me = threading.get_ident()
        pending = {n: c for n, c in self._transactions.current.pending.items() if me in c.threads}
        if not pending:
            return
        names = {name} if name else set(definition.references)
        reached: set[str] = set()
        while names:
            each = names.pop()
            if each in pending:
                which = f"'{name or 'this collection'}' depends on input '{each}', which"
                which = f"input '{each}'" if name == each else which
                rows = pending[each].rows
                changes = "a change that is" if rows == 1 else f"{rows:,} changes that are"
                raise StageError(
                    f"{which} has {changes} not committed",
                    hint="call session.commit() or session.discard() first, or read the last epoch"
                    " with .rows(at=session.now); a notebook's cell commits at its end",
                )
            reached.add(each)
            stage = snapshot.catalog.get(each)
            if stage is not None and stage.definition is not None:
                names |= set(stage.definition.references) - reached

    def scratch(
        self,
        snapshot: Snapshot,
        definition: Definition,
        epoch: int,
        contents: Mapping[str, Batch] = MappingProxyType({}),
    ) -> Batch:
        """Evaluates an unnamed collection from scratch at an epoch; caches nothing.

        Args:
            contents: the rows to read in place of those of some inputs.
        """
        read = {ref.name: ref.schema for ref in definition.refs}
        catalog = {
            n: Stage(n, same_columns_definition(snapshot, n, schema).schema)
            for n, schema in read.items()
        }
        existing = Compiler(Graph(), self._types).compile(catalog)
        traces = {}
        for name in catalog:
            batch = contents.get(name)
            if batch is None:
                batch = collection_state(snapshot, name, epoch)
            (layout, number), *_ = existing.named[name].traces.items()
            traces[number] = Trace.from_batch(arrange(layout, batch.updates), epoch)
        graph = Compiler(existing, self._types).compile(
            {**catalog, "": Stage("", definition.schema, definition)}
        )
        runner = Runner(graph, self._evaluate)
        with statement_clock():
            draft = runner.first_run(VersionState(epoch, traces), existing)
        node = graph.nodes[next(reversed(graph.nodes))]
        for number in node.traces.values():
            trace = draft.traces.get(number)
            if trace is not None:
                return trace.consolidated()
        return empty_batch(node.log_layout)

    def repair_command(self, definition: Definition) -> str:
        """Returns the command that adds the missing rows of a collection's inputs."""
        names = self._definition_names.read_by(definition)
        return _repair_commands(self._publisher.snapshot, names)

    def explain(self, definition: Definition, title: str) -> ExplainOutput:
        """Returns the current plan of a collection; see `explain_collection`."""
        snapshot, metrics = self._publisher.snapshot, self._publisher.metrics
        return explain_collection(
            definition, snapshot, self._definition_names, metrics, self._types, title
        )


def same_columns_definition(snapshot: Snapshot, name: str, schema: Schema) -> Stage:
    """Returns the stage of a name, if it has the columns that the caller expects.

    Raises:
        StageError: it was dropped or edited, so its columns would be misread.
    """
    stage = snapshot.stage(name)
    if stage.schema != schema:
        raise StageError(
            f"'{name}' was edited: it now has columns ({stage.schema.ddl}), not ({schema.ddl})",
            hint=f"get it again: session['{name}']",
            stage=name,
        )
    return stage


_ROWS_MAX, _TEXT_MAX = 5, 200
"""The most rows, and characters, that are written into the command."""

_NAMED_MAX = 3
_IMPORTS = {"datetime.": "import datetime", "Decimal(": "from decimal import Decimal"}


# -- rows that were removed and did not exist ---------------------------------------------------


def _repair_commands(snapshot: Snapshot, names: Iterable[str]) -> str:
    """Returns the commands that repair the inputs which some collections read.

    Cost: sorting the rows of these inputs.
    """
    commands = []
    for stage in _inputs(snapshot, names):
        batch = snapshot.contents(stage.name).consolidated()
        below = (batch.diff < 0).nonzero()[0]
        if len(below):
            commands.append(_input_repair(stage, batch.updates.take(below)))
    if not commands:
        return "read the last epoch, at which no input has a negative count"
    left = len(commands) - _NAMED_MAX
    more = f"; `%dd status` lists {left} more inputs" if left > 0 else ""
    why = "# rows were removed that did not exist: this inserts them; then commit"
    return f"{'; '.join(commands[:_NAMED_MAX])}  {why}{more}"


def _input_repair(stage: Stage, lacking: Updates) -> str:
    """Returns the command that adds the rows of an input whose counts are below 0.

    Few rows are written into the command. For many rows, the command sets every count below 0 to 0.
    It also does this for a keyed input, because its key may be present with another row.
    """
    every = None if stage.key is not None else _rows_text(lacking, stage.schema.types)
    name = stage.name
    if every is None:
        return f"{name}.set({name}.except_all({name}.filter('false')))"
    imports = [text for sign, text in _IMPORTS.items() if sign in every]
    return "; ".join([*imports, f"{name}.insert({every})"])


def _inputs(snapshot: Snapshot, names: Iterable[str]) -> Iterator[Stage]:
    """Yields the inputs that some collections read, directly or not."""
    waiting, visited, reads = [*names], set[str](), snapshot.reads
    while waiting:
        name = waiting.pop(0)
        if name in visited or name not in snapshot.catalog:
            continue
        visited.add(name)
        stage = snapshot.catalog[name]
        if stage.is_input:
            yield stage
        waiting += reads[name]


def _rows_text(lacking: Updates, types: Sequence[str]) -> str | None:
    """Returns rows as a Python list; None if it would be long or cannot be written."""
    counts = (-lacking.diff).tolist()
    if sum(counts) > _ROWS_MAX:
        return None
    try:
        columns = [rows.to_pylist(c, t) for c, t in zip(lacking.columns, types, strict=True)]
    except SchemaError:  # a date outside the range of Python
        return None
    each = [_literal(row) for row in zip(*columns, strict=True)]
    text = ", ".join(one for one, n in zip(each, counts, strict=True) for _ in range(n))
    return f"[{text}]" if len(text) <= _TEXT_MAX else None


def _literal(value: Any) -> str:
    """Returns a value as Python source."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(k)}: {_literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_literal, value)) + (",)" if len(value) == 1 else ")")
    return repr(value)
