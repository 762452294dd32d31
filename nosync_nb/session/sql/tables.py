"""The tables of SQL statements, by Spark's rules for names: inputs, stages, temporary views.

Names are found in any case. A temporary view is a query by name, in this session object alone; it
hides a stage of its name, as in Spark.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from nosync_nb.collections.definition import Definition, reference_to
from nosync_nb.collections.sql.grammar import TextSpan, failure, words_of
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import SqlError, likely
from nosync_nb.session.reads.log_follower import LogFollower
from nosync_nb.session.state.publisher import Publisher


class TemporaryView(NamedTuple):
    """A query with a name that is not logged."""

    name: str
    definition: Definition


class SqlTables:
    """Finds tables by name, and has the temporary views.

    Threads: any may call; a lock guards the views, and readers take one reference.
    """

    def __init__(self, publisher: Publisher, follower: LogFollower) -> None:
        self._publisher = publisher
        self._follower = follower
        self._lock = threading.Lock()
        self._views: Mapping[str, TemporaryView] = {}

    @property
    def views(self) -> Mapping[str, TemporaryView]:
        """The temporary views, by name in lower case."""
        return self._views

    def change_views(
        self, added: Iterable[TemporaryView] = (), dropped: Iterable[str] = ()
    ) -> None:
        """Adds and drops temporary views, all in one step."""
        with self._lock:
            views = dict(self._views)
            for name in dropped:
                views.pop(name.lower(), None)
            views.update({view.name.lower(): view for view in added})
            self._views = views

    def restore_views(self, views: Mapping[str, TemporaryView]) -> None:
        """Sets the temporary views to those that `views` returned before."""
        with self._lock:
            self._views = views

    def refresh(self) -> None:
        """Reads what the owner of a log that is open for reading has written."""
        self._follower.refresh()

    def stages_called(self, name: str) -> list[Stage]:
        """Returns the inputs and stages with a name; the one with this spelling alone, if any."""
        catalog = self._publisher.snapshot.catalog
        if name in catalog:
            return [catalog[name]]
        wanted = name.lower()
        return [stage for other, stage in catalog.items() if other.lower() == wanted]

    def names(self) -> list[str]:
        """Returns the names of all tables."""
        return [*self._publisher.snapshot.catalog, *(view.name for view in self._views.values())]

    def columns(self) -> dict[str, tuple[str, ...]]:
        """Returns the columns of each table, by name."""
        catalog = self._publisher.snapshot.catalog.values()
        found = {stage.name: tuple(stage.schema.names) for stage in catalog if not stage.frozen}
        views = self._views.values()
        return found | {view.name: tuple(view.definition.schema.names) for view in views}


class Lookup:
    """Finds the tables of one text, with the views that earlier statements of a cell define.

    Args:
        text: the text, for the position of an ambiguous name.
        planned: definitions by name in lower case; None for a view that is dropped.
        defining: the name in lower case of the view that the text defines.
    """

    def __init__(
        self,
        tables: SqlTables,
        text: str,
        planned: Mapping[str, Definition | None] | None = None,
        defining: str | None = None,
    ) -> None:
        self._tables = tables
        self._defining = defining
        self._text = text
        self._planned = planned or {}
        self._missing = ""

    def hint(self) -> str:
        """Returns the hint for the last name that was not found."""
        return likely(self._missing, self._tables.names(), "the tables are")

    def __call__(self, name: str) -> Definition | None:
        """Returns the definition of a table; None for an unknown name.

        Raises:
            SqlError: if several names differ from it only in case, or a view reads itself.
        """
        wanted = name.lower()
        if wanted == self._defining:
            raise self._failure(
                name,
                f"[RECURSIVE_VIEW] view `{name}` reads itself",
                "give the result another name; a recursive query is WITH RECURSIVE",
            )
        if wanted in self._planned:
            return self._planned[wanted]
        view = self._tables.views.get(wanted)
        if view is not None:
            return view.definition
        found = self._tables.stages_called(name)
        if len(found) > 1:
            names = " and ".join(f"`{stage.name}`" for stage in found)
            raise self._failure(
                name,
                f"[AMBIGUOUS_REFERENCE] table `{name}` is ambiguous: there are {names}",
                "write one of these names exactly",
            )
        if not found:
            self._missing = name
            return None
        return reference_to(found[0].name, found[0].schema)

    def _failure(self, name: str, what: str, hint: str) -> SqlError:
        words = [each.span for each in words_of(self._text) if each.name == name]
        return failure(self._text, words[0] if words else TextSpan(0, 0), what, hint)


def unknown_table(text: str, span: TextSpan, name: str, tables: SqlTables) -> SqlError:
    """Returns the error for a table that does not exist."""
    return failure(
        text,
        span,
        f"[TABLE_OR_VIEW_NOT_FOUND] there is no table `{name}`",
        likely(name, tables.names(), "the tables are"),
    )
