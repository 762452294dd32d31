"""Streams: how libraries that know nothing of NoSync take a collection as it is.

    polars.DataFrame(late); pyarrow.table(late); duckdb.sql("from late"); altair.Chart(late)
    late.hvplot.bar(x="carrier", y="delay")

Each library asks by a method of its protocol, at the time when it reads, and gets the rows of then.
Nothing is shared with it that it could change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import pyarrow as pa

from nosync_nb.errors import MisuseError
from nosync_nb.rows import Schema


class ArrowStream(ABC):
    """What has columns and can give its rows as an Arrow table."""

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The columns and their types."""

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table."""

    def __arrow_c_schema__(self) -> Any:
        """The columns, for whatever takes Arrow's: `pyarrow.schema(late)`; nothing is read."""
        return self.schema.arrow.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The rows as of now, for whatever takes an Arrow stream.

        Cost: that of `to_arrow`, at every call.
        """
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __dataframe__(self, nan_as_null: bool = False, allow_copy: bool = True) -> Any:
        """The same for whatever takes the interchange protocol of DataFrames."""
        return self.to_arrow().__dataframe__(nan_as_null, allow_copy)

    def __narwhals_dataframe__(self) -> Any:
        """The same for what is built on Narwhals, which takes no stream: Altair, Plotly, Bokeh."""
        import narwhals

        # What its protocol wants is held by its own wrapper alone; a test with Altair holds this.
        return vars(narwhals.from_native(self.to_arrow(), eager_only=True))["_compliant_frame"]

    @property
    def hvplot(self) -> Any:
        """Charts of the rows as of now, by hvPlot, which takes no stream but has its own property.

        `late.hvplot.bar(x="carrier", y="delay")`: the rows are read when the property is. As
        others', a notebook draws them after `hvplot.extension("bokeh")`.

        Raises:
            MisuseError: hvPlot is not installed; for who asks whether there is one it is not.
        """
        try:
            from hvplot import hvPlotTabular
        except ImportError as error:
            raise MisuseError("hvPlot is not installed", hint="pip install hvplot") from error
        return hvPlotTabular(self.to_arrow().to_pandas())
