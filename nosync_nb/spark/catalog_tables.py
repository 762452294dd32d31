"""Finds tables and views in the catalog of a Spark session."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from pyspark.errors import AnalysisException

from nosync_nb.rows import Schema
from nosync_nb.rows.ddl import quoted
from nosync_nb.spark import ingest
from nosync_nb.spark.launch import Spark

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class SparkTable(NamedTuple):
    """A table or a view of a Spark session.

    Attributes:
        name: its own name.
        path: its full name as SQL, with catalog and database; a temporary view has only its name.
        frame: its rows, as a DataFrame.
    """

    name: str
    path: str
    frame: Any

    @property
    def schema(self) -> Schema:
        """Its columns.

        Raises:
            SchemaError: if a column has a type that inputs do not have.
        """
        return ingest.schema_of(self.frame)


def find_table(spark: Spark, path: str) -> SparkTable | None:
    """Returns a table or a view; None if Spark does not have it.

    Args:
        path: the name as SQL, perhaps with database and catalog.

    Cost: up to four calls of the JVM; the rows are not read.
    """
    try:
        if not spark.catalog.tableExists(path):
            return None
    except AnalysisException:  # there is no such catalog, or no name has so many parts
        return None
    table = spark.catalog.getTable(path)
    names = [*(table.namespace or []), table.name]
    if not table.isTemporary and table.catalog:
        names.insert(0, table.catalog)
    full = ".".join(each if _PLAIN.fullmatch(each) else quoted(each) for each in names)
    return SparkTable(table.name, full, spark.table(path))
