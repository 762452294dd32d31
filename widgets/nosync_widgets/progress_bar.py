"""Shows progress as a bar in the output of a cell.

It is HTML that is updated under one display id, not a widget: a saved notebook keeps an empty
output of it, instead of a widget without its model.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import NamedTuple

from nosync_widgets import formats


class ProgressState(NamedTuple):
    """The current work: a text, done and total (0 of 0: unknown), and the URL of the Spark UI."""

    text: str
    done: int = 0
    total: int = 0
    url: str | None = None


class ProgressBar:
    """Shows progress in the cell that runs when it is first updated."""

    def __init__(self) -> None:
        from IPython.display import DisplayHandle

        self._handle = DisplayHandle()
        self._shown = False

    def update(self, seen: ProgressState) -> None:
        """Shows the current state."""
        self._display({"text/plain": formats.visible(seen.text), "text/html": html(seen)})

    def close(self) -> None:
        """Clears the output."""
        if self._shown:
            self._display({"text/plain": "", "text/html": ""})

    def _display(self, bundle: MutableMapping[str, str]) -> None:
        if self._shown:
            self._handle.update(bundle, raw=True)
        else:
            self._handle.display(bundle, raw=True)
            self._shown = True


def html(seen: ProgressState) -> str:
    """Formats progress as HTML: a bar, the text and a link to the Spark UI.

    Screen readers read the text.
    """
    if seen.total:
        bar = f'<progress max="{seen.total}" value="{min(seen.done, seen.total)}"></progress>'
    else:
        bar = "<progress></progress>"
    link = ""
    if seen.url and seen.url.startswith(("http://", "https://")):
        link = f' <a href="{formats.html(seen.url)}" target="_blank" rel="noopener">Spark UI</a>'
    label = f'<span role="status">{formats.html(seen.text)}</span>'
    return f'<div style="{formats.LINE}">{bar} {label}{link}</div>'
