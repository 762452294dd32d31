"""Rows: schemas, columns of canonical values, their hashes, their order, and ingest of user data.

Promises: a value has one form, whatever its source; equal rows hash and compare equal, here and on
Spark. Owns: nothing, it is functions of values. Imports: errors.
"""

from nosync_nb.rows.columns import (
    SMALL,
    Column,
    concat,
    empty,
    equal,
    from_arrow,
    full_null,
    mask,
    null_mask,
    objects,
    slice_,
    take,
    take_many,
    to_arrow,
    to_pylist,
    widen,
)
from nosync_nb.rows.hashes import extend_hashes, hash_columns, spark_hash_sql
from nosync_nb.rows.ingest.convert import to_columns
from nosync_nb.rows.ingest.infer import infer_schema
from nosync_nb.rows.order import encode, order_codes, sort_indices
from nosync_nb.rows.schema import Field, Schema, arrow_type, canonical_type, spark_type, widens

__all__ = [
    "SMALL",
    "Column",
    "Field",
    "Schema",
    "arrow_type",
    "canonical_type",
    "concat",
    "empty",
    "encode",
    "equal",
    "extend_hashes",
    "from_arrow",
    "full_null",
    "hash_columns",
    "infer_schema",
    "mask",
    "null_mask",
    "objects",
    "order_codes",
    "slice_",
    "sort_indices",
    "spark_hash_sql",
    "spark_type",
    "take",
    "take_many",
    "to_arrow",
    "to_columns",
    "to_pylist",
    "widen",
    "widens",
]
