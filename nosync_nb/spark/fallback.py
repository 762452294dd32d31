"""Determines types and values of the expressions that only Spark can evaluate.

Spark evaluates them on a DataFrame that is created from Arrow columns, so they have exactly Spark's
semantics. An error names the expression and the first row on which Spark fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from nosync_nb import rows
from nosync_nb.errors import ExpressionError, NosyncError, SchemaError
from nosync_nb.expressions import Expression, Registered
from nosync_nb.rows import Column, Schema
from nosync_nb.rows.ddl import quoted
from nosync_nb.spark import interval_transport
from nosync_nb.spark.error_translation import translate_error
from nosync_nb.spark.launch import Spark
from nosync_nb.spark.registered_functions import identified, pinned
from nosync_nb.spark.spark_session import check_settings, frame_of, spark_type_text


def analysed(spark: Spark, sql: str, schema: Schema) -> tuple[str, tuple[Registered, ...]]:
    """Returns the type of an expression over a schema, and the registered functions in it.

    Spark only analyses the expression; no job runs.

    Raises:
        ExpressionError: if Spark rejects the expression, if no column can have its type, or if
            Spark gives no access to the code of a function that it calls.
    """
    frame = frame_of(spark, schema.arrow.empty_table(), schema)
    try:
        answer = frame.selectExpr(sql)
        fields = answer.schema.fields
        asks_others = _has_subquery(answer)
    except Exception as error:
        raise translate_error(error, sql) from error
    if asks_others:
        raise ExpressionError(
            f"{sql!r}: a subquery reads other rows",
            hint="use join(..., how='semi' or 'anti')",
        )
    if len(fields) != 1:
        raise ExpressionError(
            f"{sql!r} gives {len(fields)} columns, not 1",
            hint="name the columns one by one instead of `*`",
        )
    return _type(spark_type_text(fields[0].dataType), sql), identified(spark, sql, answer)


def _has_subquery(frame: Any) -> bool:
    """Returns True if Spark's plan has a subquery; always False on Connect, which hides plans."""
    plan = getattr(frame, "_jdf", None)
    return plan is not None and not plan.queryExecution().analyzed().subqueriesAll().isEmpty()


def _type(type_: str, sql: str) -> str:
    try:
        return rows.canonical_type(type_)
    except SchemaError as error:
        raise ExpressionError(
            f"expression {sql!r} has the type {type_}, which a column cannot have",
            hint="cast it: cast(... as string)",
        ) from error


def evaluate_in_spark(
    spark: Spark, expressions: Sequence[Expression], schema: Schema, columns: list[Column], n: int
) -> list[Column]:
    """Returns the values of expressions over `n` rows, in the order of the rows.

    Expressions with a proved local form are evaluated in this process. Spark evaluates the others,
    all in one query.

    Raises:
        ExpressionError: if an expression fails; names the expression, the row, and Spark's error
            class. Also if the Spark session has other settings than the expression.

    Cost: one Spark query, about 50 ms; for few rows Spark runs no job.
    """
    asked = [e for e in expressions if not e.local]
    values = iter(_evaluate_all(spark, asked, schema, columns, n))
    return [e.evaluate(columns, n) if e.local else next(values) for e in expressions]


def _evaluate_all(
    spark: Spark, expressions: Sequence[Expression], schema: Schema, columns: list[Column], n: int
) -> list[Column]:
    if not expressions:
        return []
    if not n:
        return [rows.empty(e.type) for e in expressions]
    check_settings(spark, expressions)
    table, own = _columns_with_row_numbers(expressions, schema, columns, n)
    try:
        return _evaluate(spark, expressions, table, own)
    except NosyncError:
        raise
    except Exception as error:
        raise _locate_error(spark, expressions, table, own, error) from error


def _columns_with_row_numbers(
    expressions: Sequence[Expression], schema: Schema, columns: list[Column], n: int
) -> tuple[pa.Table, Schema]:
    """Returns a table of the columns that expressions use, with row numbers as its last column."""
    used = sorted({i for e in expressions for i in e.columns})
    arrays = [rows.to_arrow(columns[i], schema.types[i]) for i in used]
    own = Schema([*(schema.fields[i] for i in used), (schema.unused("_row"), "bigint")])
    return pa.table([*arrays, pa.array(np.arange(n))], schema=own.arrow), own


def _evaluate(
    spark: Spark, expressions: Sequence[Expression], table: pa.Table, own: Schema
) -> list[Column]:
    """Evaluates expressions over a table; restores the order of the rows by their numbers."""
    given = zip(pinned(spark, expressions), expressions, strict=True)
    texts = [
        quoted(own.names[-1]),
        *(interval_transport.sql_to_transport(text, e.type) for text, e in given),
    ]
    frame = frame_of(spark, table, own).selectExpr(*texts)
    answer = frame.toDF(*(f"_{i}" for i in range(len(texts)))).toArrow()
    order = answer.column(0).to_numpy()
    n = table.num_rows
    if len(order) != n:
        sqls = ", ".join(repr(e.sql) for e in expressions)
        raise ExpressionError(
            f"{sqls} gives {len(order)} rows for {n}",
            hint="an expression returns one value for each row; use flat_map to generate rows",
        )
    values = [rows.from_arrow(answer.column(i + 1), e.type) for i, e in enumerate(expressions)]
    if bool((order[1:] > order[:-1]).all()):
        return values
    back = order.argsort()
    return [rows.take(v, back) for v in values]


def _locate_error(
    spark: Spark,
    expressions: Sequence[Expression],
    table: pa.Table,
    own: Schema,
    error: Exception,
) -> ExpressionError:
    """Returns the error with the expression that causes it, and the first row on which it fails.

    Evaluates the expressions again to find them.
    """

    def fails(some: Sequence[Expression], part: pa.Table) -> bool:
        try:
            _evaluate(spark, some, part, own)
        except Exception:
            return True
        return False

    guilty = expressions[0]
    if len(expressions) > 1:
        guilty = next((e for e in expressions if fails([e], table)), guilty)
    start, stop = _first_failing(lambda a, b: fails([guilty], table.slice(a, b - a)), len(table))
    row = None
    if stop - start == 1:
        row = table.drop_columns([own.names[-1]]).slice(start, 1).to_pylist()[0]
    return translate_error(error, guilty.sql, row)


def _first_failing(fails: Callable[[int, int], bool], n: int) -> tuple[int, int]:
    """Returns a smallest range of rows that fails: halves it while one of the halves fails."""
    start, stop = 0, n
    while stop - start > 1:
        middle = (start + stop) // 2
        if fails(start, middle):
            stop = middle
        elif fails(middle, stop):
            start = middle
        else:
            break
    return start, stop
