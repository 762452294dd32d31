"""Gives the rows of a collection to libraries that do not know NoSync.

    polars.DataFrame(late); pyarrow.table(late); duckdb.sql("from late"); altair.Chart(late)
    late.hvplot.bar(x="carrier", y="delay")

Each library calls a method of its protocol when it reads, and gets the rows at that time. The
library cannot change the rows of the collection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import pyarrow as pa

from nosync_nb.errors import MisuseError
from nosync_nb.rows import Schema


class ArrowStream(ABC):
    """An object that has columns and can give its rows as an Arrow table."""

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The columns and their types."""

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table."""

    def __arrow_c_schema__(self) -> Any:
        """The columns for users of Arrow's C interface: `pyarrow.schema(late)`; reads no rows."""
        return self.schema.arrow.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The current rows for users of Arrow streams.

        Cost: that of `to_arrow`, at every call.
        """
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __dataframe__(self, nan_as_null: bool = False, allow_copy: bool = True) -> Any:
        """The current rows for users of the interchange protocol of DataFrames."""
        return self.to_arrow().__dataframe__(nan_as_null, allow_copy)

    def __narwhals_dataframe__(self) -> Any:
        """The current rows for Altair, Plotly and Bokeh: Narwhals, their basis, takes no stream."""
        import narwhals

        # Only Narwhals' own wrapper has the object of its protocol; a test with Altair checks this.
        return vars(narwhals.from_native(self.to_arrow(), eager_only=True))["_compliant_frame"]

    @property
    def hvplot(self) -> Any:
        """Charts of the current rows, by hvPlot, which takes no stream but has its own property.

        `late.hvplot.bar(x="carrier", y="delay")`: the rows are read when the property is. A
        notebook draws them after `hvplot.extension("bokeh")`, as for other libraries.

        Raises:
            MisuseError: hvPlot is not installed. `hasattr` then returns False.

        Examples:
            >>> late.hvplot.bar("carrier", "delay")
            :Bars   [carrier]   (delay)
        """
        try:
            from hvplot import hvPlotTabular
        except ImportError as error:
            raise MisuseError("hvPlot is not installed", hint="pip install hvplot") from error
        return hvPlotTabular(self.to_arrow().to_pandas())
