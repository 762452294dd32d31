r"""Text of strangers as people see it: the one way to a terminal, and the one to HTML.

Names, labels, values and errors may come out of a log, a file or a web page that somebody else
wrote. An escape code in them could repaint a terminal, a bidirectional mark let a reader see other
words than are there, a tag become part of a page. So what is shown passes `visible`, which spells
such characters (`\x1b`, `\u202e`), and on its way to HTML `html`, which escapes as well.

Both leave other text as it is. `visible` changes nothing the second time.
"""

from __future__ import annotations

import re
import warnings
from html import escape

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but tab and newline
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # order and nothing
    "\ud800-\udfff]"  # halves of pairs, which no encoding writes
)


def visible(text: str) -> str:
    r"""Returns a text in which everything that is there can be seen: `\x1b`, `\u202e`."""
    return text if text.isprintable() else _HIDDEN.sub(_spelled, text)


def one_line(text: str) -> str:
    """Returns a text of one line, with a sign where a line ended."""
    return visible(text.replace("\r\n", "\n").replace("\n", "⏎"))


def html(text: str) -> str:
    """Returns a text as HTML that shows it, in an element or in a quoted attribute."""
    return escape(visible(text))


def warn(text: str, *, stacklevel: int) -> None:
    """Warns of something; `stacklevel` as `warnings.warn` has it where this is called."""
    warnings.warn(visible(text), stacklevel=stacklevel + 1)


def _spelled(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
