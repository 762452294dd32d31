"""The former module of `NosyncSource`: users and logs refer to it."""

from nosync_nb.spark.views.data_source import NosyncSource

__all__ = ["NosyncSource"]
