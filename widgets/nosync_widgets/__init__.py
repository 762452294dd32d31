"""Views of NoSync's collections: tables, pictures and the time traveller.

Importing this package loads no widget library: the names below are loaded when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nosync_widgets.frontier import FrontierView as FrontierView
    from nosync_widgets.layering import LayersView as LayersView
    from nosync_widgets.panel import Panel as Panel
    from nosync_widgets.pictures import GraphPicture as GraphPicture
    from nosync_widgets.tables import Table as Table
    from nosync_widgets.tables import collection_table as collection_table
    from nosync_widgets.travel import TravelView as TravelView

_HOMES = {
    "FrontierView": "frontier",
    "GraphPicture": "pictures",
    "LayersView": "layering",
    "Panel": "panel",
    "Table": "tables",
    "TravelView": "travel",
    "collection_table": "tables",
}

__all__ = [
    "FrontierView",
    "GraphPicture",
    "LayersView",
    "Panel",
    "Table",
    "TravelView",
    "collection_table",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
