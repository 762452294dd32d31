"""Limits: what the user of a session allows, beside what each stage says of itself.

Short, and on its own: placement, reads and definitions ask for them, and nobody owns them but the
user.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

COLLECT_ROWS = 10_000_000

BACKLOG_BYTES = 256 << 20


@dataclass
class UserLimits:
    """Read anew whenever something is decided; each may be set at any time, by any thread.

    Attributes:
        spark_rows: the most rows that run in this process; None: by estimated cost.
        spark_off: whether no Spark session is started, and this process does what it can.
        collect_rows: the most rows that a read gives at once.
        replay_rows: an edited stage is replayed over the past if that is at most so many rows; a
            stage in memory keeps changes of about so many.
        backlog_bytes: if replicas lack more than this, stages that can be had again by running are
            owed to them last until it is half of that (see `scaling`); None: never.
    """

    spark_rows: int | None = None
    spark_off: bool = False
    collect_rows: int = COLLECT_ROWS
    replay_rows: int = 1_000_000
    backlog_bytes: int | None = BACKLOG_BYTES

    def set(self, name: str, value: Any) -> None:
        """Sets one of them."""
        setattr(self, name, value)
