"""Errors that cross a process: Spark's are translated here, and nowhere else.

What a task of ours raised comes back in a row and is raised again, equal to the error of a run in
this process, with the cause and the traceback of the task. Where no row can carry it, it stands in
the message of Spark's error, as text under a random token of the run: nothing is ever loaded from
a message, since Spark quotes there whatever values it meets.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nosync_nb.errors import ExpressionError, NosyncError, StageError, titled

_SHOWN_MAX = 160
_STATE = re.compile(r"\s*SQLSTATE: \w+\s*$")
_RAISED = re.compile(r"^\s*([\w.]*(?:Error|Exception|Interrupt|Exit)\b.*)$", re.MULTILINE)
_LOST = re.compile(r"most recent failure: [^\n]*?: [\w.]*(?:Exception|Error): ([^\n]+)")
_CALLED = re.compile(r"^An error occurred while calling [^\n]*\n: (?:[\w.$]+: )?")
_CONDITION = re.compile(r"^\s*\[([A-Z_.0-9]+)\]\s*")
_CLIENT = ("java_gateway", "clientserver")
"""Modules of Spark's client; they write to the root of all logs and to those of their own."""
_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


class _Here(threading.local):
    """How many blocks of this thread are quiet."""

    depth = 0

    def enter(self) -> None:
        self.depth += 1

    def leave(self) -> None:
        self.depth -= 1


_here = _Here()


class RemoteTaskError(RuntimeError):
    """An error of a task whose own class cannot be brought here; its text says all."""


class TaskError(Exception):
    """An error of ours where no block can carry it: as text in the message."""


def pack_error(error: NosyncError) -> bytes:
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
    copy = error.bare()
    if isinstance(copy, StageError):
        copy.at(row)
    return copy


def unpack_error(payload: Any) -> NosyncError:
    """The error again, with the cause and the traceback of the task as its text."""
    import cloudpickle

    error, cause, where = cloudpickle.loads(payload)
    assert isinstance(error, NosyncError)
    if cause is None and where:
        cause = RemoteTaskError(where.strip().splitlines()[-1])
    if cause is not None and where:
        cause.add_note(f"On a Spark executor:\n{where.rstrip()}")
    error.because(cause)
    return error


def error_to_text(error: NosyncError, token: str) -> str:
    """An error as text that survives Spark's messages; values and cause become their text.

    Args:
        token: of the run, random: who has it is a task of that run.
    """
    row = getattr(error, "row", None)
    cause = error.__cause__
    told = {
        "kind": error.kind,
        "message": str(error),
        "hint": error.hint,
        "stage": getattr(error, "stage", None),
        "row": row if row is None or _is_plain(row) else repr(row),
        "cause": None if cause is None else f"{type(cause).__name__}: {cause}",
        "where": "" if cause is None else "".join(traceback.format_exception(cause)),
    }
    return f"<nosync:{token}:{base64.b64encode(json.dumps(told).encode()).decode()}>"


def error_from_text(text: str, token: str | None) -> NosyncError | None:
    """The error that a task of this run put in a message of Spark, if there is one.

    Spark quotes values in its messages, so what stands there may be a stranger's: without the
    token of the run it is no error of ours, and with it is read as data, never loaded.
    """
    if not token:
        return None
    match = re.search(rf"<nosync:{re.escape(token)}:([A-Za-z0-9+/=]+)>", text)
    if match is None:
        return None
    try:
        data = json.loads(base64.b64decode(match.group(1)))
    except ValueError:  # cut short on its way
        return None
    kinds = {kind.kind: kind for kind in _tree(NosyncError)}
    kind = kinds.get(data["kind"], StageError)
    where: dict[str, Any] = {}
    if issubclass(kind, StageError):
        row = tuple(data["row"]) if isinstance(data["row"], list) else data["row"]
        where = {"stage": data["stage"], "row": row}
    error = kind(data["message"], hint=data["hint"], **where)
    if data["cause"] is not None:
        cause = RemoteTaskError(data["cause"])
        cause.add_note(f"On a Spark executor:\n{data['where'].rstrip()}")
        error.because(cause)
    return error


def _tree(kind: type[NosyncError]) -> Iterator[type[NosyncError]]:
    """A class of errors and those below it."""
    yield kind
    for below in kind.__subclasses__():
        yield from _tree(below)


def _is_plain(row: Any) -> bool:
    """Whether JSON gives a row back as it is."""
    return isinstance(row, tuple) and all(
        value is None or type(value) in (bool, int, float, str) for value in row
    )


def translate_error(
    error: BaseException, sql: str | None = None, row: dict[str, Any] | None = None
) -> ExpressionError:
    """Spark's error in one line: the expression, Spark's error class, the row."""
    condition, message = spark_error_summary(error)
    what = "expression" if sql is None else f"expression {sql!r}"
    where = f" on {_shown(row)}" if row else ""
    head = f"{condition}: " if condition else ""
    return ExpressionError(f"{what}: {head}{message}{where}")


def spark_error_summary(error: BaseException) -> tuple[str, str]:
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


def query_error(error: Exception, stage: str, token: str | None = None) -> NosyncError:
    """The error of a Spark query that ran a stage: a value's, a task's, or Spark's own.

    Args:
        token: of the run, if tasks may have put an error of ours into the message.
    """
    text = str(error)
    own = error_from_text(text, token)
    if own is not None:
        return own
    condition, message = spark_error_summary(error)
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


def _heard(record: logging.LogRecord) -> bool:
    return not _here.depth


def _heard_of_client(record: logging.LogRecord) -> bool:
    return not _here.depth or record.module not in _CLIENT


@contextmanager
def without_query_logs() -> Iterator[None]:
    """A block in which PySpark logs no errors of this thread: they are told once, by us.

    It writes every error that knows its expression to standard error, as JSON with the whole stack
    of the JVM, before anybody can catch it, and its client every interrupt, with all frames. Of
    what the user's own code makes Spark do it goes on.
    """
    try:
        from pyspark.logger import PySparkLogger
    except ImportError:
        yield
        return
    for name in _LOGGERS:
        PySparkLogger.getLogger(name).addFilter(_heard)  # the second time it is there
    for logger in (None, *(f"py4j.{module}" for module in _CLIENT)):
        logging.getLogger(logger).addFilter(_heard_of_client)
    _here.enter()
    try:
        yield
    finally:
        _here.leave()
