"""The errors of NoSync: one tree, split by what the reader would do next.

    NosyncError
    ├── SchemaError (ValueError)               fix the data or the column names
    ├── ExpressionError (ValueError)           fix the SQL or the values it met
    ├── StageError (RuntimeError)              fix the function: names stage, row and cause
    ├── TimeError (LookupError)                read at another epoch
    ├── DivergenceError (RuntimeError)         fix the loop
    ├── NegativeMultiplicityError (ValueError) find who removed a row that was not there
    ├── FencedError (PermissionError)          take over, or read only
    ├── DurabilityError (OSError)              repair the disk: nothing was committed
    │   └── OutcomeUnknownError                look whether the epoch is there before trying again
    ├── CorruptLogError (OSError)              repair from a copy
    └── TrustError (PermissionError)           functions of the log are not run: run their cell

Messages name the stage and the clashing values in lower case; the remedy is a note
(`BaseException.add_note`), which IPython prints and `str(error)` leaves out.
"""

from __future__ import annotations

from typing import Any


def titled(stage: str) -> str:
    """A stage as messages name it; what is read without having a name is run as stage ''."""
    return f"stage '{stage}'" if stage else "an unnamed collection"


class NosyncError(Exception):
    """The root: catches everything that NoSync raises on purpose.

    `kind` is a stable word for programs; `hint` is the remedy, also kept as a note.
    """

    kind = "error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.add_note(f"Hint: {hint}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), self.hint, dict(self.__dict__))


def _rebuild(
    cls: type[NosyncError], message: str, hint: str | None, state: dict[str, Any]
) -> NosyncError:
    """Makes an error again after pickling, with its notes."""
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    error.hint = hint
    return error


class SchemaError(NosyncError, ValueError):
    """Columns, types or rows do not fit a schema."""

    kind = "schema"


class ExpressionError(NosyncError, ValueError):
    """A SQL expression cannot be understood, or failed on a value."""

    kind = "expression"


class StageError(NosyncError, RuntimeError):
    """A user's function or a definition of a stage failed; `stage`, `row` say where."""

    kind = "stage"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        stage: str | None = None,
        row: Any = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.stage = stage
        self.row = row


class TimeError(NosyncError, LookupError):
    """An epoch is not readable; the message names its readable neighbours."""

    kind = "time"


class DivergenceError(NosyncError, RuntimeError):
    """A loop does not settle."""

    kind = "divergence"


class NegativeMultiplicityError(NosyncError, ValueError):
    """A collection that is read holds a row fewer than zero times."""

    kind = "negative"


class FencedError(NosyncError, PermissionError):
    """Another owner writes this log."""

    kind = "fenced"


class DurabilityError(NosyncError, OSError):
    """The disk refused a write; the epoch was not committed."""

    kind = "durability"


class OutcomeUnknownError(DurabilityError):
    """A write may or may not have happened."""

    kind = "unknown"


class CorruptLogError(NosyncError, OSError):
    """Bytes of the log are damaged before its end."""

    kind = "corrupt"


class TrustError(NosyncError, PermissionError):
    """A closure in the log is not signed by this user's key."""

    kind = "trust"
