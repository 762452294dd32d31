"""Subcommands of `%dd` that open views, which follow the session: travel, layers, graph, panel.

A view is displayed below a table of the same content, because a saved notebook that is opened
without its kernel shows only the table. If the front end shows no views, only the table is shown.
"""

from __future__ import annotations

from argparse import Namespace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from nosync.commands import Subcommand, mutations
from nosync.commands.branches import NotebookForks
from nosync.commands.show import AT, collection_of, epoch_asked, rows_now
from nosync_widgets import formats
from nosync_widgets.tables import Table

if TYPE_CHECKING:
    from nosync.notebook import Notebook
    from nosync_nb import Session
    from nosync_widgets.views.graph_view import GraphPicture
    from nosync_widgets.views.grid import GridView
    from nosync_widgets.views.time_slider import TravelView

_PANEL_TITLE = "NoSync"


def _travel(notebook: Notebook, arguments: Namespace) -> None:
    session = notebook.session()
    stages = [*dict.fromkeys(arguments.stage)] or [*session.stages, *session.inputs][:1]
    if not stages:
        raise UsageError("%dd travel: the log has no stages; define one in a %%dd cell")
    for each in stages:
        collection_of(notebook, each)
    at = epoch_asked(notebook, arguments.at)
    stage, *beside = stages
    forks = NotebookForks(notebook)
    view = notebook.views.travel(session, stage, at, notebook.branch, forks, beside)
    display_view(notebook, view, view.title())


def display_view(notebook: Notebook, view: Any, title: str) -> None:
    """Displays a view, and above it a static copy of its content for a saved notebook."""
    from IPython.display import display

    text, html = view.static()
    notebook.say(text if not has_widgets(notebook) else title, formats.folded(title, html))
    display(view)


def has_widgets(notebook: Notebook) -> bool:
    """Returns True if the shell runs in a kernel, whose front end may show widgets."""
    return hasattr(notebook.shell, "kernel")


def _layers(notebook: Notebook, arguments: Namespace) -> Table | None:
    session = notebook.session()
    if arguments.stage is not None:
        collection_of(notebook, arguments.stage)
    names = [*session.inputs, *session.stages]
    if has_widgets(notebook) and names:
        view = notebook.views.layers(session, arguments.stage, notebook.branch)
        display_view(notebook, view, view.title())
        return None
    from nosync_widgets.views.layers_view import layers_table

    shown = [arguments.stage] if arguments.stage else names
    return layers_table({name: session.info.layers(name) for name in shown}, epoch=session.now)


def _graph(notebook: Notebook, _arguments: Namespace) -> GraphPicture | None:
    session = notebook.session()
    if has_widgets(notebook):
        view = notebook.views.graph(session, notebook.branch)
        display_view(notebook, view, view.title())
        return None
    from nosync_widgets.views.graph_view import GraphPicture

    names = [*session.inputs, *session.stages]
    details = {name: _node_detail(session, name) for name in names}
    reads = {name: session.info.reads[name] for name in names}
    return GraphPicture(reads, inputs=session.inputs, details=details)


def _node_detail(session: Session, name: str) -> str:
    """Returns the second line of a node: its row count, or that it is unreadable or stale."""
    count, _ = rows_now(session, name)
    rows = "cannot be read" if count is None else formats.count(count, "row")
    return f"stale, {rows}" if name in session.stale else rows


class PanelActions:
    """The actions of the panel's buttons; all but `rows` do the same as the commands."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook

    def drop(self, name: str, *, cascade: bool) -> str:
        """Drops a stage, its variable and its views."""
        return mutations.drop(self._notebook, [name], cascade=cascade)

    def rename(self, old: str, new: str) -> str:
        """Renames a stage and its variable."""
        return mutations.rename(self._notebook, old, new)

    def rows(self, name: str) -> GridView:
        """Returns the grid of a stage; a cell may show the same grid."""
        notebook = self._notebook
        limit = notebook.settings.limit
        return notebook.views.grid(notebook.session(), name, limit, notebook.branch)

    def travel(self, name: str) -> TravelView:
        """Returns the time slider of a stage; a cell may show the same slider."""
        notebook = self._notebook
        return notebook.views.travel(
            notebook.session(), name, None, notebook.branch, NotebookForks(notebook)
        )


def _panel(notebook: Notebook, arguments: Namespace) -> None:
    if not has_widgets(notebook):
        raise UsageError("%dd panel: this front end shows no widgets; use %dd status")
    session = notebook.session()
    panel = notebook.views.panel(session, notebook.branch, PanelActions(notebook))
    if arguments.here or find_spec("sidecar") is None:
        display_view(notebook, panel, panel.title())
        if not arguments.here:
            notebook.say('NoSync: to show the panel at the side: pip install "nosync[views]"')
        return
    from IPython.display import display
    from sidecar import Sidecar

    _, html = panel.static()
    title = f"{panel.title()}; opened at the side"
    notebook.say(title, formats.folded(title, html))
    side = Sidecar(title=_PANEL_TITLE, anchor="split-right")
    notebook.views.keep(side)
    with side:
        display(panel)


COMMANDS = (
    Subcommand(
        "travel",
        "open a time slider over one stage or several",
        _travel,
        [(["stage"], {"nargs": "*"}), AT],
    ),
    Subcommand("layers", "show the layers of a stage", _layers, [(["stage"], {"nargs": "?"})]),
    Subcommand(
        "graph", "show the graph of stages, their epochs, and the cost of a failure", _graph
    ),
    Subcommand(
        "panel",
        "open the panel at the side: stages, graph, layers, replicas",
        _panel,
        [(["--here"], {"action": "store_true", "help": "below the cell instead of at the side"})],
    ),
)
