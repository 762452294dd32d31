r"""The errors of NoSync: one class for each kind of action that a user has to take.

    NosyncError
    ├── SchemaError (ValueError)               fix the data or the column names
    ├── MisuseError (AttributeError)           use the method or form that the hint names
    ├── ExpressionError (ValueError)           fix the expression or the values that it failed on
    │   └── SqlError                           fix the statement where the caret is
    ├── StageError (RuntimeError)              fix the function: names stage, row and cause
    ├── TimeError (LookupError)                read at another epoch
    ├── DivergenceError (RuntimeError)         fix the loop
    ├── NegativeMultiplicityError (ValueError) find the removal of a row that did not exist
    ├── FencedError (PermissionError)          take over, or read only
    ├── DurabilityError (OSError)              repair the disk: nothing was committed
    │   └── OutcomeUnknownError                check whether the epoch is committed, then retry
    ├── CorruptLogError (OSError)              repair from a copy
    ├── OutOfMemoryError (MemoryError)         do less at a time: names what was done and what not
    └── TrustError (PermissionError)           functions of the log are not run: run their cell

Messages name the stage and the clashing values in lower case. The remedy is a note
(`BaseException.add_note`), which IPython prints and `str(error)` omits.

Untrusted text: names, labels, values and errors may come from a log, a file or a web page of an
untrusted writer. An escape code in them could repaint a terminal. A bidirectional mark could show
other words than the text has. A tag could become part of a page. Therefore all displayed text,
errors included, passes `visible`, which spells such characters out (`\x1b`, `\u202e`). Text for
HTML passes `html`, which also escapes it. Both leave other text unchanged and are idempotent.
"""

from __future__ import annotations

import difflib
import inspect
import re
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from html import escape
from types import FrameType
from typing import Any, ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but tab and newline
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # direction, invisible
    "\ud800-\udfff]"  # lone surrogates, which cannot be encoded
)
_ERROR_CLASS = re.compile(r"(?:^|: )\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)?)\] ")
"""Spark's error class in a message: at its start, or after `stage 's': expression 'x': `."""


def visible(text: str) -> str:
    r"""Returns a text with its invisible characters spelled out: `\x1b`, `\u202e`."""
    return text if text.isprintable() else _HIDDEN.sub(_spell_out, text)


def one_line(text: str) -> str:
    """Returns a text on one line, with `⏎` in place of each line break."""
    return visible(text.replace("\r\n", "\n").replace("\n", "⏎"))


def text_of(value: Any, write: Callable[[Any], str] = repr) -> str:
    """Returns a user's object as text for a message, even if the object cannot be printed."""
    try:
        return write(value)
    except Exception:
        return f"<{type(value).__name__}, which cannot be printed>"


def html(text: str) -> str:
    """Returns a text as HTML that displays it, in an element or in a quoted attribute."""
    return escape(visible(text))


def warn(text: str, *, stacklevel: int | None) -> None:
    """Issues a warning.

    Args:
        stacklevel: the level of the frame to blame, as in `warnings.warn`. None means the nearest
            frame of user code, for calls at different depths below it.
    """
    level = _frames_to_user_code() if stacklevel is None else stacklevel
    warnings.warn(visible(text), stacklevel=level + 1)


def _frames_to_user_code() -> int:
    """Returns the number of frames from the caller of `warn` to the nearest one of user code."""
    frame, level = inspect.currentframe(), -1
    while frame is not None and (level < 1 or _is_own_frame(frame)):
        frame, level = frame.f_back, level + 1
    return max(level, 1)


def _is_own_frame(frame: FrameType) -> bool:
    """Returns True if a frame belongs to NoSync, or to `contextlib`, which ends `with` blocks."""
    return str(frame.f_globals.get("__name__")).startswith(("nosync", "contextlib"))


