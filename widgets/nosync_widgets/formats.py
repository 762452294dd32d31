"""Formats values for display: counts, durations, sizes, values of rows.

The functions are pure, and return short strings. Untrusted text is escaped with `visible`,
`one_line` or `html` in any output. These call the engine (errors.py), which is loaded at their
first use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, time
from typing import Any

LINE = (
    "opacity:.75;padding:0 var(--jp-code-padding,0);font-size:var(--jp-code-font-size,inherit);"
    "line-height:var(--jp-code-line-height,inherit)"
)
"""The style of a message line: like printed output in JupyterLab, but fainter."""

_MARK = (
    "background:#fff3c4;color:#4d3800;border-left:4px solid #e0a800;padding:2px 8px;margin:2px 0;"
    "width:fit-content;max-width:100%;box-sizing:border-box;white-space:pre-wrap;"
    "overflow-wrap:anywhere"
)
_LONGEST = 120
_MIDNIGHT = time()
_NUMERIC = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


def is_numeric(type_name: str) -> bool:
    """Returns True if a Spark type is numeric, so that its values are set flush right."""
    return type_name.split("(")[0] in _NUMERIC


def folded(title: str, rows: str) -> str:
    """Returns the folded-up HTML above a view, which stays visible without a kernel.

    Args:
        title: the title, as plain text.
        rows: the content, as HTML.
    """
    advice = "run this cell again if no view is shown"
    return (
        f'<details><summary>{html(title)} <span style="opacity:.6">· {advice}</span></summary>'
        f"{rows}</details>"
    )


def mark(text: str) -> str:
    """Formats a warning as HTML: yellow, and readable on light and on dark pages."""
    return f'<div style="{_MARK}">{html(text)}</div>'


def replica_state(state: str) -> str:
    """Returns the state of a replica as users read it: `up to date`, `catching up`, `failing`."""
    return {"level": "up to date", "behind": "catching up"}.get(state, state)


def count(number: int, noun: str) -> str:
    """Formats a number with its noun: `1 row`, `336,776 rows`."""
    return f"{number:,} {noun}" if abs(number) == 1 else f"{number:,} {noun}s"


def seconds(duration: float) -> str:
    """Formats a duration with at most three figures: `0.31 ms`, `42.0 ms`, `1.3 s`, `2 min 5 s`."""
    if duration < 0.001:
        return f"{duration * 1e3:.2f} ms"
    if duration < 0.1:
        return f"{duration * 1e3:.1f} ms"
    if duration < 1:
        return f"{duration * 1e3:.0f} ms"
    if duration < 60:
        return f"{duration:.1f} s"
    return f"{int(duration // 60)} min {int(duration % 60)} s"


def size(size_bytes: int) -> str:
    """Formats a size in binary units: `812 B`, `1.4 MiB`."""
    amount = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def moment(at: datetime | None) -> str:
    """Formats a time with its zone, in local time; returns an empty text for None."""
    return "" if at is None else at.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def value(item: Any) -> str | None:
    """Formats one value of a row in at most 120 characters; null stays None."""
    if item is None:
        return None
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, float):
        return _real(item)
    if isinstance(item, bytes | bytearray | memoryview):
        return _short("0x" + bytes(item).hex())
    return _short(visible(str(item)))


def like(rows: Iterable[Sequence[Any]]) -> Callable[[Sequence[Any]], list[str | None]]:
    """Returns a formatter for such rows; if all times of a column are midnight, it shows dates."""
    times: dict[int, bool] = {}
    for row in rows:
        for place, item in enumerate(row):
            if isinstance(item, datetime):
                times[place] = times.get(place, False) or not _midnight(item)

    def row_cells(row: Sequence[Any]) -> list[str | None]:
        return [
            str(item.date()) if times.get(i) is False and _midnight(item) else value(item)
            for i, item in enumerate(row)
        ]

    return row_cells


def _midnight(item: Any) -> bool:
    return isinstance(item, datetime) and item.time() == _MIDNIGHT and not item.utcoffset()


def visible(text: str) -> str:
    """Escapes invisible characters, such as escape codes and marks of reading direction."""
    from nosync_nb import errors

    return errors.visible(text)


def one_line(text: str) -> str:
    """Escapes invisible characters and line breaks, so that the result is one line."""
    from nosync_nb import errors

    return errors.one_line(text)


def html(text: str) -> str:
    """Escapes invisible characters, and the special characters of HTML."""
    from nosync_nb import errors

    return errors.html(text)


def _real(item: float) -> str:
    if math.isnan(item):
        return "NaN"
    text = repr(item)
    if len(text) <= 9 or math.isinf(item):
        return text
    if 1e-3 <= abs(item) < 1e12:
        return f"{item:.4f}".rstrip("0")
    return f"{item:.6g}"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def listing(names: Iterable[str], *, most: int = 12) -> str:
    """Joins at most `most` names with commas, and adds the number of the other names."""
    every: Sequence[str] = list(names)
    shown = ", ".join(every[:most])
    return shown if len(every) <= most else f"{shown} and {len(every) - most} more"
