"""A collection at one epoch, with the same reads as the collection itself.

It holds no rows: each read reads that epoch. Epochs do not change, so the rows of each read are the
same. Reading raises if the session was rewound to before the epoch, or if the epoch is no longer
retained.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from nosync_nb.collections.arrow_stream import ArrowStream
from nosync_nb.collections.readable import Readable, result_title
from nosync_nb.collections.session_protocol import ResolvedEpoch, session_of
from nosync_nb.errors import one_line
from nosync_nb.rows import Schema


class CollectionAtEpoch(ArrowStream):
    """The result of `collection.at(epoch)`: an Arrow stream, with the reads of a collection.

    Every read raises TimeError if the epoch is no longer readable. Costs are those of the
    collection's own reads with `at`.
    """

    def __init__(self, collection: Readable, point: ResolvedEpoch) -> None:
        self._collection = collection
        self._point = point

    @property
    def epoch(self) -> int:
        """The epoch that is read.

        Raises:
            TimeError: the session was rewound to before it; another epoch may have its number.
        """
        title = result_title(self._collection.name)
        return session_of(self._collection).epoch_unless_undone(self._point, title)

    @property
    def name(self) -> str | None:
        """The name of the collection, if it has one."""
        return self._collection.name

    @property
    def schema(self) -> Schema:
        """The columns and their types."""
        return self._collection.schema

    def rows(self, limit: int | None = None) -> list[Any]:
        """The rows as named tuples in canonical order; see `Collection.rows`."""
        return self._collection.rows(self.epoch, limit)

    def count(self) -> int:
        """The number of rows, copies counted."""
        return self._collection.count(self.epoch)

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        return True

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table; see `Collection.to_arrow`."""
        return self._collection.to_arrow(self.epoch)

    def to_pandas(self, types: str = "numpy") -> Any:
        """The rows as a pandas DataFrame."""
        return self._collection.to_pandas(self.epoch, types)

    def to_spark(self) -> Any:
        """The rows as a DataFrame of the session's Spark session."""
        return self._collection.to_spark(self.epoch)

    def __repr__(self) -> str:
        title = self.name or "collection"
        return one_line(f"<{title} at epoch {self._point.epoch}: {self.schema.ddl}>")
