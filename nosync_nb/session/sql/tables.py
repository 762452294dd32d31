"""The tables of SQL statements, by Spark's rules for names: inputs, stages, temporary views.

Names are found in any case. A temporary view is a query by name, in this session object alone; it
hides a stage of its name, as in Spark.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, MutableMapping
from typing import NamedTuple

from nosync_nb.collections.definition import Definition, reference_to
from nosync_nb.collections.sql.algebra import TimePoint
from nosync_nb.collections.sql.grammar import TextSpan, failure, words_of
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import SqlError, likely
from nosync_nb.session.reads.log_follower import LogFollower
from nosync_nb.session.sql.spark_tables import SparkTables, split_path
from nosync_nb.session.sql.time_travel import TableAtEpoch, TimeTravel
from nosync_nb.session.state.publisher import Publisher


class TemporaryView(NamedTuple):
    """A query with a name that is not logged."""

    name: str
    definition: Definition


class SqlTables:
    """Finds tables by name, and has the temporary views.

    Attributes:
        time_travel: reads tables at an epoch.
        spark: loads tables of the running Spark session.

    Threads: any may call; a lock guards the views, and readers take one reference.
    """

    def __init__(
        self,
        publisher: Publisher,
        follower: LogFollower,
        time_travel: TimeTravel,
        spark: SparkTables,
    ) -> None:
        self._publisher = publisher
        self._follower = follower
        self.time_travel = time_travel
        self.spark = spark
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

    def stage(self, name: str) -> Stage | None:
        """Returns the input or the stage of a name; None if the name is unknown."""
        return self._publisher.snapshot.catalog.get(name)

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
        loaded: receives the inputs that are loaded from Spark, each with a sentence for the user;
            None if nothing may be loaded.
    """

    def __init__(
        self,
        tables: SqlTables,
        text: str,
        planned: Mapping[str, Definition | None] | None = None,
        defining: str | None = None,
        loaded: MutableMapping[str, str] | None = None,
    ) -> None:
        self._loaded = loaded
        self._tables = tables
        self._defining = defining
        self._text = text
        self._planned = planned or {}
        self._missing = ""

    def hint(self) -> str:
        """Returns the hint for the last name that was not found."""
        path = split_path(self._missing) if self._missing.startswith("`") else [self._missing]
        if self._loaded is None and self._missing and self._tables.spark.has(path):
            return f"Spark has it, and a query loads it: SELECT * FROM {self._missing}"
        return likely(self._missing, self._tables.names(), "the tables are")

    def __call__(self, name: str) -> Definition | None:
        """Returns the definition of a table; None for an unknown name.

        A table of the running Spark session is loaded into an input.

        Raises:
            SqlError: if several names differ from it only in case, a view reads itself, or a table
                of Spark cannot be loaded.
        """
        found = self.existing(name)
        if self._loaded is None:
            return found
        spark = self._tables.spark
        if found is None:
            path = split_path(name) if name.startswith("`") else [name]
            stage = spark.load(self._text, path, self._loaded)
            return None if stage is None else reference_to(stage.name, stage.schema)
        stage = self._tables.stage(found.name) if found.is_ref else None
        if stage is not None and spark.is_unloaded(stage):
            spark.load_again(self._text, stage, self._loaded)
        return found

    def existing(self, name: str) -> Definition | None:
        """Returns the definition of a table; None for an unknown name. Nothing is loaded.

        Raises:
            SqlError: if several names differ from it only in case, or a view reads itself.
        """
        if name.startswith("`"):
            stage = self._tables.spark.loaded_from(split_path(name))
            self._missing = name
            return None if stage is None else reference_to(stage.name, stage.schema)
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

    def at(self, name: str, at: TimePoint) -> TableAtEpoch | None:
        """Returns the rows of a table at a point in time; None for an unknown name.

        Raises:
            SqlError: the name is a view that has no epochs yet, or the rows are not readable then.
        """
        definition = self.existing(name)
        if definition is None:
            return None
        is_planned = name.lower() in self._planned
        if not definition.is_ref or (is_planned and definition.name.lower() != name.lower()):
            kind = "a view of this cell" if is_planned else "a temporary view"
            raise failure(
                self._text,
                at.span,
                f"[UNSUPPORTED_FEATURE.TIME_TRAVEL] `{name}` is {kind}, which has no epochs",
                "write AS OF behind the inputs and stages that it reads",
            )
        return self._tables.time_travel.table(self._text, definition.name, at, self)

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
