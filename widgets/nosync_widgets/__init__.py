"""Views of NoSync's collections: tables, pictures and the time slider.

Importing this package loads no widget library: the names below are loaded when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nosync_widgets.tables import Table as Table
    from nosync_widgets.tables import collection_table as collection_table
    from nosync_widgets.views.graph_view import FrontierView as FrontierView
    from nosync_widgets.views.graph_view import GraphPicture as GraphPicture
    from nosync_widgets.views.layers_view import LayersView as LayersView
    from nosync_widgets.views.panel import Panel as Panel
    from nosync_widgets.views.time_slider import TravelView as TravelView

_HOMES = {
    "FrontierView": "views.graph_view",
    "GraphPicture": "views.graph_view",
    "LayersView": "views.layers_view",
    "Panel": "views.panel",
    "Table": "tables",
    "TravelView": "views.time_slider",
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
