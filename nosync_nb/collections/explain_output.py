"""Explained: a plan as people read it, text in a terminal and HTML in a notebook.

It is a value: what it tells was so when it was asked for. Everything in it is text: what stands in
names and expressions is shown, and never read as HTML or as an order to a terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nosync_nb.errors import html, one_line

OPEN_MAX = 60
"""A part of so many lines is open when a notebook shows it; a longer one opens on demand."""

_LINES = (
    "font-family:monospace;line-height:1.4;padding:2px 0 4px 1.2em;"
    "white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"
)
_HANGING = "padding-left:{0}ch;text-indent:-{0}ch"
"""A line that is too long goes on to the right of the tree's lines."""


class PlanLine(NamedTuple):
    """A line: what it says, behind lines of the tree that is drawn, and what is noted of it."""

    text: str
    note: str = ""
    rail: str = ""


class PlanSection(NamedTuple):
    """Lines below a title of their own."""

    title: str
    lines: Sequence[PlanLine]


class ExplainOutput(str):
    """A plan: a text of several lines, which shows itself as it reads.

    Args:
        head: what is explained.
        sections: what is told of it.
    """

    __slots__ = ("_head", "_sections")

    _head: str
    _sections: Sequence[PlanSection]

    def __new__(cls, head: str, sections: Sequence[PlanSection]) -> ExplainOutput:
        lines = [one_line(head)]
        for each in sections:
            lines += [""] if each.title else []
            lines += [one_line(each.title)] if each.title else []
            lines += [_flat(line) for line in each.lines]
        made = super().__new__(cls, "\n".join(lines))
        made._head, made._sections = one_line(head), tuple(each for each in sections if each.lines)
        return made

    def __reduce__(self) -> tuple[type[ExplainOutput], tuple[str, Sequence[PlanSection]]]:
        return ExplainOutput, (self._head, self._sections)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """The same as HTML: a part of it is an element that opens by mouse and keyboard."""
        parts = [f"<div><strong>{html(self._head)}</strong></div>"]
        for title, lines in self._sections:
            body = "".join(_marked(line) for line in lines)
            state = " open" if len(lines) <= OPEN_MAX else ""
            shown = html(one_line(title)) or "plan"
            parts.append(
                f'<details{state}><summary style="cursor:pointer">{shown}</summary>'
                f'<div style="{_LINES}">{body}</div></details>'
            )
        return f'<div class="nosync-plan">{"".join(parts)}</div>'


def _flat(line: PlanLine) -> str:
    note = f"  · {one_line(line.note)}" if line.note else ""
    return f"  {line.rail}{one_line(line.text)}{note}"


def _marked(line: PlanLine) -> str:
    note = html(one_line(line.note))
    dim = f'  <span style="opacity:.7">· {note}</span>' if note else ""
    rail = f'<span style="opacity:.5">{html(line.rail)}</span>' if line.rail else ""
    hanging = _HANGING.format(len(line.rail) + 4)
    return f'<div style="{hanging}">{rail}{html(one_line(line.text))}{dim}</div>'
