"""Protocols between the parts of a notebook; IPython's own types are imported as types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

    from nosync_nb import Session


class Settings(Protocol):
    """The settings of `%config NoSync`."""

    autocommit: bool
    replay_rows: int
    backlog_bytes: int | None
    budget: str
    spark_conf: dict[str, str]
    spark: str
    bulk: str
    progress: str
    short_errors: bool
    limit: int
    show: str


class CellOwner(Protocol):
    """The notebook that cells belong to: it has the session, and is notified of cells.

    `opened` is the session, once there is one.
    """

    shell: InteractiveShell
    settings: Settings
    opened: Session | None

    def before_cell(self) -> None:
        """Prepares for a cell that begins."""

    def after_cell(self, result: ExecutionResult | None) -> None:
        """Follows up on a cell that has ended, after its commit or discard."""

    def cancel_spark(self) -> None:
        """Cancels the Spark jobs of an interrupted cell."""

    def forget(self, *names: str) -> None:
        """Removes stages that were dropped."""

    def say(self, text: str, html: str | None = None, *, progress: bool = False) -> None:
        """Shows a text in the running cell."""

    def show_error(self, error: BaseException) -> None:
        """Shows an error that no cell raised."""
