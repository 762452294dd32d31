"""A real InteractiveShell in this process, and what its cells show."""

from __future__ import annotations

import atexit
import re
from dataclasses import dataclass
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Shown:
    """The result of a cell: its text in order of channels, its HTML, its error, its value."""

    text: str
    html: str
    error: BaseException | None
    value: Any

    def __contains__(self, part: str) -> bool:
        return part in self.text


class Notebook:
    """Runs cells; the namespace is `names`."""

    def __init__(self) -> None:
        InteractiveShell.clear_instance()
        config = Config()
        config.HistoryManager.enabled = False
        config.InteractiveShell.colors = "nocolor"
        self.shell = InteractiveShell.instance(config=config)
        self.names: dict[str, Any] = self.shell.user_ns

    def cell(self, source: str) -> Shown:
        with capture_output() as captured:
            result = self.shell.run_cell(source, store_history=True)
        outputs = [output.data for output in captured.outputs]
        plain = "\n".join(str(data.get("text/plain", "")) for data in outputs)
        text = _COLOUR.sub("", captured.stdout + captured.stderr + plain)
        html = "\n".join(str(data.get("text/html", "")) for data in outputs)
        return Shown(text, html, result.error_before_exec or result.error_in_exec, result.result)

    def ok(self, source: str) -> Shown:
        shown = self.cell(source)
        assert shown.error is None, shown.text
        return shown

    def fails(self, source: str) -> Shown:
        shown = self.cell(source)
        assert shown.error is not None, shown.text
        return shown

    def close(self) -> None:
        if "nosync" in self.shell.extension_manager.loaded:
            self.shell.run_line_magic("unload_ext", "nosync")
        self.shell.restore_sys_module_state()
        InteractiveShell.clear_instance()
        # Else the shell keeps its namespace, and collects garbage, at the end of the process.
        atexit.unregister(self.shell.atexit_operations)
