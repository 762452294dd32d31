"""Changes as rows before and after: inserts, deletes, and both images of each updated key."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from nosync_nb import rows
from nosync_nb.errors import SchemaError
from nosync_nb.rows import Schema
from nosync_nb.trace.batch import Batch

KINDS = ("insert", "delete", "update_preimage", "update_postimage")
"""The kinds of changed rows, as change data feeds of Delta name them."""


def image_columns(
    title: str, schema: Schema, images: bool | str | Sequence[str], key: Sequence[int] | None
) -> list[int]:
    """Returns the positions of the key columns that pair the images.

    Args:
        title: the collection, for the error.
        images: True for the known key, or the names of the key columns.
        key: the positions of the key that is known; None if none is.

    Raises:
        SchemaError: no key is known, or a column does not exist.
    """
    if images is True:
        if key is None:
            raise SchemaError(
                f"{title} has no known key, so its changes cannot be paired",
                hint=f"name the key columns: changes(images='{schema.names[0]}')",
            )
        return [*key]
    names = [images] if isinstance(images, str) else [*images] if images else []
    return [schema.index(name) for name in names]


def images_table(batch: Batch, schema: Schema, by: Sequence[int]) -> pa.Table:
    """Returns changed rows with a last column `change`, or `change_` if that exists.

    A row that was inserted or removed several times is repeated. The rows of a key are adjacent,
    removed ones first.

    Args:
        by: the positions of the key columns; without one, all rows are of one key.

    Cost: a sort of the changes by the hash of the key.
    """
    n, types = len(batch), [schema.types[place] for place in by]
    keys = rows.hash_columns([batch.columns[place] for place in by], types, n)
    _, groups = np.unique(keys, return_inverse=True)
    inserted = batch.diff > 0
    has_both = np.bincount(groups, inserted, n) * np.bincount(groups, ~inserted, n) > 0
    kinds = np.where(inserted, 0, 1) + 2 * has_both[groups]
    kinds = np.where(kinds == 3, 2, np.where(kinds == 2, 3, kinds))
    order = np.lexsort((inserted, groups))
    index = order.repeat(np.abs(batch.diff)[order])
    columns = [rows.take(column, index) for column in batch.columns]
    arrays = [rows.to_arrow(c, t) for c, t in zip(columns, schema.types, strict=True)]
    names = pa.array(KINDS).take(pa.array(kinds[index]))
    last = pa.field(schema.unused("change"), pa.string())
    return pa.Table.from_arrays([*arrays, names], schema=schema.arrow.append(last))
