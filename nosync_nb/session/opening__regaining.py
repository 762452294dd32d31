"""Regaining: what is done about a log whose folder is gone while too few replicas can be read.

    refuse  raises: whoever opens the log decides (the default)
    wait    asks again until enough of them answer, or for so long
    gap     goes on with what there is, and says of each stage from which epoch on it may lack some

What a quorum was told to have may lie with the replicas that do not answer, so none of the three
begins anew, and a gap is told until the log is opened again.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Literal, cast, get_args

from nosync_nb.errors import SchemaError, warn
from nosync_nb.session.report import RecoveryReport
from nosync_nb.store.replication.restore.restore import QuorumUnavailableError, RestoreResult

OnLoss = Literal["refuse", "wait", "gap"]

_AGAIN_S = 0.2


class RestorePolicy:
    """What one opening does if too few replicas can be read.

    Args:
        timeout: seconds that are waited at most; None: as long as it takes.

    Raises:
        SchemaError: an argument is not one of those that are known.
    """

    def __init__(self, on_loss: Any, timeout: Any) -> None:
        if on_loss not in get_args(OnLoss):
            raise SchemaError(
                f"on_loss={on_loss!r:.80} is not known",
                hint="if too few replicas answer, 'refuse' raises, 'wait' waits for them, and 'gap'"
                " takes what there is and says what may be missing",
            )
        if timeout is not None and on_loss != "wait":
            raise SchemaError(
                f"timeout={timeout!r:.80} with on_loss={on_loss!r}: nothing is waited for",
                hint="say on_loss='wait' as well, or leave it out",
            )
        if timeout is not None and not (
            isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout > 0
        ):
            raise SchemaError(
                f"timeout={timeout!r:.80} is no time", hint="a number of seconds above 0, or None"
            )
        self._on_loss = cast(OnLoss, on_loss)
        self._timeout = timeout
        self._until = None if timeout is None else time.monotonic() + timeout
        self._said = ""

    @property
    def gap(self) -> bool:
        """Whether what there is will do."""
        return self._on_loss == "gap"

    def wait(self, missing: QuorumUnavailableError) -> None:
        """Waits a while before the replicas are asked again; it can be interrupted.

        What is waited for is told, as a warning, whenever it is something else.

        Raises:
            MissingError: nothing is waited for, or not any longer.
        """
        if self._on_loss != "wait":
            raise missing
        if self._until is not None and time.monotonic() >= self._until:
            missing.add_note(f"on_loss='wait': it was waited for {self._timeout:g} s")
            raise missing
        if str(missing) != self._said:
            self._said = str(missing)
            warn(f"waiting for replicas, interrupt to stop: {missing}", stacklevel=4)
        threading.Event().wait(_AGAIN_S)


def report_restore(report: RecoveryReport, regained: RestoreResult, stages: list[str]) -> None:
    """Says in the report of an opening from where a log came, and what it may lack."""
    if not regained.url:
        for doubt in regained.doubts:
            report.note(f"a new log was begun, though a replica did not answer: {doubt}")
        return
    report.note(f"made anew from {regained.url}, up to frame {regained.seq}")
    for doubt in regained.doubts:
        report.note(f"not used: {doubt}")
    if regained.uncertain:
        report.gap(stages)
