"""What the notebook itself must remember across kernels, beside the log: `notebook.json`.

Names of variables and the cells that bound them, other names of stages, and how often recovery has
ended the kernel. It is not part of the log: without it nothing is lost but words of the report.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nosync.place import MEMO

_MOST_NAMES = 200
_MOST_BYTES = 1 << 20


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
        """Reads the file; a missing or damaged one, or what is no file, is an empty memo."""
        from nosync_nb.files.disk import Files

        with suppress(OSError, ValueError, TypeError, LookupError, RecursionError):
            known = json.loads(Files().read(str(folder / MEMO), most=_MOST_BYTES))
            names, aliases = (
                {str(name): str(told) for name, told in dict(known[each]).items()}
                for each in ("names", "aliases")
            )
            return cls(int(known["attempts"]), names, aliases)
        return cls()

    def write(self, folder: Path) -> None:
        """Replaces the file; whole or not at all. A folder that refuses is left alone.

        IMPORTANT: only after the folder was admitted (`place.prepare`).
        """
        from nosync_nb.files.disk import Files

        self.names = dict(list(self.names.items())[-_MOST_NAMES:])
        with suppress(OSError):
            text = json.dumps(asdict(self)).encode()
            Files().replace(str(folder / MEMO), text, sync=False)
