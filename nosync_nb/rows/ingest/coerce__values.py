"""Lists of Python values to columns.

If all values are plainly of the column's type they are taken as they are, after one pass over their
types; else each goes through converters.py, which takes it exactly or says why not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from nosync_nb.rows import buffers
from nosync_nb.rows.arrow import Column, canonical_floats, most_objects, objects
from nosync_nb.rows.ingest.coerce import Convert, MisfitError, converter
from nosync_nb.rows.types import FIXED, INTEGERS, arrow_type, is_nested

__all__ = ["MisfitError", "build_column", "physical_form"]

_NONE = type(None)


def build_column(values: Sequence[Any], type_: str) -> Column:
    """Returns the column of Python values; None is null.

    Raises:
        MisfitError: at the first value that the type does not hold; `row` and `value` say which.

    Cost: O(n); one pass over the types of the values if all are the expected ones.
    """
    plain = _PLAIN.get(type_)
    if plain is not None:
        column = _fast(values, type_, plain)
        if column is not None:
            return column
    return physical_form(_convert_all(values, converter(type_)), type_)


_PLAIN: dict[str, type] = {
    "boolean": bool,
    "double": float,
    "string": str,
    "binary": bytes,
    **dict.fromkeys(INTEGERS, int),
}


def _fast(values: Sequence[Any], type_: str, plain: type) -> Column | None:
    """Returns the column if every value is plainly of its type, else None."""
    kinds = set(map(type, values))
    nulls = _NONE in kinds
    kinds.discard(_NONE)
    if kinds and kinds != {plain}:
        return None
    if type_ == "string":
        try:
            "".join([v for v in values if v is not None] if nulls else values).encode()
        except UnicodeEncodeError:
            return None
    elif plain is int or plain is float:
        if nulls:
            return None
        try:
            column = np.array(values, FIXED[type_])
        except OverflowError:
            return None
        return canonical_floats(column) if plain is float else column
    return physical_form(values, type_)


def physical_form(values: Sequence[Any], type_: str) -> Column:
    """Returns the column of checked values, as columns keep them."""
    if is_nested(type_):
        return pa.array(values, arrow_type(type_))
    dtype = FIXED.get(type_)
    if dtype is not None and None not in values:
        return np.array(values, dtype)
    few = len(values) <= most_objects(type_)
    return objects(values) if few else buffers.arrow_from_list(values, arrow_type(type_))


def _convert_all(values: Sequence[Any], convert: Convert) -> list[Any]:
    """Returns the checked values, or says which one does not fit."""
    converted: list[Any] = []
    value: Any = None
    try:
        for value in values:
            converted.append(None if value is None else convert(value))
    except MisfitError as misfit:
        misfit.stands_at(len(converted), value)
        raise
    return converted
