"""Aggregates of a whole group: their arguments, and the kernels that read the group's values.

These do not add up: a percentile, the most frequent value or a concatenation is computed from all
values of the group, each with its count. So they take constants beside their argument, and some an
order: `percentile_cont(0.5) within group (order by x desc)`. Where Spark leaves the result open, as
for `mode` of equally frequent values or `listagg` without an order, it is the first one in
canonical order, so that equal groups have equal results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from nosync_nb.errors import ExpressionError
from nosync_nb.expressions.syntax.order_by import OrderTerm, parse_order
from nosync_nb.rows.types import FLOATS, INTEGERS


class HolisticCall(NamedTuple):
    """A call as it was written.

    Attributes:
        texts: the arguments; `order` is the text of `within group (order by ...)`.
        distinct: True if equal values count once.
        type_of: the type of an argument; `constant`: its value, if it reads no column.
    """

    written: str
    texts: list[str]
    order: str | None
    distinct: bool
    type_of: Callable[[str], str]
    constant: Callable[[str], Any]


class HolisticForm(NamedTuple):
    """The kernel and the arguments of a call for the operator.

    Attributes:
        required: how many of the arguments, from the first, must not be null.
        parameters: constants for the kernel, beside the values.
    """

    kernel: str
    arguments: list[str]
    type: str
    parameters: tuple[Any, ...] = ()
    required: int = 1


class HolisticCallError(Exception):
    """An invalid call; the message describes the error, `hint` the correct form."""

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.hint = hint


def _number(call: HolisticCall, text: str) -> None:
    type_ = call.type_of(text)
    if type_ not in (*INTEGERS, *FLOATS) and not type_.startswith("decimal"):
        what = f"there is no {call.written} of a {type_} ('{text}')"
        raise HolisticCallError(what, f"cast it, as in {call.written}(cast({text} as double), ...)")


def _shares(call: HolisticCall, text: str) -> tuple[tuple[float, ...], bool]:
    """The shares of a percentile, and True if they are an array."""
    value = call.constant(text)
    several = isinstance(value, list)
    shares = value if several else [value]
    for share in shares:
        if not isinstance(share, float) or not 0.0 <= share <= 1.0:
            raise HolisticCallError(
                f"{call.written} of {text}, which is not a constant from 0 to 1",
                "write a number such as 0.95, or array(0.5, 0.95)",
            )
    return tuple(shares), several


def _single(call: HolisticCall) -> OrderTerm:
    """The one term of a required order."""
    terms = parse_order(call.order or "")
    if len(terms) != 1:
        raise HolisticCallError(
            f"{call.written} takes one value to order by", "order by one column"
        )
    return terms[0]


def _takes(call: HolisticCall, least: int, most: int) -> None:
    if not least <= len(call.texts) <= most:
        many = str(least) if least == most else f"{least} to {most}"
        raise HolisticCallError(f"{call.written} takes {many} arguments")


def _percentile(call: HolisticCall) -> HolisticForm:
    """`percentile(x, p [, frequency])`, interpolated."""
    _takes(call, 2, 3)
    text, share, *more = call.texts
    _number(call, text)
    shares, several = _shares(call, share)
    if more and call.type_of(more[0]) not in INTEGERS:
        raise HolisticCallError(f"a frequency must be an integer, not '{more[0]}'")
    type_ = "array<double>" if several else "double"
    return HolisticForm(
        "percentile", [text, *more], type_, ("between", False, shares, several), 1 + len(more)
    )


def _median(call: HolisticCall) -> HolisticForm:
    _takes(call, 1, 1)
    _number(call, call.texts[0])
    return HolisticForm("percentile", call.texts, "double", ("between", False, (0.5,), False))


def _within(way: str) -> Callable[[HolisticCall], HolisticForm]:
    """`percentile_cont(p) within group (order by x)`, and `percentile_disc`."""

    def form(call: HolisticCall) -> HolisticForm:
        _takes(call, 1, 1)
        if call.order is None:
            what = f"{call.written} needs an order"
            raise HolisticCallError(what, f"write {call.written}(0.5) within group (order by x)")
        term = _single(call)
        _number(call, term.sql)
        shares, several = _shares(call, call.texts[0])
        type_ = "array<double>" if several else "double"
        return HolisticForm(
            "percentile", [term.sql], type_, (way, term.descending, shares, several)
        )

    return form


def _approximate(call: HolisticCall) -> HolisticForm:
    """`approx_percentile(x, p [, accuracy])`: an existing value, exact here."""
    _takes(call, 2, 3)
    text = call.texts[0]
    type_ = call.type_of(text)
    if type_ not in ("date", "timestamp", "timestamp_ntz"):
        _number(call, text)
    shares, several = _shares(call, call.texts[1])
    result = f"array<{type_}>" if several else type_
    return HolisticForm("approx_percentile", [text], result, (shares, several))


def _mode(call: HolisticCall) -> HolisticForm:
    """`mode(x)`, `mode(x, true)`, `mode() within group (order by x)`."""
    descending = False
    if call.order is not None:
        _takes(call, 0, 0)
        term = _single(call)
        text, descending = term.sql, term.descending
    else:
        _takes(call, 1, 2)
        text = call.texts[0]
    type_ = call.type_of(text)
    if "map<" in type_:
        raise HolisticCallError(
            f"there is no mode of a {type_} ('{text}')", "use one of its values"
        )
    return HolisticForm("mode", [text], type_, (descending,))


def _text(call: HolisticCall) -> HolisticForm:
    """`listagg(x [, separator]) [within group (order by ...)]`."""
    _takes(call, 1, 2)
    text = call.texts[0]
    type_ = call.type_of(text)
    if type_ not in ("string", "binary"):
        argument = f"cast(({text}) as string)"
        call.type_of(argument)
    else:
        argument = text
    result = "binary" if type_ == "binary" else "string"
    separator = call.constant(call.texts[1]) if len(call.texts) > 1 else None
    separator = (b"" if result == "binary" else "") if separator is None else separator
    if not isinstance(separator, bytes if result == "binary" else str):
        raise HolisticCallError(f"the separator {separator!r} is not of type {result}")
    arguments, places = [argument], []
    terms = parse_order(call.order) if call.order is not None else []
    for term in terms:
        if term.descending == term.nulls_first:
            raise HolisticCallError(
                "an order inside listagg has nulls first, or last if descending"
            )
        if call.distinct and term.sql != text:
            raise HolisticCallError(
                "distinct values can only be ordered by themselves", f"order by {text}"
            )
        if term.sql not in arguments:
            arguments.append(term.sql)
        places.append((arguments.index(term.sql), term.descending))
    return HolisticForm("listagg", arguments, result, (separator, tuple(places)))


def _product(call: HolisticCall) -> HolisticForm:
    """`product(x)`: of doubles, rounded once."""
    _takes(call, 1, 1)
    _number(call, call.texts[0])
    return HolisticForm("product", call.texts, "double")


WHOLES: dict[str, Callable[[HolisticCall], HolisticForm]] = {
    "percentile": _percentile,
    "median": _median,
    "percentile_cont": _within("between"),
    "percentile_disc": _within("at"),
    "approx_percentile": _approximate,
    "percentile_approx": _approximate,
    "mode": _mode,
    "listagg": _text,
    "string_agg": _text,
    "product": _product,
}
ORDERED = frozenset(("percentile_cont", "percentile_disc", "mode", "listagg", "string_agg"))
"""Aggregates that allow `within group (order by ...)` after them."""


def holistic_form(
    call: HolisticCall, failed: Callable[[str, str | None], ExpressionError]
) -> HolisticForm:
    """Parses a call.

    Raises:
        ExpressionError: made by `failed` from the error and the correct form.
    """
    try:
        return WHOLES[call.written](call)
    except HolisticCallError as error:
        raise failed(str(error), error.hint) from None


def shown_call(texts: Sequence[str], order: str | None) -> str:
    """Returns arguments as they were written, for messages."""
    behind = f") within group (order by {order}" if order is not None else ""
    return f"{', '.join(texts)}{behind}"
