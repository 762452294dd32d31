"""What the parts of a notebook ask of each other; IPython's own types are imported as types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

    from nosync_nb import Session


class Settings(Protocol):
    """What `%config NoSync` sets."""

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
    """What the cells of a notebook belong to: it has the session, and hears of them.

    `opened` is the session, once there is one.
    """

    shell: InteractiveShell
    settings: Settings
    opened: Session | None

    def before_cell(self) -> None:
        """A cell begins."""

    def after_cell(self, result: ExecutionResult | None) -> None:
        """A cell has ended, and what it left is settled."""

    def cancel_spark(self) -> None:
        """The cell was interrupted."""

    def forget(self, *names: str) -> None:
        """Stages are gone."""

    def say(self, text: str, html: str | None = None, *, progress: bool = False) -> None:
        """Shows a text in the running cell."""

    def show(self, error: BaseException) -> None:
        """Shows an error that no cell raised."""
