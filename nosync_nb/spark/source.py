"""The former place of `NosyncSource`: users and logs know it."""

from nosync_nb.spark.views.data_source import NosyncSource

__all__ = ["NosyncSource"]
