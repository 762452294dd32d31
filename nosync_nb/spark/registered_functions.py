"""Identifies the functions that users registered with Spark, and pins them for each stage.

An expression names a registered function, and the user may register another function under that
name later. So a definition records the identity of the function (`expressions/settings.py`). Each
identified function is registered again under a unique, pinned name, and the evaluation calls it by
that name.

A function can be identified only if Spark gives access to its code. For a Python function of a
classic session, the plan contains the pickled function. There is no access to a function of a
Connect server, to one written in Java or Scala, or to one whose pickle Spark broadcasts (above 1
MB). An expression that calls such a function is rejected.

Failure: 1. A stage is defined with `plus(v)`. 2. The user registers another function as `plus`. 3.
A row is inserted, and later an old row removed. The stage would have rows of both functions, and
the retraction would remove a row that was never inserted. Hence the pinned name.
"""

from __future__ import annotations

import hashlib
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from nosync_nb.collections.functions.fingerprint import function_fingerprint
from nosync_nb.errors import ExpressionError
from nosync_nb.expressions import Expression, Registered
from nosync_nb.expressions.syntax.allowlist import calls_only_built_in
from nosync_nb.expressions.syntax.parser import Word, tokens
from nosync_nb.spark.launch import Spark, bytes_of, is_connect
from nosync_nb.spark.spark_session import analysed

_UDF = "org.apache.spark.sql.catalyst.expressions.PythonUDF"
_DIGITS = 12


class _Python(NamedTuple):
    """A registered Python function: the arguments of `spark.udf.register`."""

    function: Callable[..., Any]
    type: Any
    eval_type: int
    deterministic: bool

    @property
    def identity(self) -> str | None:
        """Identifies the behaviour of the function; None if the function has no fingerprint."""
        print_ = function_fingerprint(self.function).fingerprint
        if print_ is None:
            return None
        text = repr((print_, self.type.json(), self.eval_type, self.deterministic))
        return hashlib.sha256(text.encode()).hexdigest()


