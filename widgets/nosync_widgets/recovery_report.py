"""Draws a recovery report for a notebook: first the facts that need action, then the rest.

The HTML is static, because a saved notebook keeps it: escaped text, no script, no style sheet.
Facts that need action are in a frame, so they are not marked by colour alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nosync_widgets import formats

if TYPE_CHECKING:
    from nosync_nb import RecoveryReport

_WARN, _GOOD = "var(--jp-warn-color1, #b26a00)", "var(--jp-success-color1, #2e7d32)"
_ROW = "border:0;background:none;padding:1px 14px 1px 0;text-align:left;vertical-align:top"
_FIRST = ("running", "lost", "uncertain")
"""The facts at the top, in the frame."""

_WORDS = {"running": "this cell was running", "read": "restored"}
"""The labels of facts whose label in the text form is different."""


def report_html(report: RecoveryReport) -> str:
    """Draws a report as HTML; the colour of its mark shows if anything needs attention."""
    stale = "stale" in report.stages.values()
    bad = bool(report.lost or report.uncertain or report.notes or report.running) or stale
    facts = report.facts()
    framed = "".join(_framed(what, text) for what, text in facts if what in _FIRST)
    rows, last = "", ""
    for what, text in facts:
        if what not in _FIRST:
            rows += _row("" if what == last else what, text)
            last = what
    return (
        f'<div class="nosync-recovery" style="line-height:1.45"><p style="margin:0">'
        f'<span style="color:{_WARN if bad else _GOOD}">&#9679;</span>'
        f" <b>NoSync</b> {formats.html(report.title)}</p>{framed}"
        f'<table style="border:0;margin:2px 0 0 14px">{rows}</table></div>'
    )


def _framed(what: str, text: str) -> str:
    """Draws a fact that needs action, in a frame."""
    style = f"border-left:3px solid {_WARN};padding:2px 10px;margin:4px 0 4px 14px"
    head, dash, rest = text.partition(" — ")
    shown = formats.html(head if dash else text)
    if dash:
        shown = f"{_code(head)}<div>{formats.html(rest)}</div>"
    word = formats.html(_WORDS.get(what, what))
    return f'<div style="{style}"><span style="opacity:.7">{word}:</span> {shown}</div>'


def _row(what: str, text: str) -> str:
    head, dash, rest = text.partition(" — ")
    shown = formats.html(text)
    if dash:
        shown = f"<b>{formats.html(head)}</b> &ensp;{_code(rest)}"
    word = formats.html(_WORDS.get(what, what))
    return (
        f'<tr style="background:none"><td style="{_ROW};opacity:.7;white-space:nowrap">{word}</td>'
        f'<td style="{_ROW}">{shown}</td></tr>'
    )


def _code(text: str) -> str:
    style = "font-family:var(--jp-code-font-family, monospace);font-size:.92em"
    return f'<span style="{style}">{formats.html(text)}</span>'


def report_bundle(report: RecoveryReport) -> dict[str, str]:
    """Returns the display of a recovery report as a value of a cell."""
    return {"text/plain": str(report), "text/html": report_html(report)}
