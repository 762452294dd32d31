"""The inputs of a session: collections that users change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nosync_nb import rows as values
from nosync_nb.collections.collection import Collection
from nosync_nb.collections.definition import Definition
from nosync_nb.collections.session_protocol import SessionProtocol
from nosync_nb.errors import SchemaError
from nosync_nb.rows import Schema
from nosync_nb.session.state.transactions import PendingCall
from nosync_nb.session.writes.idempotency import (
    LoadRegistry,
    check_idempotency_key,
    idempotency_mark,
)
from nosync_nb.session.writes.ingest import ConcurrentLoadError, IngestService
from nosync_nb.trace.batch import Updates

if TYPE_CHECKING:
    from nosync_nb.session.feeds.folder_watch import FolderWatches


class Input(Collection):
    """A collection whose rows come from outside.

    Rows are tuples, dicts, pandas, Arrow or a PySpark DataFrame. They are matched to columns by
    name and taken at the call. They become visible, in all stages at once, with the next epoch.
    Every method returns the number of rows, duplicates included, that the call will add and remove.

    Examples:
        >>> flights.insert([{"carrier": "UA", "day": 2, "delay": 7.0}])
        1
        >>> session.commit(), flights.count()
        (2, 4)
    """

    def __init__(
        self,
        host: SessionProtocol,
        ingest: IngestService,
        load_registry: LoadRegistry,
        folder_watches: FolderWatches,
        definition: Definition,
    ) -> None:
        super().__init__(host, definition)
        self._ingest = ingest
        self._load_registry = load_registry
        self._folder_watches = folder_watches

    def insert(self, rows: Any, *, once: Any = None) -> int:
        """Adds rows. With `once=KEY`, only if no epoch of this history has recorded that key.

        The key is a text, a number, a date or time, or made of these. Without a key, a warning
        lists rows equal to those that an epoch before a restart inserted.

        Raises:
            SchemaError: if rows do not fit the columns, `once` is not a valid key, or (keyed input)
                a key is null, already present, or in two of the rows.

        Examples:
            >>> flights.insert([("UA", 2, 7.0)], once="tuesday")
            1
            >>> flights.insert([("UA", 2, 7.0)], once="tuesday")
            0
        """
        return self._change("insert", rows, once)

    def remove(self, rows: Any, *, once: Any = None) -> int:
        """Removes one copy of each row.

        A keyed input removes rows that are equal in all columns, and warns of absent ones. In an
        input without a key, an absent row has a count below 0 until it is inserted. Until then each
        read raises an error with the command that repairs it.

        Examples:
            >>> flights.remove([("UA", 1, 20.0)])
            1
            >>> session.commit(), flights.count()
            (2, 2)
        """
        return self._change("remove", rows, once)

    def set(self, rows: Any) -> int:
        """Makes the input equal to `rows`: only the difference is committed, nothing if equal.

        Of several rows with one key (keyed inputs) the last one counts.

        Examples:
            >>> flights.set([("AA", 1, 75.0), ("UA", 2, 7.0)])
            3
            >>> session.commit(), flights.count()
            (2, 2)
        """
        return self._change("set", rows, None)

    def clear(self) -> int:
        """Removes every row.

        Examples:
            >>> flights.clear()
            3
        """
        return self._change("clear", [], None)

    def upsert(self, rows: Any) -> int:
        """Inserts rows, replacing those of equal key, the last of several (keyed inputs).

        Examples:
            >>> airlines.upsert([("AA", "American Airlines")])
            2
            >>> session.commit()
            2
            >>> airlines.rows()
            [Row(carrier='AA', name='American Airlines'), Row(carrier='UA', name='United')]
        """
        self._key_places("upsert")
        return self._change("upsert", rows, None)

    def delete(self, keys: Any) -> int:
        """Removes the rows of keys: values, or tuples for several key columns (keyed inputs).

        An absent key is no error. Tables have the columns of the key by name: pandas, Arrow, or a
        PySpark DataFrame of at most `session.collect_rows` rows.

        Examples:
            >>> airlines.delete(["AA"])
            1
            >>> session.commit(), airlines.count()
            (2, 1)
        """
        key = self._key_places("delete")
        schema = Schema([self.schema.fields[i] for i in key])
        keys = self._ingest.keys(keys, self._input_name(), schema)
        if len(key) == 1 and isinstance(keys, list | tuple | set):
            keys = [k if isinstance(k, tuple | dict) else (k,) for k in keys]
        columns, n = values.to_columns(
            list(keys) if isinstance(keys, set) else keys, schema, f"{self._title()}: delete"
        )
        change = PendingCall("delete", Updates(columns, np.ones(n, np.int64)))
        return self._ingest.add(self._input_name(), change)

    @property
    def key(self) -> tuple[str, ...]:
        """The key columns, empty for an input without key.

        Examples:
            >>> airlines.key, flights.key
            (('carrier',), ())
        """
        key = self._ingest.stage(self._input_name()).key
        return tuple(self.schema.names[i] for i in key or ())

    def _change(self, kind: str, rows: Any, once: Any) -> int:
        name = self._input_name()
        mark = None
        if once is not None:
            check_idempotency_key(once, f"input '{name}'")
            mark = idempotency_mark(self._ingest.stage(name).uid, kind, once)
        try:
            if mark is not None and self._load_registry.is_loaded(mark):
                raise ConcurrentLoadError
            count = self._ingest.ingest(name, kind, rows, mark)
        except ConcurrentLoadError:
            assert mark is not None
            again = self._load_registry.skipped_fingerprint(name, kind, rows)
            self._load_registry.skip(f"input '{name}':", once, mark, again, stacklevel=4)
            return 0
        if mark is None and kind == "insert" and count:
            self._load_registry.warn_if_repeated(name)
        return count

    def _key_places(self, method: str) -> tuple[int, ...]:
        key = self._ingest.stage(self._input_name()).key
        if key is None:
            raise SchemaError(
                f"input '{self.name}' has no key, so it has no {method}()",
                hint=f"declare a key: session.input('{self._input_name()}', ..., key='id')",
            )
        return key

    def _input_name(self) -> str:
        return self._definition.name

    def _title(self) -> str:
        return f"input '{self._input_name()}'"


def folder_watches_of(into: Input) -> FolderWatches:
    """Returns the folder watches of an input's session."""
    return into._folder_watches


def belongs_to(into: Input, ingest: IngestService) -> bool:
    """Returns True if an input belongs to the session of an ingest service."""
    return into._ingest is ingest