class _Pins:
    """The registered functions of one Spark session that definitions have identified.

    Attributes:
        functions: the functions by identity.
        named: the functions that are registered under their pinned names.

    Threads: `lock` guards both attributes.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.functions: dict[Registered, _Python] = {}
        self.named: set[Registered] = set()


_pins: WeakKeyDictionary[Any, _Pins] = WeakKeyDictionary()
_built_in: WeakKeyDictionary[Any, frozenset[str]] = WeakKeyDictionary()


def identified(spark: Spark, sql: str, frame: Any) -> tuple[Registered, ...]:
    """Returns the registered functions that an expression calls, and caches them for `pinned`.

    Args:
        frame: a DataFrame that Spark has analysed, with the expression as its only column.

    Raises:
        ExpressionError: if Spark does not give access to the code of one of them.

    Cost: a few ms for the plan. If a name is not known as built in, also one query per session.
    """
    names = {word.text.lower() for word in called(sql)}
    python = {} if is_connect(spark) else dict(_python_functions(spark, frame))
    if not python and calls_only_built_in(names):
        return ()
    unknown = sorted(names - python.keys() - _spark_names(spark))
    if unknown:
        raise _hidden_function_error(sql, unknown[0], is_connect(spark))
    functions = {}
    for name, function in sorted(python.items()):
        identity = None if function is None else function.identity
        if function is None or identity is None:
            raise _hidden_function_error(sql, name, connect=False)
        functions[Registered(name, identity, function.deterministic)] = function
    pins = _pins.setdefault(spark, _Pins())
    with pins.lock:
        pins.functions.update(functions)
    return tuple(functions)


def pinned(spark: Spark, expressions: Iterable[Expression]) -> list[str]:
    """Returns the texts of expressions, with the pinned names of registered functions.

    Raises:
        ExpressionError: if the session does not have the function that was identified.
    """
    return [_pinned(spark, e) if e.settings.registered else e.sql for e in expressions]


def _pinned(spark: Spark, expression: Expression) -> str:
    names = {}
    for each in expression.settings.registered:
        _pin(spark, expression, each)
        names[each.name] = _pin_name(each)
    text, sql = "", expression.sql
    end = 0
    for word in called(sql):
        if word.text.lower() in names:
            text += sql[end : word.start] + names[word.text.lower()]
            end = word.end
    return text + sql[end:]


def _pin(spark: Spark, expression: Expression, wanted: Registered) -> None:
    """Registers an identified function under its pinned name, if that was not done before."""
    pins = _pins.setdefault(spark, _Pins())
    with pins.lock:
        if wanted in pins.named:
            return
        known = wanted in pins.functions
    if not known:  # because the stage was defined in another Spark session
        current = spark.createDataFrame([], expression.schema.ddl).selectExpr(expression.sql)
        if wanted not in identified(spark, expression.sql, current):
            raise ExpressionError(
                f"expression {expression.sql!r}: the Spark session has another function"
                f" {wanted.name!r} than the one that the stage was defined with",
                hint="run the cell of the stage, which defines a new version with this"
                f" {wanted.name!r}; or register the previous function again",
            )
    with pins.lock:
        if wanted not in pins.named:
            _register(spark, _pin_name(wanted), pins.functions[wanted])
            pins.named.add(wanted)


def _register(spark: Spark, name: str, function: _Python) -> None:
    from pyspark.sql.udf import UserDefinedFunction

    spark.udf.register(
        name,
        UserDefinedFunction(
            function.function,
            returnType=function.type,
            name=name,
            evalType=function.eval_type,
            deterministic=function.deterministic,
        ),
    )


def _pin_name(function: Registered) -> str:
    return f"nosync_{function.name}_{function.identity[:_DIGITS]}"


def called(sql: str) -> Iterator[Word]:
    """Yields the words of an expression that precede an opening parenthesis."""
    for word, following in pairwise(tokens(sql)):
        if following.text == "(" and word.kind in ("word", "name"):
            yield word


def _spark_names(spark: Spark) -> frozenset[str]:
    """Returns the lower-case names of Spark's functions and operators (`in`, `not`); cached."""
    names = _built_in.get(spark)
    if names is None:
        rows = spark.sql("SHOW SYSTEM FUNCTIONS").collect()
        names = _built_in[spark] = frozenset(row[0].lower() for row in rows)
    return names


def _python_functions(spark: Spark, frame: Any) -> Iterator[tuple[str, _Python | None]]:
    """Yields the Python functions in a plan by name; None if one cannot be unpickled."""
    for expression in _expressions(analysed(frame)):
        if expression.getClass().getName() == _UDF:
            yield str(expression.name()).lower(), _unpickled(spark, expression)


def _unpickled(spark: Spark, udf: Any) -> _Python | None:
    """Returns the function of a PythonUDF in a plan; None if it cannot be unpickled.

    Loading it is safe, because this process has pickled it.
    """
    try:
        function, type_ = pickle.loads(bytes_of(spark, udf.func().command()))
    except Exception:  # a broadcast has no pickle, and modules of the user may raise any error
        return None
    return _Python(function, type_, udf.evalType(), bool(udf.udfDeterministic()))


def _expressions(plan: Any) -> Iterator[Any]:
    """Yields all expressions of a logical plan, with their subexpressions."""
    plans = [plan]
    while plans:
        part = plans.pop()
        plans += _scala_items(part.children())
        waiting = _scala_items(part.expressions())
        while waiting:
            expression = waiting.pop()
            yield expression
            waiting += _scala_items(expression.children())


def _scala_items(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(sequence.size())]


def _hidden_function_error(sql: str, name: str, connect: bool) -> ExpressionError:
    """Returns the error for a function whose code Spark gives no access to."""
    where = "Spark Connect does not reveal" if connect else "Spark does not reveal"
    return ExpressionError(
        f"expression {sql!r}: {where} the function {name!r}, so NoSync could not detect that"
        " another function is registered under this name",
        hint=f"call a Python function for each row: map(lambda row: (*row, {name}(row.x)), 'DDL of"
        " the result'); write the body of a SQL function as an expression",
    )
