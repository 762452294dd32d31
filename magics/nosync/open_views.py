"""Manages the open views of a notebook: one for each kind and stage, on the branch in use.

The session notifies sliders and grids of commits. This module notifies them of other changes (a
rewind, downsampled history, another branch), after each cell and when the notebook changes its
session. The views of the current state share one poller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nosync_nb import Session
    from nosync_widgets.overview_poller import OverviewPoller
    from nosync_widgets.throttle import ThreadBudget
    from nosync_widgets.views.graph_view import FrontierView
    from nosync_widgets.views.grid import GridView
    from nosync_widgets.views.layers_view import LayersView
    from nosync_widgets.views.panel import Actions, Panel
    from nosync_widgets.views.time_slider import ForkActions, TravelView


class OpenViews:
    """The open views, by kind and stage."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, ...], TravelView] = {}
        self._layers: dict[str | None, LayersView] = {}
        self._graph: FrontierView | None = None
        self._panel: Panel | None = None
        self._side: Any = None
        self._pulse: OverviewPoller | None = None
        self._grids: dict[str, GridView] = {}
        self._budget: ThreadBudget | None = None

    def travel(
        self,
        session: Session,
        stage: str,
        at: int | None,
        branch: str | None,
        forks: ForkActions | None = None,
        beside: Sequence[str] = (),
    ) -> TravelView:
        """Returns the time slider of a stage at an epoch; an open slider is moved there.

        Args:
            at: the epoch; None means the last one.
            beside: further stages, which the same slider moves.
        """
        from nosync_widgets.views.time_slider import TravelView

        view = self._open.get((stage, *beside))
        if view is None:
            view = TravelView(
                session,
                stage,
                at=at,
                branch=branch,
                forks=forks,
                budget=self._shared(),
                beside=beside,
            )
            self._open[(stage, *beside)] = view
        else:
            view.refresh(reload=True)
            view.travel(at)
        return view

    def layers(self, session: Session, stage: str | None, branch: str | None) -> LayersView:
        """Returns the view of the layers of a stage; reuses an open view.

        Args:
            stage: the stage; None means the one that was defined last.
        """
        from nosync_widgets.views.layers_view import LayersView

        pulse = self._beat(session, branch)
        view = self._layers.get(stage)
        if view is None:
            view = self._layers[stage] = LayersView(pulse, stage)
        elif stage is not None:
            view.choose(stage)
        return view

    def graph(self, session: Session, branch: str | None) -> FrontierView:
        """Returns the view of the graph."""
        from nosync_widgets.views.graph_view import FrontierView

        pulse = self._beat(session, branch)
        if self._graph is None:
            self._graph = FrontierView(pulse)
        return self._graph

    def panel(self, session: Session, branch: str | None, actions: Actions) -> Panel:
        """Returns the panel, and closes its display at the side, if there was one."""
        from nosync_widgets.views.panel import Panel

        pulse = self._beat(session, branch)
        self.keep(None)
        if self._panel is None:
            self._panel = Panel(pulse, actions)
        return self._panel

    def keep(self, side: Any) -> None:
        """Closes the side display of the panel, and stores a new one, to close it later.

        Args:
            side: the new side display; None only closes the previous one.
        """
        if self._side is not None:
            self._side.close()
        self._side = side

    def _shared(self) -> ThreadBudget:
        """Returns the time budget that all views which follow commits share."""
        from nosync_widgets.throttle import ThreadBudget

        if self._budget is None:
            self._budget = ThreadBudget()
        return self._budget

    def _beat(self, session: Session, branch: str | None) -> OverviewPoller:
        """Returns the poller that the views share, with a current overview."""
        from nosync_widgets.overview_poller import OverviewPoller

        if self._pulse is None:
            self._pulse = OverviewPoller(session, branch)
        else:
            self._pulse.refresh(always=True)
        return self._pulse

    def grid(self, session: Session, stage: str, limit: int, branch: str | None) -> GridView:
        """Returns the grid of a stage, up to date; reuses an open grid."""
        from nosync_widgets.views.grid import GridView

        grid = self._grids.get(stage)
        if grid is None:
            grid = GridView(session, stage, limit=limit, branch=branch, budget=self._shared())
            self._grids[stage] = grid
        else:
            grid.refresh()
        return grid

    def refresh(self) -> None:
        """Refreshes sliders and grids after new epochs, and if epochs are no longer readable."""
        for view in self._open.values():
            view.refresh()
        for grid in self._grids.values():
            grid.follow()

    def move(self, session: Session, branch: str | None) -> None:
        """Moves all views to another session of the same log, or of one of its branches."""
        for view in (*self._open.values(), *self._grids.values()):
            view.move(session, branch)
        if self._pulse is not None:
            self._pulse.move(session, branch)

    def close(self, *only: str) -> None:
        """Closes the sliders and grids of the given stages; without arguments, all views."""
        for stages in [each for each in self._open if not only or {*each} & {*only}]:
            self._open.pop(stages).close()
        for stage in [each for each in self._grids if not only or each in only]:
            self._grids.pop(stage).close()
        if not only:
            self._close_live()

    def _close_live(self) -> None:
        """Closes the views of the current state."""
        self.keep(None)
        live = [*self._layers.values(), self._graph, self._panel, self._pulse]
        self._layers.clear()
        self._graph = self._panel = self._pulse = None
        for each in live:
            if each is not None:
                each.close()
