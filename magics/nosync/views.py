"""The views that a notebook has open: one of each stage, which follows where cells go on.

A view is told of commits by its session. What no commit tells (a rewind, a past that was thinned
out, another branch) it is told here, after each cell and when the notebook has another session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nosync_nb import Session
    from nosync_widgets.travel import TravelView


class OpenViews:
    """The open views, by stage."""

    def __init__(self) -> None:
        self._open: dict[str, TravelView] = {}

    def travel(
        self, session: Session, stage: str, at: int | None, branch: str | None
    ) -> TravelView:
        """The view of a stage at an epoch, None: the last; opened, or moved if it is open."""
        from nosync_widgets.travel import TravelView

        view = self._open.get(stage)
        if view is None:
            view = self._open[stage] = TravelView(session, stage, at=at, branch=branch)
        else:
            view.refresh(reload=True)
            view.travel(at)
        return view

    def refresh(self) -> None:
        """Looks for new epochs, and for those that are gone."""
        for view in self._open.values():
            view.refresh()

    def move(self, session: Session, branch: str | None) -> None:
        """Goes on with another session of the same log, that of a branch or of the log itself."""
        for view in self._open.values():
            view.move(session, branch)

    def close(self, *only: str) -> None:
        """Closes the views of some stages; of none: all."""
        for stage in only or [*self._open]:
            view = self._open.pop(stage, None)
            if view is not None:
                view.close()
