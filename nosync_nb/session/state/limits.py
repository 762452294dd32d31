"""Limits that the user of a session sets, for placement, reads and definitions."""

from __future__ import annotations

from dataclasses import dataclass

COLLECT_ROWS = 10_000_000

BACKLOG_BYTES = 256 << 20


@dataclass
class UserLimits:
    """The limits of one session.

    They are read whenever a decision needs them. Any thread may set one at any time.

    Attributes:
        spark_rows: the most rows that run in this process; None decides by estimated cost.
        spark_off: True if no Spark session may be started; this process then runs what it can.
        collect_rows: the most rows that a read returns at once.
        replay_rows: an edited stage is replayed over the past if that takes at most this many rows.
            A stage in memory retains changes of about this many rows.
        backlog_bytes: the replication backlog above which stages that can be recomputed are
            replicated last, until it has halved (see `backlog_policy`); None disables this.
    """

    spark_rows: int | None = None
    spark_off: bool = False
    collect_rows: int = COLLECT_ROWS
    replay_rows: int = 1_000_000
    backlog_bytes: int | None = BACKLOG_BYTES
