"""The subcommand `%dd panel`: all views at JupyterLab's side, and what it does with a stage."""

from __future__ import annotations

from argparse import Namespace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from nosync.commands import mutations
from nosync.commands.arguments import Subcommand
from nosync.commands.branches import NotebookForks
from nosync.commands.views import display_view, has_widgets
from nosync_widgets import formats

if TYPE_CHECKING:
    from nosync.notebook import Notebook
    from nosync_widgets.views.grid import GridView
    from nosync_widgets.views.time_slider import TravelView

_TITLE = "NoSync"


class PanelActions:
    """What the panel's buttons do: the same as the commands of their names."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook

    def drop(self, name: str, *, cascade: bool) -> str:
        """Forgets a stage, its variable and its views."""
        return mutations.drop(self._notebook, [name], cascade=cascade)

    def rename(self, old: str, new: str) -> str:
        """Gives a stage and its variable another name."""
        return mutations.rename(self._notebook, old, new)

    def rows(self, name: str) -> GridView:
        """The grid of a stage, which cells may show, too."""
        notebook = self._notebook
        limit = notebook.settings.limit
        return notebook.views.grid(notebook.session(), name, limit, notebook.branch)

    def travel(self, name: str) -> TravelView:
        """The view of a stage through time, which cells may have open, too."""
        notebook = self._notebook
        return notebook.views.travel(
            notebook.session(), name, None, notebook.branch, NotebookForks(notebook)
        )


def _panel(notebook: Notebook, arguments: Namespace) -> None:
    if not has_widgets(notebook):
        raise UsageError("%dd panel: there is no front end for views here; see %dd status")
    session = notebook.session()
    panel = notebook.views.panel(session, notebook.branch, PanelActions(notebook))
    if arguments.here or find_spec("sidecar") is None:
        display_view(notebook, panel, panel.title())
        if not arguments.here:
            notebook.say('NoSync: pip install "nosync[views]" shows the panel at the side')
        return
    from IPython.display import display
    from sidecar import Sidecar

    _, html = panel.static()
    title = f"{panel.title()}; it is at the side"
    notebook.say(title, formats.folded(title, html))
    side = Sidecar(title=_TITLE, anchor="split-right")
    notebook.views.keep(side)
    with side:
        display(panel)


COMMANDS = (
    Subcommand(
        "panel",
        "stages, graph, layers, replicas, at the side: drop, rename, travel",
        _panel,
        [(["--here"], {"action": "store_true", "help": "below the cell, not at the side"})],
    ),
)
