"""Replaces the parameters of statements, `:name` and `?`, by literals of their values.

A parameter is replaced in the text. So a query with a value has the same meaning, and the same
fingerprint, as the query with the literal, and an error shows the literal.

A colon directly behind a name, a bracket or a string is no parameter: it is a path into a variant.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from sqlglot import TokenType

from nosync_nb.collections.sql.grammar import TextSpan, failure, sql_tokens
from nosync_nb.collections.sql.resolver.trees import text_literal
from nosync_nb.errors import SchemaError

Arguments = Mapping[str, Any] | Sequence[Any]

_OPERANDS = (
    TokenType.VAR,
    TokenType.IDENTIFIER,
    TokenType.STRING,
    TokenType.R_PAREN,
    TokenType.R_BRACKET,
)
_INT_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1
_DEEPEST = 32


class _Parameter(NamedTuple):
    """A parameter in a text; `name` is None for a question mark."""

    span: TextSpan
    name: str | None


def bind_parameters(text: str, args: Arguments | None) -> str:
    """Returns statements with the values of their parameters.

    Args:
        text: the statements.
        args: the values, by name for `:name`, or in order for `?`; None if there are none.

    Raises:
        SqlError: a parameter has no value, or a value has no literal in SQL.

    Cost: in proportion to the text.
    """
    if ":" not in text and "?" not in text:
        return text
    parameters = _parameters(text)
    if not parameters:
        return text
    values = iter(args) if args is not None and not isinstance(args, Mapping) else None
    pieces, at = [], 0
    for each in parameters:
        literal = _literal_of(text, each, args, values)
        pieces += [text[at : each.span.start], literal]
        at = each.span.stop
    return "".join([*pieces, text[at:]])


def _parameters(text: str) -> list[_Parameter]:
    """Returns the parameters of a text in their order."""
    tokens = sql_tokens(text)
    found = []
    for i, token in enumerate(tokens):
        if token.token_type is TokenType.PLACEHOLDER:
            found.append(_Parameter(TextSpan(token.start, token.end + 1), None))
        if token.token_type is not TokenType.COLON or i + 1 == len(tokens):
            continue
        before, name = tokens[i - 1] if i else None, tokens[i + 1]
        is_path = (
            before is not None and before.token_type in _OPERANDS and before.end + 1 == token.start
        )
        written = text[name.start : name.end + 1]
        if not is_path and name.start == token.end + 1 and written.isidentifier():
            found.append(_Parameter(TextSpan(token.start, name.end + 1), written))
    return found


def _literal_of(
    text: str, parameter: _Parameter, args: Arguments | None, values: Iterable[Any] | None
) -> str:
    """Returns the literal of a parameter's value."""
    name = parameter.name
    shown = "?" if name is None else f":{name}"
    missing = failure(
        text,
        parameter.span,
        f"[UNBOUND_SQL_PARAMETER] the parameter {shown} has no value",
        f"define the variable {name}, or pass args={{'{name}': value}}"
        if name is not None
        else "pass one value for each question mark: args=[value, ...]",
    )
    if name is None:
        value = next(iter(values), _MISSING) if values is not None else _MISSING
    else:
        value = args.get(name, _MISSING) if isinstance(args, Mapping) else _MISSING
    if value is _MISSING:
        raise missing
    try:
        return literal(value)
    except SchemaError as error:
        what = f"[INVALID_SQL_ARG] the value of {shown} {error}"
        raise failure(text, parameter.span, what, error.hint or "") from None


_MISSING: Any = object()


def literal(value: Any) -> str:
    """Returns a value of Python as an expression of Spark SQL.

    Raises:
        SchemaError: the value has no expression.

    Examples:
        >>> from datetime import date
        >>> print(literal([1, None]), literal(date(2026, 1, 31)))
        array(1, NULL) DATE'2026-01-31'
    """
    return _literal(value, 0)


def _literal(value: Any, depth: int) -> str:
    if depth > _DEEPEST:
        raise SchemaError("is nested too deeply", hint="pass a value that is nested less")
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        value = value.tolist()  # also of scalars
    if value is None or type(value).__name__ == "NAType":  # that of pandas
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return _signed(_integer(int(value)))
    if isinstance(value, float):
        return _signed(f"{value!r}D") if math.isfinite(value) else f"double('{value}')"
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise SchemaError(f"is {value}", hint="pass a finite decimal, or a float")
        return _signed(f"{value:f}BD")
    if isinstance(value, str):
        return text_literal(value)
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, datetime):
        if value != value:  # NaT
            return "NULL"
        kind = "TIMESTAMP_NTZ" if value.tzinfo is None else "TIMESTAMP"
        return f"{kind}'{value.isoformat(' ')}'"
    if isinstance(value, date):
        return f"DATE'{value.isoformat()}'"
    if isinstance(value, timedelta):
        micros = value // timedelta(microseconds=1)
        sign, micros = "-" if micros < 0 else "", abs(micros)
        seconds, micros = divmod(micros, 10**6)
        return f"INTERVAL '{sign}{seconds}.{micros:06}' SECOND"
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        fields = value._asdict().items()
        each = [f"{text_literal(k)}, {_literal(v, depth + 1)}" for k, v in fields]
        return f"named_struct({', '.join(each)})"
    if isinstance(value, Mapping):
        pairs = [f"{_literal(k, depth + 1)}, {_literal(v, depth + 1)}" for k, v in value.items()]
        return f"map({', '.join(pairs)})"
    if isinstance(value, list | tuple):
        return f"array({', '.join(_literal(each, depth + 1) for each in value)})"
    raise SchemaError(
        f"is of type {type(value).__name__}, which has no literal in SQL",
        hint="pass a number, a text, a date, a time, bytes, or a list or dict of them",
    )


def _signed(number: str) -> str:
    """Returns a number in parentheses if it is negative, because `a -:x` would be a comment."""
    return f"({number})" if number.startswith("-") else number


def _integer(value: int) -> str:
    if abs(value) <= _INT_MAX:
        return str(value)
    if abs(value) <= _LONG_MAX:
        return f"{value}L"
    if len(str(abs(value))) <= 38:
        return f"{value}BD"
    raise SchemaError("has more than 38 digits", hint="pass a float or a text")
