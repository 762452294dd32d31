"""Refuses rows: a collection that must be empty, and that fails the epoch if it is not."""

from __future__ import annotations

from collections.abc import Sequence

from nosync_nb.errors import StageError, titled
from nosync_nb.expressions import Types
from nosync_nb.operators.base import RowPiece, Step
from nosync_nb.operators.spec import DefinitionPart, Spec, passed_through, same_columns
from nosync_nb.rows.array_ops import any_true
from nosync_nb.trace.batch import Updates, no_updates


class Refusal(RowPiece):
    """Raises an error for a row with a positive count; outputs no rows.

    Its input must be consolidated, because rows that cancel are not refused.

    Args:
        types: the column types.
        message, hint: the error.
    """

    name = "refuse"

    def __init__(self, types: Sequence[str], message: str, hint: str) -> None:
        self.types = tuple(types)
        self.message = message
        self.hint = hint

    def apply(self, updates: Updates, step: Step) -> Updates:
        if any_true(updates.diff > 0):
            raise StageError(
                f"{titled(step.stage)}: {self.message}", hint=self.hint, stage=step.stage
            )
        return no_updates(self.types)


def _piece(part: DefinitionPart, types: Types | None) -> RowPiece:
    return Refusal(part.schema.types, part.params["message"], part.params["hint"])


SPEC = Spec("refuse", passed_through, piece=_piece, reads=same_columns)
