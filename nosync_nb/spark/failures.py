"""Errors that cross a process: Spark's are translated here, and nowhere else.

What a task of ours raised comes back as data and is raised again, equal to the error of a run in
this process, with the cause and the traceback of the task.
"""

from __future__ import annotations

import base64
import re
import traceback
from typing import Any

from nosync_nb.errors import ExpressionError, NosyncError, StageError, titled

_TEXT = re.compile(r"<nosync:([A-Za-z0-9+/=]+)>")
_SHOWN_MAX = 160
_STATE = re.compile(r"\s*SQLSTATE: \w+\s*$")
_RAISED = re.compile(r"^\s*([\w.]*(?:Error|Exception|Interrupt|Exit)\b.*)$", re.MULTILINE)
_LOST = re.compile(r"most recent failure: [^\n]*?: [\w.]*(?:Exception|Error): ([^\n]+)")
_CALLED = re.compile(r"^An error occurred while calling [^\n]*\n: (?:[\w.$]+: )?")
_CONDITION = re.compile(r"^\s*\[([A-Z_.0-9]+)\]\s*")


class RemoteError(RuntimeError):
    """An error of a task whose own class cannot be brought here; its text says all."""


class TaskError(Exception):
    """An error of ours where no block can carry it: packed into the message."""


def pack(error: NosyncError) -> bytes:
    """An error with its cause, as bytes; values that do not pickle become their text."""
    import cloudpickle

    cause = error.__cause__
    where = "".join(traceback.format_exception(cause)) if cause is not None else ""
    row = getattr(error, "row", None)
    for given in ((row, cause), (repr(row), cause), (row, None), (repr(row), None)):
        try:
            payload: bytes = cloudpickle.dumps((_bare(error, given[0]), given[1], where))
            cloudpickle.loads(payload)
            return payload
        except Exception:
            continue
    text = StageError(str(error), hint=error.hint)
    return bytes(cloudpickle.dumps((text, None, where)))


def _bare(error: NosyncError, row: Any) -> NosyncError:
    """A copy without cause and traceback."""
    copy = type(error).__new__(type(error))
    Exception.__init__(copy, str(error))
    state = dict(error.__dict__)
    if "row" in state:
        state["row"] = row
    copy.__dict__.update(state)
    return copy


def unpack(payload: Any) -> NosyncError:
    """The error again, with the cause and the traceback of the task as its text."""
    import cloudpickle

    error, cause, where = cloudpickle.loads(payload)
    assert isinstance(error, NosyncError)
    if cause is None and where:
        cause = RemoteError(where.strip().splitlines()[-1])
    if cause is not None and where:
        cause.add_note(f"On a Spark executor:\n{where.rstrip()}")
    error.__cause__ = cause
    return error


def as_text(error: NosyncError) -> str:
    """An error as text that survives Spark's messages."""
    return f"<nosync:{base64.b64encode(pack(error)).decode()}>"


def from_text(text: str) -> NosyncError | None:
    """The error in a message of Spark, if there is one."""
    match = _TEXT.search(text)
    return None if match is None else unpack(base64.b64decode(match.group(1)))


def translated(
    error: BaseException, sql: str | None = None, row: dict[str, Any] | None = None
) -> ExpressionError:
    """Spark's error in one line: the expression, Spark's error class, the row."""
    condition, message = explained(error)
    what = "expression" if sql is None else f"expression {sql!r}"
    where = "" if row is None else f" on {_shown(row)}"
    head = f"{condition}: " if condition else ""
    return ExpressionError(f"{what}: {head}{message}{where}")


def explained(error: BaseException) -> tuple[str, str]:
    """Spark's error class, if it has one, and the first sentence of its message."""
    condition = ""
    if hasattr(error, "getCondition"):
        condition = error.getCondition() or ""
    elif hasattr(error, "getErrorClass"):
        condition = error.getErrorClass() or ""
    text = _CALLED.sub("", str(error).strip())
    lost = _LOST.search(text)
    causes = [line for line in text.splitlines() if line.startswith("Caused by: ")]
    if not condition and (lost or causes):
        text = lost.group(1) if lost else causes[-1].split(": ", 2)[-1]
    lines = text.splitlines() or [type(error).__name__]
    line = lines[0]
    match = _CONDITION.match(line)
    if match:
        condition = condition or match.group(1)
        line = line[match.end() :]
    line = _STATE.sub("", line)
    sentence = re.split(r"(?<=[^.]\.)\s+(?=[A-Z])", line, maxsplit=1)[0].strip().rstrip(".")
    return condition, sentence


def _shown(row: dict[str, Any]) -> str:
    text = ", ".join(f"{name}={value!r}" for name, value in row.items())
    return f"({text[:_SHOWN_MAX]}{'...' if len(text) > _SHOWN_MAX else ''})"


def failed(error: Exception, stage: str) -> NosyncError:
    """The error of a Spark query that ran a stage: a value's, a task's, or Spark's own."""
    text = str(error)
    found = from_text(text)
    if found is not None:
        return found
    condition, message = explained(error)
    if condition == "PYTHON_EXCEPTION" or "from the Python worker" in text:
        raised = _RAISED.findall(text)
        what = raised[-1].strip() if raised else message
        return StageError(f"{titled(stage)}: an executor's task failed: {what}", stage=stage)
    if condition and not condition.startswith(("INTERNAL_ERROR", "_LEGACY")):
        fragment = _fragment(error)
        where = f" in {fragment!r}" if fragment else ""
        return ExpressionError(f"{titled(stage)}: {condition}: {message}{where}")
    return StageError(
        f"{titled(stage)}: Spark failed: {message}",
        hint="the Spark log has the whole story; nothing of this epoch was applied",
        stage=stage,
    )


def _fragment(error: Exception) -> str:
    """The expression which Spark blames, if it says so."""
    try:
        contexts = error.getQueryContext()  # type: ignore[attr-defined]
        return str(contexts[0].fragment()) if contexts else ""
    except Exception:
        return ""
