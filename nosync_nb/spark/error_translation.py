"""Translates Spark's errors, and transfers errors of NoSync from executors to the driver.

If a task raises an error of NoSync, it returns the error in a row. The driver raises it again. It
is equal to the error of a run in this process, and has the cause and the traceback of the task. If
a step of the query cannot return such a row, the task writes the error as text into the message of
Spark's error, marked with a random token of the run. The driver never unpickles a message, because
Spark quotes user values in its messages.
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
from nosync_nb.expressions import refusal_without_spark

_ROW_CHARS_MAX = 160
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+\s*$")
_PYTHON_ERROR = re.compile(r"^\s*([\w.]*(?:Error|Exception|Interrupt|Exit)\b.*)$", re.MULTILINE)
_STAGE_FAILURE = re.compile(r"most recent failure: [^\n]*?: [\w.]*(?:Exception|Error): ([^\n]+)")
_PY4J_PREFIX = re.compile(r"^An error occurred while calling [^\n]*\n: (?:[\w.$]+: )?")
_CONDITION = re.compile(r"^\s*\[([A-Z_.0-9]+)\]\s*")
_CLIENT = ("java_gateway", "clientserver")
"""Modules of Spark's client, which log to the root logger and to their own loggers."""
_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


class _QuietBlocks(threading.local):
    """The number of nested blocks of this thread that suppress Spark's logging."""

    depth = 0

    def enter(self) -> None:
        self.depth += 1

    def leave(self) -> None:
        self.depth -= 1


_quiet = _QuietBlocks()


class RemoteTaskError(RuntimeError):
    """Represents an error of a task whose class cannot be loaded here, by its text."""


class TaskError(Exception):
    """Transfers an error of NoSync as text in its message, where no block can contain it."""


def pack_error(error: NosyncError) -> bytes:
    """Serialises an error with its cause; replaces values that cannot be pickled by their text."""
    import cloudpickle

    cause = error.__cause__
    where = "".join(traceback.format_exception(cause)) if cause is not None else ""
    row = getattr(error, "row", None)
    for given in ((row, cause), (repr(row), cause), (row, None), (repr(row), None)):
        try:
            payload: bytes = cloudpickle.dumps((_without_cause(error, given[0]), given[1], where))
            cloudpickle.loads(payload)
            return payload
        except Exception:
            continue
    text = StageError(str(error), hint=error.hint)
    return bytes(cloudpickle.dumps((text, None, where)))


def _without_cause(error: NosyncError, row: Any) -> NosyncError:
    """Returns a copy of an error without cause and traceback, with another row."""
    copy = error.bare()
    if isinstance(copy, StageError):
        copy.at(row)
    return copy


def unpack_error(payload: Any) -> NosyncError:
    """Deserialises an error, with its cause and the traceback of the task as text."""
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
    """Returns an error as text for Spark's messages, with its values and cause as text.

    Args:
        token: the random token of the run, which only tasks of that run know.
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
    """Returns the error that a task of a run wrote into a message of Spark; None without one.

    Spark quotes values in its messages, so the text may come from an untrusted writer. A text
    without the token of the run is ignored. A text with the token is parsed as JSON, and never
    unpickled.
    """
    if not token:
        return None
    match = re.search(rf"<nosync:{re.escape(token)}:([A-Za-z0-9+/=]+)>", text)
    if match is None:
        return None
    try:
        data = json.loads(base64.b64decode(match.group(1)))
    except ValueError:  # the message was truncated
        return None
    kinds = {kind.kind: kind for kind in _subclasses(NosyncError)}
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


def _subclasses(kind: type[NosyncError]) -> Iterator[type[NosyncError]]:
    """Yields a class of errors and all its subclasses."""
    yield kind
    for below in kind.__subclasses__():
        yield from _subclasses(below)


def _is_plain(row: Any) -> bool:
    """Returns True if JSON preserves the row exactly."""
    return isinstance(row, tuple) and all(
        value is None or type(value) in (bool, int, float, str) for value in row
    )


def translate_error(
    error: BaseException, sql: str | None = None, row: dict[str, Any] | None = None
) -> ExpressionError:
    """Converts an error of Spark to one line: the expression, Spark's error class and the row."""
    condition, message = spark_error_summary(error)
    known = _known_refusal(condition, sql)
    if known is not None:
        return known
    what = "expression" if sql is None else f"expression {sql!r}"
    where = f" on {_row_text(row)}" if row else ""
    head = f"[{condition}] " if condition else ""
    return ExpressionError(f"{what}: {head}{message}{where}")


