"""The changes of a stage since a position, over rewinds and redefinitions.

If the position lies in the current history of the current definition, its epoch number is enough.
Otherwise the rows at the position are read where they still are: an earlier definition in the
stage's earlier versions, undone epochs in the backup branch of the rewind. The result is the
difference of the two states. After a rewind alone it is computed from the changes since the last
common epoch, so its cost is in proportion to these changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from nosync_nb.collections.position import Epoch, Position
from nosync_nb.dataflow.snapshot import Snapshot, check_epoch
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import CorruptLogError, DurabilityError, SchemaError, TimeError, TrustError
from nosync_nb.rows import Schema, full_null
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.store import log_reader
from nosync_nb.store.store import Store
from nosync_nb.store.timetravel import branches
from nosync_nb.store.timetravel.branches import branch_origin
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange
from nosync_nb.trace.history.archive import total_of


class _Lineage(NamedTuple):
    """Where the history at a position and the current one part.

    Attributes:
        common: the last epoch that both have.
        rewinds: the number of rewinds before the backup branch that has the position's epoch; None
            if no rewind has undone it.
    """

    common: int
    rewinds: int | None


class _SourceStage(NamedTuple):
    """A snapshot that has the rows at a position, and the stage with them."""

    snapshot: Snapshot
    stage: Stage


class PositionReader:
    """Reads the changes since positions; has no state.

    Args:
        publisher: the published state of the session that is read.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def position(self, snapshot: Snapshot, name: str) -> Position:
        """Returns the position of a named collection at its last epoch."""
        stage, log = snapshot.stage(name), snapshot.graph.change_logs[name]
        own = self._publisher.store.log.id.hex()
        return Position(own, name, log, snapshot.rewinds, snapshot.last(stage))

    def epoch_position(self, snapshot: Snapshot, name: str, after: Epoch) -> Position | None:
        """Returns the position of a stage at a remembered epoch; None if it did not exist.

        A stage that was renamed since is found by the log of its changes.
        """
        log = snapshot.graph.change_logs[name]
        former = next((n for n, number in after.definitions.items() if number == log), name)
        return after.position_of(former)

    def is_current(self, snapshot: Snapshot, name: str, position: Position) -> bool:
        """Returns True if the position is an epoch of the current history and definition.

        Raises:
            TimeError: the position belongs to another log.
        """
        self._check_log(position)
        return (
            position.definition == snapshot.graph.change_logs[name]
            and self._lineage(snapshot, position).rewinds is None
        )

    def check_not_undone(self, snapshot: Snapshot, at: Position | Epoch) -> None:
        """Raises TimeError if a rewind has undone an epoch, or it belongs to another log.

        The epochs of another log are plain integers here, as they always were.
        """
        if at.log != self._publisher.store.log.id.hex():
            if isinstance(at, Epoch):
                return
            self._check_log(at)
        epoch = at.epoch if isinstance(at, Position) else int(at)
        count = snapshot.rewinds - at.rewinds
        numbering = self._publisher.ledger.numbering
        if count > 0 and numbering.has_left(epoch, at.rewinds):
            raise TimeError(
                f"epoch {epoch} was undone by a rewind",
                hint="its rows are in a branch, see session.branches; changes(after=) computes the"
                " difference to it",
            )

    def changes(self, snapshot: Snapshot, name: str, position: Position, upto: int) -> Batch:
        """Returns the net difference between a position and an epoch of the current definition.

        Raises:
            TimeError: the rows at the position cannot be read any more; the hint has a position
                from which to continue.
            SchemaError: the columns at the position differ, and not only by columns that were
                appended since.
        """
        lineage = self._lineage(snapshot, position)
        stage = snapshot.stage(name)
        check_epoch(snapshot, stage, upto)
        with self._source(snapshot, position, lineage) as source:
            log = snapshot.graph.change_logs[name]
            types = stage.schema.types
            layout = Layout(tuple(types))
            start = None
            if position.definition == log and lineage.common <= upto:
                start = lineage.common if _are_readable(source, stage, lineage.common) else None
            try:
                check_epoch(source.snapshot, source.stage, position.epoch)
                past = source.snapshot.history
                before = past.changes(position.definition, start, position.epoch)
            except TimeError as error:
                raise self._unreadable(snapshot, name, position, str(error)) from error
            after = snapshot.history.changes(log, start, upto)
            widened = [_widened(each, source.stage.schema, stage.schema) for each in before]
            removed = [arrange(layout, each.negated()) for each in widened]
            return total_of([*removed, *after], layout)

    def _lineage(self, snapshot: Snapshot, position: Position) -> _Lineage:
        """Finds the rewind that has undone the epoch of a position."""
        count = snapshot.rewinds - position.rewinds
        if count <= 0:
            return _Lineage(position.epoch, None)
        numbering = self._publisher.ledger.numbering
        known = len(numbering.ends) - (numbering.incarnation - snapshot.rewinds)
        ends = numbering.ends[max(known - count, 0) : max(known, 0)]
        if len(ends) < count:
            raise self._unreadable(
                snapshot, position.stage, position, f"the log was rewound {count} times since"
            )
        undone = next((i for i, end in enumerate(ends) if end < position.epoch), None)
        if undone is None:
            return _Lineage(position.epoch, None)
        return _Lineage(min(ends), position.rewinds + undone)

    @contextmanager
    def _source(
        self, snapshot: Snapshot, position: Position, lineage: _Lineage
    ) -> Iterator[_SourceStage]:
        """Opens the snapshot that has the rows at a position."""
        if lineage.rewinds is None:
            yield self._of_definition(snapshot, snapshot, position)
            return
        store = self._backup_branch(position, lineage.rewinds)
        if store is None:
            raise self._unreadable(
                snapshot,
                position.stage,
                position,
                "a rewind has undone it, and there is no branch with the undone epochs",
                epoch=lineage.common,
            )
        try:
            recovered = log_reader.recover_state(store)
            if not recovered.judged.origin.is_by_this_user:
                raise TrustError(
                    f"'{store.path}' has the undone epochs of {position}, and is not signed with"
                    " your key",
                    hint="import the key with `python -m nosync key import`",
                )
            yield self._of_definition(recovered.snapshot, snapshot, position)
        finally:
            store.close()

    def _of_definition(self, source: Snapshot, now: Snapshot, position: Position) -> _SourceStage:
        """Returns the stage of a snapshot that has the definition of a position."""
        for name, log in source.graph.change_logs.items():
            if log == position.definition:
                return _SourceStage(source, source.stage(name))
        raise self._unreadable(
            now, position.stage, position, "its definition was replaced, and is not retained"
        )

    def _backup_branch(self, position: Position, rewinds: int) -> Store | None:
        """Opens the branch of the epochs that a rewind has undone; None if it was dropped.

        Args:
            rewinds: the number of rewinds before that one.
        """
        parent = self._publisher.store
        for name in branches.branch_names(parent.files, parent.path):
            if not name.startswith(branches.BACKUP_PREFIX):
                continue
            try:
                store = Store.open(branches.branch_folder(parent.path, name), mode="r")
            except (CorruptLogError, DurabilityError):
                continue  # a damaged branch, or one that is being dropped
            origin = branch_origin(store.meta)
            made_at = store.meta.get("incarnation", 0)
            if origin is not None and made_at == rewinds and origin.at >= position.epoch:
                return store
            store.close()
        return None

    def _check_log(self, position: Position) -> None:
        """Raises TimeError if a position belongs to another log."""
        own = self._publisher.store.log.id.hex()
        if position.log != own:
            raise TimeError(
                f"position {position} belongs to log {position.log[:16]}, and this session has log"
                f" {own[:16]}",
                hint="use a position of this session: session['STAGE'].position",
            )

    def _unreadable(
        self,
        snapshot: Snapshot,
        name: str,
        position: Position,
        why: str,
        epoch: int | None = None,
    ) -> TimeError:
        """Returns the error for a position whose rows cannot be read.

        Args:
            epoch: the last epoch that the position's history and the current one have in common.
        """
        now = name if name in snapshot.catalog else None
        current = None if now is None else self.position(snapshot, now)
        common = "" if epoch is None else f"; both histories have epoch {epoch}"
        hint = "read the rows of another stage"
        if current is not None:
            hint = (
                f"replace what was taken by session['{now}'].rows(at={current.epoch}), and"
                f" continue from {current}"
            )
        return TimeError(
            f"stage '{name}': position {position} cannot be read: {why}{common}", hint=hint
        )


def _are_readable(source: _SourceStage, stage: Stage, epoch: int) -> bool:
    """Returns True if both stages, of equal columns, can be read at their last common epoch."""
    if (
        source.stage.schema.types != stage.schema.types
        or max(source.stage.begin, stage.begin) > epoch
    ):
        return False
    try:
        check_epoch(source.snapshot, source.stage, epoch)
    except TimeError:
        return False
    return True


def _widened(batch: Batch, before: Schema, now: Schema) -> Updates:
    """Returns rows of an earlier definition with the columns of the current one.

    Raises:
        SchemaError: the current columns are not the earlier ones and appended ones.
    """
    fields = [*before.fields]
    if [*now.fields[: len(fields)]] != fields:
        raise SchemaError(
            f"the columns at the position were ({before.ddl}), and are now ({now.ddl})",
            hint="read the rows of the stage, and continue from its current position",
        )
    updates = batch.updates
    added = [full_null(type_, len(updates.diff)) for type_ in now.types[len(fields) :]]
    return Updates([*updates.columns, *added], updates.diff)
