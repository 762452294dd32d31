"""Declares the settings of `%config NoSync`, with their defaults.

The modules of the notebook read the settings. `magic` checks a new value before it is set.
"""

from __future__ import annotations

import traitlets
from IPython.core.magic import Magics


class Settings(Magics):
    """The settings of NoSync in a notebook."""

    autocommit = traitlets.Bool(
        True, help="Commit a cell's changes at its end. Default: True."
    ).tag(config=True)
    replay_rows = traitlets.Int(
        1_000_000, help="Replay an edited stage over the past up to this many rows."
    ).tag(config=True)
    backlog_bytes = traitlets.Int(
        256 << 20,
        allow_none=True,
        help="Above this replication backlog, stages that can be recomputed are sent last.",
    ).tag(config=True)
    budget = traitlets.Unicode(
        "",
        help="The disk budget of the log, as `%dd retain --budget` takes it, and of logs that are"
        " opened later. Default: each log keeps its own.",
    ).tag(config=True)
    spark_conf = traitlets.Dict(
        value_trait=traitlets.Unicode(), help="Settings of a Spark session that NoSync starts."
    ).tag(config=True)
    spark = traitlets.Enum(
        ["auto", "eager", "off"],
        "auto",
        help="When to use Spark: auto: when it is faster; eager: it starts at once; off: never, and"
        " an operation that needs it is an error.",
    ).tag(config=True)
    bulk = traitlets.Unicode(
        "",
        help="Staging area for executors that cannot see the log's folder: file:///mnt/shared,"
        " s3://bucket/prefix. Default: the log's own setting.",
    ).tag(config=True)
    progress = traitlets.Enum(
        ["on", "off"], "on", help="Show a line per commit and the progress of long work."
    ).tag(config=True)
    short_errors = traitlets.Bool(
        True,
        help="Show errors of NoSync without frames, yours without NoSync's frames; %tb shows all.",
    ).tag(config=True)
    show = traitlets.Enum(
        ["figures", "rows"],
        "figures",
        help="What a %%dd cell shows of each stage: one line of figures, or also its rows.",
    ).tag(config=True)
    limit = traitlets.Int(
        20, min=1, help="The number of rows shown of a collection. Default: 20."
    ).tag(config=True)