def _spell_out(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def likely(wanted: str, known: Sequence[str], what: str, *, shown: int = 6) -> str:
    """Returns a hint with the names that resemble `wanted`, or else with the last `shown` names."""
    near = difflib.get_close_matches(wanted, known, n=3)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    more = f" and {len(known) - shown:,} others" if len(known) > shown else ""
    return f"{what}: {', '.join(known[-shown:]) or 'none'}{more}"


def titled(stage: str) -> str:
    """Returns the name of a stage for messages; stage '' is an unnamed collection."""
    return f"stage '{stage}'" if stage else "an unnamed collection"


class NosyncError(Exception):
    """The root: catches everything that NoSync raises on purpose.

    `kind` is a stable word for programs; `hint` is the remedy, also attached as a note;
    `error_class` is Spark's error class, if the message names one.

    Examples:
        >>> try:
        ...     late.rows(at=99)
        ... except nosync.NosyncError as error:
        ...     print(error.kind)
        time
    """

    kind = "error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(visible(message))
        self.hint = hint = hint and visible(hint)
        if hint:
            self.add_note(f"Hint: {hint}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), self.hint, dict(self.__dict__))

    @property
    def error_class(self) -> str:
        """Spark's error class, such as `DIVIDE_BY_ZERO`; empty if the message names none.

        Examples:
            >>> try:
            ...     flights.select("day / (day - day) AS x").rows()
            ... except nosync.ExpressionError as error:
            ...     print(error.error_class)
            DIVIDE_BY_ZERO
        """
        found = _ERROR_CLASS.search(str(self))
        return found[1] if found else ""

    def because(self, cause: BaseException | None) -> None:
        """Sets a cause that is not being handled, for example one from another process."""
        self.__cause__ = cause

    def restore(self, state: dict[str, Any], hint: str | None) -> None:
        """Restores the attributes from a pickle, including the notes."""
        self.__dict__.update(state)
        self.hint = hint

    def bare(self) -> NosyncError:
        """Returns a copy without cause and traceback."""
        return _rebuild(type(self), str(self), self.hint, dict(self.__dict__))


def _rebuild(
    cls: type[NosyncError], message: str, hint: str | None, state: dict[str, Any]
) -> NosyncError:
    """Rebuilds an error after pickling, with its notes."""
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.restore(state, hint)
    return error


class SchemaError(NosyncError, ValueError):
    """Columns, types or rows do not fit a schema.

    Examples:
        >>> try:
        ...     flights.insert([("AA", "first", 5.0)])
        ... except nosync.SchemaError as error:
        ...     print(error.kind)
        schema
    """

    kind = "schema"


class MisuseError(NosyncError, AttributeError, TypeError):
    """A collection does not support this use: it lacks the method, or takes other arguments.

    Examples:
        >>> try:
        ...     flights.withColumn("hours", "delay / 60")
        ... except nosync.MisuseError as error:
        ...     print(error.hint)
        use with_columns(name='...')
    """

    kind = "misuse"


class ExpressionError(NosyncError, ValueError):
    """A SQL expression cannot be understood, or failed on a value.

    Examples:
        >>> try:
        ...     flights.filter("dealy > 60")
        ... except nosync.ExpressionError as error:
        ...     print(error.hint)
        did you mean 'delay'? the columns are carrier, day, delay
    """

    kind = "expression"


class SqlError(ExpressionError):
    """A SQL statement cannot be understood; the message shows the line with a caret.

    Attributes:
        reason: the message without the line; it begins with Spark's error class in brackets.
        span: the part of the text, as the positions of its first character and behind its last
            one; None if the message shows no line.

    Examples:
        >>> try:
        ...     session.sql("SELECT dealy FROM flights")
        ... except nosync.SqlError as error:
        ...     print(error)
        [UNRESOLVED_COLUMN] there is no column 'dealy' (line 1, column 8)
          SELECT dealy FROM flights
                 ^^^^^
    """

    kind = "sql"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        reason: str | None = None,
        span: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.reason = visible(message if reason is None else reason)
        self.span = span


class StageError(NosyncError, RuntimeError):
    """A user's function or a definition of a stage failed; `stage`, `row` say where.

    Examples:
        >>> share = flights.map(lambda row: (1 / (row.day - 1),), "share double")
        >>> try:
        ...     session.stage("share", share)
        ... except nosync.StageError as error:
        ...     print(error.stage, error.row)
        share Row(carrier='UA', day=1, delay=20.0)
    """

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

    def at(self, row: Any) -> None:
        """Sets the row, or the group, on which the stage failed."""
        self.row = row


class TimeError(NosyncError, LookupError):
    """An epoch is not readable; the message names its readable neighbours.

    Examples:
        >>> try:
        ...     late.rows(at=99)
        ... except nosync.TimeError:
        ...     print("readable:", late.history())
        readable: [range(0, 2)]
    """

    kind = "time"


class DivergenceError(NosyncError, RuntimeError):
    """A loop does not converge.

    Examples:
        >>> swapped = flights.select("day").iterate(lambda days: days.select("3 - day AS day"))
        >>> try:
        ...     swapped.rows()
        ... except nosync.DivergenceError as error:
        ...     print(error.kind)
        divergence
    """

    kind = "divergence"


class NegativeMultiplicityError(NosyncError, ValueError):
    """A collection has a row with a negative multiplicity at the epoch that is read.

    Examples:
        >>> flights.remove([("UA", 9, 0.0)])
        1
        >>> session.commit()
        2
        >>> try:
        ...     flights.rows()
        ... except nosync.NegativeMultiplicityError as error:
        ...     print(error.kind)
        negative
    """

    kind = "negative"


class FencedError(NosyncError, PermissionError):
    """Another owner writes this log.

    Examples:
        >>> reader = nosync.open("flights.nosync", mode="r")
        >>> try:
        ...     reader["flights"].insert([("UA", 2, 7.0)])
        ... except nosync.FencedError as error:
        ...     print(error.kind)
        fenced
    """

    kind = "fenced"


class DurabilityError(NosyncError, OSError):
    """The disk refused a write; the epoch was not committed. `errno` is the system's reason.

    Examples:
        >>> from pathlib import Path
        >>> Path("notes.txt").touch()
        >>> try:
        ...     nosync.open("notes.txt")
        ... except nosync.DurabilityError as error:
        ...     print(error.kind)
        durability
    """

    kind = "durability"

    def __init__(self, message: str, *, hint: str | None = None, errno: int | None = None) -> None:
        super().__init__(message, hint=hint)
        if errno is not None:  # no `filename`: it would change the text of the error
            self.errno = errno


class OutcomeUnknownError(DurabilityError):
    """A write may or may not have happened.

    `epoch` is the number of an epoch that is committed in memory and written to the log of this
    session. It is unknown whether that epoch is on disk.

    Examples:
        >>> from pathlib import Path
        >>> replica = Path("replica").absolute().as_uri()
        >>> safe = nosync.open("safe.nosync", replicas=[replica])
        >>> try:
        ...     safe.commit(wait="replicas", timeout=0)
        ... except nosync.OutcomeUnknownError as error:
        ...     print(error.epoch)
        1
    """

    kind = "unknown"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        errno: int | None = None,
        epoch: int | None = None,
    ) -> None:
        super().__init__(message, hint=hint, errno=errno)
        self.epoch = epoch


class CorruptLogError(NosyncError, OSError):
    """Bytes of the log are damaged before its end.

    `file` is the name of the damaged file of rows, if it is one.

    Examples:
        >>> from pathlib import Path
        >>> session.close()
        >>> segment = next(Path("flights.nosync").glob("segment-*.log"))
        >>> size = segment.write_bytes(bytes(1000) + segment.read_bytes()[1000:])
        >>> try:
        ...     nosync.open("flights.nosync")
        ... except nosync.CorruptLogError as error:
        ...     print(error.kind)
        corrupt
    """

    kind = "corrupt"

    def __init__(self, message: str, *, hint: str | None = None, file: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.file = file


class OutOfMemoryError(NosyncError, MemoryError):
    """Memory was exhausted; the message names what has changed, which is usually nothing.

    Examples:
        >>> session.collect_rows = 10**15
        >>> many = flights.threshold(lambda count: 10**13)
        >>> try:
        ...     many.to_arrow()
        ... except nosync.OutOfMemoryError as error:
        ...     print(error.kind)
        memory
    """

    kind = "memory"

    def __new__(cls, *message: Any, **_named: Any) -> OutOfMemoryError:
        # MemoryError.__new__ creates only its own type.
        return Exception.__new__(cls, *message)


class TrustError(NosyncError, PermissionError):
    """A log, key or folder is not this user's own: a signature, an owner or a mode is wrong.

    Examples:
        >>> import os
        >>> os.environ["NOSYNC_KEY_FILE"] = os.path.abspath("the key of another user")
        >>> try:
        ...     nosync.copy("flights.nosync", "copied.nosync")
        ... except nosync.TrustError as error:
        ...     print(error.kind)
        trust
    """

    kind = "trust"


def enough_memory(
    did: Callable[..., str], hint: str
) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """Decorates a function so that it raises OutOfMemoryError if memory is exhausted.

    Args:
        did: returns the part of the message that names the completed and the omitted changes; it
            receives the arguments of the failed call.
        hint: the remedy.
    """

    def decorate(call: Callable[Given, Result]) -> Callable[Given, Result]:
        @wraps(call)
        def guarded(*given: Given.args, **named: Given.kwargs) -> Result:
            __tracebackhide__ = True
            try:
                return call(*given, **named)
            except OutOfMemoryError:
                raise
            except MemoryError as error:
                raise OutOfMemoryError(
                    f"out of memory: {did(*given, **named)}", hint=hint
                ) from error

        return guarded

    return decorate
