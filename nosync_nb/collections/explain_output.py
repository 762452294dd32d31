"""Formats a plan for people: as text in a terminal and as HTML in a notebook.

A plan is a value that shows the state at the time of the call. Names and expressions are escaped:
they are never interpreted as HTML or as control sequences of a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from nosync_nb.collections.definition import Definition
from nosync_nb.errors import html, one_line
from nosync_nb.expressions import retained_settings

OPEN_MAX = 60
"""A notebook shows a section of at most this number of lines opened, and a longer one closed."""

NAMES_MAX = 12
"""The maximum number of names in a list; a longer list ends with the number of omitted names."""

_LINES = (
    "font-family:monospace;line-height:1.4;padding:2px 0 4px 1.2em;"
    "white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"
)
_HANGING = "padding-left:{0}ch;text-indent:-{0}ch"
"""Indents the continuation of a long line to the right of the lines of the tree."""


class PlanLine(NamedTuple):
    """A line of a plan: its text, a note, and the part of the tree that is drawn before it."""

    text: str
    note: str = ""
    rail: str = ""


class PlanSection(NamedTuple):
    """A section of a plan: a title, which may be empty, and the lines below it."""

    title: str
    lines: Sequence[PlanLine]


class ExplainOutput(str):
    """A plan as a text of several lines, whose `repr` is the text itself.

    Args:
        head: the title.
        sections: the sections below the title.
    """

    __slots__ = ("_head", "_sections")

    _head: str
    _sections: Sequence[PlanSection]

    def __new__(cls, head: str, sections: Sequence[PlanSection]) -> ExplainOutput:
        lines = [one_line(head)]
        for each in sections:
            lines += [""] if each.title else []
            lines += [one_line(each.title)] if each.title else []
            lines += [_line_text(line) for line in each.lines]
        made = super().__new__(cls, "\n".join(lines))
        made._head, made._sections = one_line(head), tuple(each for each in sections if each.lines)
        return made

    def __reduce__(self) -> tuple[type[ExplainOutput], tuple[str, Sequence[PlanSection]]]:
        return ExplainOutput, (self._head, self._sections)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """The plan as HTML; each section opens and closes by mouse or keyboard."""
        parts = [f"<div><strong>{html(self._head)}</strong></div>"]
        for title, lines in self._sections:
            body = "".join(_line_html(line) for line in lines)
            state = " open" if len(lines) <= OPEN_MAX else ""
            shown = html(one_line(title)) or "plan"
            parts.append(
                f'<details{state}><summary style="cursor:pointer">{shown}</summary>'
                f'<div style="{_LINES}">{body}</div></details>'
            )
        return f'<div class="nosync-plan">{"".join(parts)}</div>'


def _line_text(line: PlanLine) -> str:
    note = f"  · {one_line(line.note)}" if line.note else ""
    return f"  {line.rail}{one_line(line.text)}{note}"


def _line_html(line: PlanLine) -> str:
    note = html(one_line(line.note))
    dim = f'  <span style="opacity:.7">· {note}</span>' if note else ""
    rail = f'<span style="opacity:.5">{html(line.rail)}</span>' if line.rail else ""
    hanging = _HANGING.format(len(line.rail) + 4)
    return f'<div style="{hanging}">{rail}{html(one_line(line.text))}{dim}</div>'


def operator_label(part: Definition) -> str:
    """Returns the description of an operator and its settings, for people only.

    It has several lines if an expression of the user has. An operator without an entry in
    `_PHRASES` is described by its keyword and its arguments.
    """
    said = _PHRASES.get(part.op, _plain)(part)
    given = retained_settings(part.params)
    settings = [f"time_zone={given.time_zone!r}"] if given.time_zone else []
    settings += ["ansi=False"] if given.ansi is False else []
    return f"{said} ({', '.join(settings)})" if settings else said


def listed_names(names: Sequence[str]) -> str:
    """Returns a list of names as text; shortened if there are more than `NAMES_MAX`."""
    if len(names) <= NAMES_MAX:
        return ", ".join(names)
    return f"{', '.join(names[: NAMES_MAX - 1])} and {len(names) - NAMES_MAX + 1:,} more"


def _names(part: Definition, places: Sequence[int], side: int = 0) -> list[str]:
    names = part.inputs[side].schema.names
    return [names[place] for place in places]


def _functions(part: Definition) -> str:
    return ", ".join(getattr(f, "__name__", type(f).__name__) for f in part.functions)


def _keys_phrase(part: Definition) -> str:
    names = _names(part, part.params["keys"])
    return f" by {listed_names(names)}" if names else ""


def _ordered(part: Definition) -> str:
    terms = []
    for place, descending, nulls_first in part.params["by"]:
        name = _names(part, [place])[0] + (" desc" if descending else "")
        usual = nulls_first is not descending  # Spark's default: nulls first, but last with desc
        terms.append(name if usual else f"{name} nulls {'first' if nulls_first else 'last'}")
    return ", ".join(terms)


def _filter(part: Definition) -> str:
    return f"filter {_functions(part) or part.params['predicate']}"


def _select(part: Definition) -> str:
    shown = []
    for name, output in zip(part.schema.names, part.params["outputs"], strict=True):
        text = output if isinstance(output, str) else _names(part, [output])[0]
        shown.append(text if text == name or isinstance(output, str) else f"{text} as {name}")
    return f"select {listed_names(shown)}"


def _explode(part: Definition) -> str:
    place, count = part.params["place"], len(part.schema) - len(part.inputs[0].schema) + 1
    outputs = part.inputs[0].params.get("outputs", ())
    given = outputs[place] if len(outputs) > place else None
    what = given if isinstance(given, str) else _names(part, [place])[0]
    kept = ", or null if it is empty" if part.params["outer"] else ""
    return f"each of {what} as {listed_names(part.schema.names[place : place + count])}{kept}"


def _join(part: Definition) -> str:
    left, right = _names(part, part.params["left"]), _names(part, part.params["right"], 1)
    pairs = [a if a == b else f"{a} = {b}" for a, b in zip(left, right, strict=True)]
    gives = listed_names(part.schema.names) or "no columns"
    return f"join on {' and '.join(pairs)}: {gives}" if pairs else f"cross join: {gives}"


def _range_join(part: Definition) -> str:
    p = part.params
    points, intervals = part.inputs[0].schema.names, part.inputs[1].schema.names
    value = points[p["at"]]
    tests = [f"{points[a]} = {intervals[b]}" for a, b in zip(p["left"], p["right"], strict=True)]
    for name, sign, strict in zip(("low", "high"), (">", "<"), p["strict"], strict=True):
        if p[name] is not None:
            tests.append(f"{value} {sign}{'' if strict else '='} {intervals[p[name]]}")
    return f"join in order on {' and '.join(tests)}: {listed_names(part.schema.names)}"


def _intervals(part: Definition) -> str:
    low, high = _names(part, [part.params["low"], part.params["high"]])
    return f"intervals from {low} to {high}"


def _joins(part: Definition) -> str:
    schemas = dict(zip(part.params["inputs"], [each.schema for each in part.inputs], strict=True))
    sets = [
        " = ".join(dict.fromkeys(schemas[number].names[place] for number, place in places))
        for places in part.params["same"]
    ]
    tests = [each["predicate"] for each in part.params["tests"]]
    asked = f" where {' and '.join(tests)}" if tests else ""
    gives = listed_names(part.schema.names) or "no columns"
    return (
        f"join of {len(schemas)}, without intermediate rows, on {' and '.join(sets)}{asked}:"
        f" {gives}"
    )


def _aggregate(part: Definition) -> str:
    calls = [f"{name} = {sql}" for name, sql in part.params["named"].items()]
    return f"aggregate{_keys_phrase(part) or ' all rows'}: {', '.join(calls)}"


def _top(part: Definition) -> str:
    k, offset = part.params["k"], part.params["offset"]
    what = "rank rows" if k is None else f"first {k:,}" if k != 1 else "first row"
    after = f" after {offset:,}" if offset else ""
    after += " with ties" if part.params.get("ties") else ""
    order = _ordered(part)
    return f"{what}{after}{_keys_phrase(part)}{', ordered by ' + order if order else ''}"


def _window(part: Definition) -> str:
    params, width = part.params, part.params["width"]
    calls = [
        f"{name} = {_window_call(part, call)}"
        for name, call in zip(part.schema.names[width:], params["calls"], strict=True)
    ]
    order = _ordered(part)
    by = f", ordered by {order}" if order else ""
    return f"window{_keys_phrase(part)}{by}: {', '.join(calls)}"


def _window_call(part: Definition, call: Mapping[str, Any]) -> str:
    """Returns a window function with its frame, as in SQL."""
    text = call.get("sql")
    if text is None:
        given = _names(part, [call["argument"]]) if "argument" in call else []
        given += [str(call["n"])] if call.get("n", 1) != 1 or call["function"] == "ntile" else []
        given += _names(part, [call["default"]]) if "default" in call else []
        text = f"{call['function']}({', '.join(given)})"
    if call.get("skips_nulls"):
        text += " ignore nulls"
    unit, low, high = call.get("frame", ("range", None, 0))
    if (unit, low, high) == ("range", None, 0):
        return text
    return f"{text} over {unit} {_bound(low, 'preceding')} to {_bound(high, 'following')}"


def _bound(bound: int | str | None, unbounded: str) -> str:
    if bound is None:
        return f"unbounded {unbounded}"
    if bound == 0:
        return "current row"
    sign, distance = str(bound)[0], str(bound).lstrip("+-")
    return f"{distance} {'preceding' if sign == '-' else 'following'}"


def _asof(part: Definition) -> str:
    keys, at = _names(part, part.params["left"]), _names(part, [part.params["at"]])[0]
    within = part.params["tolerance"]
    by = f" by {listed_names(keys)}" if keys else ""
    return f"newest row at {at} or before{by}{'' if within is None else f', within {within:,}'}"


def _sessions(part: Definition) -> str:
    return f"sessions of {_names(part, [part.params['at']])[0]}{_keys_phrase(part)}"


def _loop(part: Definition) -> str:
    rounds = part.params["rounds"]
    return "repeat until nothing changes" if rounds is None else f"repeat {rounds:,} times"


def _plain(part: Definition) -> str:
    """Returns the keyword and the arguments of an operator without an entry in `_PHRASES`."""
    given = [f"{key}={value!r}" for key, value in part.params.items() if key != "settings"]
    said = ", ".join([name for name in (_functions(part),) if name] + given)
    return f"{_WORDS.get(part.op, part.op)} {said}".rstrip()


_WORDS = {
    "concat": "union",
    "distinct": "distinct rows",
    "consolidate": "counts of equal rows added",
    "except_all": "rows except those of",
    "negate": "negated",
    "pad": "with nulls",
    "subtract": "distinct rows except those of",
    "widen": "as wider types",
}

_PHRASES: dict[str, Callable[[Definition], str]] = {
    "aggregate": _aggregate,
    "asof": _asof,
    "constant": lambda part: (
        f"rows of {part.params['table']} at epoch {part.params['epoch']}, copied once:"
        f" {part.params['count']:,}"
    ),
    "explode": _explode,
    "filter": _filter,
    "iterate": _loop,
    "intervals": _intervals,
    "join": _join,
    "joins": _joins,
    "order": lambda part: f"order by {_ordered(part)}",
    "range_join": _range_join,
    "reduce": lambda part: f"reduce{_keys_phrase(part)} with {_functions(part)}",
    "ref": lambda part: part.name,
    "refuse": lambda _: "fails if there is a row",
    "select": _select,
    "sessions": _sessions,
    "top": _top,
    "unit": lambda _: "one row",
    "window": _window,
    "variable": lambda part: _variable(part.params),
}


def _variable(params: Any) -> str:
    return f"variable {params['index'] + 1} of the loop" if params["index"] else "the variable"
