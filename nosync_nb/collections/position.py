"""Positions: places in the life of a stage, which no rewind and no redefinition makes ambiguous.

The number of an epoch alone is ambiguous: after a rewind another epoch has the same number, and
after a redefinition the same epoch of the stage has other rows. A position adds the log, the number
of rewinds before the epoch, and the definition that computed the rows. A consumer that stores the
position of the last changes it has applied can ask for the changes since then at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from nosync_nb.errors import TimeError

_FORM = "LOG/STAGE/DEFINITION/REWINDS/EPOCH"


class Position(NamedTuple):
    """An epoch of one definition of a stage, in one history of one log.

    Attributes:
        log: the id of the log, in hex; a branch is a log of its own.
        stage: the name of the stage or input.
        definition: the number of the log of changes that this definition of the stage writes.
        rewinds: the number of rewinds of the log before the epoch was committed or read.
        epoch: the number of the epoch.

    Examples:
        >>> position = late.position
        >>> nosync.Position.parse(str(position)) == position
        True
    """

    log: str
    stage: str
    definition: int
    rewinds: int
    epoch: int

    def __str__(self) -> str:
        return "/".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Position:
        """Returns the position that a text represents; `str(position)` is that text.

        Raises:
            TimeError: the text represents no position.

        Examples:
            >>> nosync.Position.parse("5f0c/late/3/0/17").epoch
            17
        """
        parts = text.split("/") if isinstance(text, str) else []
        numbers = parts[2:]
        if len(parts) != len(cls._fields) or not all(p.isdecimal() for p in numbers):
            raise TimeError(
                f"{text!r:.80} is not a position", hint=f"a position is written {_FORM}"
            )
        log, stage, *_ = parts
        return cls(log, stage, *map(int, numbers))


class Epoch(int):
    """The number of an epoch; it remembers which epoch it denotes.

    It is an integer in every respect, and results of arithmetic are plain integers. A copy that was
    pickled or written as text is a plain integer as well: store `stage.position` instead.

    Attributes:
        log: the id of the log, in hex.
        rewinds: the number of rewinds of the log before.
        definitions: the numbers of the logs of changes, by the name of the stage or input.
    """

    log: str
    rewinds: int
    definitions: Mapping[str, int]

    def __new__(cls, number: int, log: str, rewinds: int, definitions: Mapping[str, int]) -> Epoch:
        made = super().__new__(cls, number)
        made.log, made.rewinds, made.definitions = log, rewinds, definitions
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (int(self),)

    def position_of(self, stage: str) -> Position | None:
        """Returns the position of a stage at this epoch; None if it did not exist."""
        number = self.definitions.get(stage)
        if number is None:
            return None
        return Position(self.log, stage, number, self.rewinds, int(self))