def _known_refusal(condition: str, sql: str | None) -> ExpressionError | None:
    """Returns NoSync's own error, with a hint, for an expression that Spark refuses; else None."""
    if sql is None or not condition.startswith(_EXPLAINED):
        return None
    try:
        return refusal_without_spark(sql)
    except ExpressionError:  # sqlglot cannot parse it
        return None


_EXPLAINED = ("UNRESOLVED_ROUTINE", "INCONSISTENT_BEHAVIOR_CROSS_VERSION.DATETIME")


def spark_error_summary(error: BaseException) -> tuple[str, str]:
    """Returns Spark's error class (empty without one), and the first sentence of the message."""
    condition = ""
    if hasattr(error, "getCondition"):
        condition = error.getCondition() or ""
    elif hasattr(error, "getErrorClass"):
        condition = error.getErrorClass() or ""
    text = _PY4J_PREFIX.sub("", str(error).strip())
    lost = _STAGE_FAILURE.search(text)
    causes = [line for line in text.splitlines() if line.startswith("Caused by: ")]
    if not condition and (lost or causes):
        text = lost.group(1) if lost else causes[-1].split(": ", 2)[-1]
    lines = text.splitlines() or [type(error).__name__]
    line = lines[0]
    match = _CONDITION.match(line)
    if match:
        condition = condition or match.group(1)
        line = line[match.end() :]
    line = _SQLSTATE.sub("", line)
    sentence = re.split(r"(?<=[^.]\.)\s+(?=[A-Z])", line, maxsplit=1)[0].strip().rstrip(".")
    return condition, sentence


def _row_text(row: dict[str, Any]) -> str:
    text = ", ".join(f"{name}={value!r}" for name, value in row.items())
    return f"({text[:_ROW_CHARS_MAX]}{'...' if len(text) > _ROW_CHARS_MAX else ''})"


def query_error(error: Exception, stage: str, token: str | None = None) -> NosyncError:
    """Translates the error of a Spark query for a stage to an error of NoSync.

    Returns: the error that a task wrote; an ExpressionError for a condition that Spark names; or a
    StageError for any other failure.

    Args:
        token: the token of the run, if tasks may have written an error into the message.
    """
    text = str(error)
    own = error_from_text(text, token)
    if own is not None:
        return own
    condition, message = spark_error_summary(error)
    if condition == "PYTHON_EXCEPTION" or "from the Python worker" in text:
        raised = _PYTHON_ERROR.findall(text)
        what = raised[-1].strip() if raised else message
        return StageError(
            f"{titled(stage)}: a task on an executor failed: {what}",
            stage=stage,
            hint="see the Spark log for details; this epoch was not applied",
        )
    if condition and not condition.startswith(("INTERNAL_ERROR", "_LEGACY")):
        fragment = _fragment(error)
        where = f" in {fragment!r}" if fragment else ""
        return ExpressionError(f"{titled(stage)}: [{condition}] {message}{where}")
    return StageError(
        f"{titled(stage)}: Spark failed: {message}",
        hint="see the Spark log for details; this epoch was not applied",
        stage=stage,
    )


def _fragment(error: Exception) -> str:
    """Returns the expression to which Spark attributes an error; empty if it names none."""
    try:
        contexts = error.getQueryContext()  # type: ignore[attr-defined]
        return str(contexts[0].fragment()) if contexts else ""
    except Exception:
        return ""


def _is_logged(record: logging.LogRecord) -> bool:
    return not _quiet.depth


def _is_logged_by_client(record: logging.LogRecord) -> bool:
    return not _quiet.depth or record.module not in _CLIENT


@contextmanager
def without_query_logs() -> Iterator[None]:
    """In a `with` block, PySpark logs no errors of this thread, because NoSync reports them.

    PySpark writes every error that has an expression to standard error before a caller can catch
    it, as JSON with the whole stack of the JVM. Its client logs every interrupt with all frames.
    Errors of the user's own code are still logged.
    """
    try:
        from pyspark.logger import PySparkLogger
    except ImportError:
        yield
        return
    for name in _LOGGERS:
        PySparkLogger.getLogger(name).addFilter(_is_logged)  # adding it twice has no effect
    for logger in (None, *(f"py4j.{module}" for module in _CLIENT)):
        logging.getLogger(logger).addFilter(_is_logged_by_client)
    _quiet.enter()
    try:
        yield
    finally:
        _quiet.leave()
