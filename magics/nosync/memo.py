"""What the notebook itself must remember across kernels, beside the log: `notebook.json`.

Names of variables and the cells that bound them, other names of stages, and how often recovery has
ended the kernel. It is not part of the log: without it nothing is lost but words of the report.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nosync.place import MEMO

_MOST_NAMES = 200


@dataclass
class Memo:
    """The file's content.

    attempts: recoveries begun and not finished; two mean safe mode.
    names: plain variables -> the cell that bound them.
    aliases: other names of stages and inputs -> their names.
    """

    attempts: int = 0
    names: dict[str, str] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Memo:
        """Reads the file; a missing or damaged one is an empty memo."""
        with suppress(OSError, ValueError, TypeError):
            known = json.loads((folder / MEMO).read_text("utf-8"))
            return cls(int(known["attempts"]), dict(known["names"]), dict(known["aliases"]))
        return cls()

    def write(self, folder: Path) -> None:
        """Replaces the file; whole or not at all. A folder that refuses is left alone."""
        self.names = dict(list(self.names.items())[-_MOST_NAMES:])
        draft = folder / f"{MEMO}.{os.getpid()}"
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps(asdict(self)), "utf-8")
            draft.replace(folder / MEMO)
