"""Feed: a collection of some session as a dataflow elsewhere takes it, change by change.

It reads what is published, as any reader does, and the session knows nothing of it. What came since
is read as changes, if it is of one past; if the session went back, or the collection is another
version now, what is there is held against what was taken. A rewind or a definition in the middle of
a read is noticed after it, and it is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nosync_nb.collections.comparison import restricted_comparison
from nosync_nb.collections.definition import Definition
from nosync_nb.errors import StageError, TimeError
from nosync_nb.session.reads.collection_host import CollectionPosition, SessionHost
from nosync_nb.trace.batch import Batch, Updates, concat_updates


class SideFeed:
    """One side of a difference between sessions; owns nothing.

    Args:
        name: what it is called.
        places: of the columns that are taken.
        begun: how it stood when it was asked for.
        live: whether it goes on from there; else it stays as of that epoch.
    """

    def __init__(
        self,
        name: str,
        host: SessionHost,
        definition: Definition,
        places: Sequence[int],
        begun: CollectionPosition,
        live: bool,
    ) -> None:
        self.host = host
        self.live = live
        self._name = name
        self._definition = definition
        self._places = places
        self._begun = begun

    def look(self) -> None:
        """Takes in what another process has written, if the session reads a log.

        Raises:
            StageError: the session is closed, or what is read waits for a commit of this thread.
        """
        if self.host.closed:
            raise StageError(
                f"the difference has ended: the session of '{self.host.path}', which has"
                f" '{self._name}', is closed",
                hint="open it again, and compare again",
            )
        if self.live:
            self.host.glance(self._definition, lambda _: None)

    def since(
        self, before: CollectionPosition | None, held: Callable[[], Updates]
    ) -> tuple[CollectionPosition, Updates | None]:
        """How it stands, and what came after it stood so; None: nothing did.

        Args:
            before: None: nothing was taken yet.
            held: gives what was taken.

        Raises:
            StageError: it was dropped, or has other columns; or one as of an epoch was edited.
            TimeError: that epoch cannot be told apart any more.

        Cost: what changed; of an unnamed collection its rows, whenever its session has committed.
        """
        host, definition = self.host, self._definition
        while before is None or self.live:
            now = host.standing(definition) if self.live else self._fixed()
            if now == before:
                break
            try:
                updates = self._read(before, now, held)
            except TimeError:
                if host.holds(now, definition):
                    raise
                continue
            if host.holds(now, definition):
                return now, updates
        assert before is not None
        return before, None

    def told(self, standing: CollectionPosition) -> str:
        """What it is and how far it was taken, for people."""
        how = "goes on" if self.live else "stays so"
        return f"{self._name} at epoch {standing.point.epoch} of '{self.host.path}', {how}"

    def _fixed(self) -> CollectionPosition:
        """How it stood when it was asked for, if that can still be read."""
        self.host.still(self._begun.point, f"'{self._name}'")
        if self.host.standing(self._definition).logs != self._begun.logs:
            raise StageError(f"'{self._name}' was edited since", hint="compare again")
        return self._begun

    def _read(
        self,
        before: CollectionPosition | None,
        now: CollectionPosition,
        held: Callable[[], Updates],
    ) -> Updates:
        """What came between."""
        host, definition = self.host, self._definition
        if (
            before is not None
            and host.name_of(definition) is not None
            and before.logs == now.logs
            and host.holds(before, definition)
        ):
            try:
                return self._narrowed(host.changes(definition, before.point.epoch, now.point.epoch))
            except TimeError:  # the past was thinned out, or it has gaps
                pass
        whole = self._narrowed(host.read(definition, now.point.epoch))
        if before is None:
            return whole
        types = [self._definition.schema.types[place] for place in self._places]
        return concat_updates([whole, held().negated()], types)

    def _narrowed(self, batch: Batch) -> Updates:
        """The columns that are taken."""
        return restricted_comparison(batch, self._places, self._definition.schema.types)
