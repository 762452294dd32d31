"""The magics `%dd` and `%%dd`, and the settings of `%config NoSync`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import traitlets
from IPython.core.error import UsageError
from IPython.core.magic import (
    Magics,
    line_cell_magic,
    magics_class,
    no_var_expand,
    output_can_be_silenced,
)
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from nosync.cells.display import display_line_value
from nosync.config_limits import config_budget
from nosync.define import define_cell
from nosync.notebook import Notebook

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


@magics_class
class NoSync(Magics):
    """Settings of NoSync."""

    # The class name is the section of `%config`.
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
        " s3://bucket/prefix. Default: that of the opening.",
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

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self.notebook = Notebook(shell, self)
        self.observe(
            self._reconfigured,
            names=["replay_rows", "backlog_bytes", "budget", "spark_conf", "spark", "bulk"],
        )

    @traitlets.validate("budget")
    def _bounded(self, proposal: Any) -> str:
        """Checks that a budget is valid for the open log before it is set."""
        from nosync_nb import NosyncError

        budget, notebook = str(proposal["value"]), getattr(self, "notebook", None)
        try:
            config_budget(budget, None if notebook is None else notebook.opened)
        except NosyncError as error:
            raise traitlets.TraitError(f"{error}; {error.hint}") from None
        return budget

    @traitlets.validate("bulk")
    def _placed(self, proposal: Any) -> str:
        """Checks that a URL is valid before it is set."""
        from nosync_nb import NosyncError
        from nosync_nb.frontend import check_staging_url

        try:
            return check_staging_url(proposal["value"]) if proposal["value"] else ""
        except NosyncError as error:
            raise traitlets.TraitError(f"{error}; {error.hint}") from None

    def _reconfigured(self, _change: Any) -> None:
        self.notebook.configure()

    @no_var_expand
    @magic_arguments()
    @argument(
        "--on",
        choices=["auto", "local", "spark"],
        default="auto",
        help="where the stages run; auto: by estimated cost, see explain()",
    )
    @argument(
        "--persist",
        choices=["memory", "disk", "replicas"],
        default=None,
        help="durability level of these stages; memory: nothing is written, and they are recomputed"
        " after a restart; default: unchanged, for new stages the safest that is possible",
    )
    @argument(
        "--replay",
        type=int,
        metavar="EPOCH",
        default=None,
        help="compute the edited stage from this epoch on",
    )
    @argument(
        "--nondeterministic",
        action="store_true",
        help="functions may return another result next time: memoise their results",
    )
    @argument(
        "--again", action="store_true", help="recompute from scratch although nothing was edited"
    )
    @output_can_be_silenced
    @line_cell_magic
    def dd(self, line: str, cell: str | None = None) -> Any:
        """Define stages in a cell; `%dd help` lists what the line form does.

        Each top-level name that the cell binds to a collection becomes a stage with its last
        value. Names that begin with an underscore, containers and locals of functions do not.

        Examples::

            %%dd
            delays = flights.group_by("carrier").agg(avg_delay="avg(dep_delay)")
            worst = delays.filter("avg_delay > 15")

            %dd status
            %dd travel worst
        """
        __tracebackhide__ = True
        if cell is None:
            from nosync.commands.dispatch import run

            return display_line_value(self.notebook.shell, run(self.notebook, line))
        try:
            arguments = vars(parse_argstring(self.dd, line))
        except UsageError as error:
            raise UsageError(f"%%dd: {error}; `%%dd?` lists the options") from None
        if not cell.strip():
            raise UsageError("%%dd: the cell is empty; write definitions below the first line")
        options = {name: value for name, value in arguments.items() if value is not None}
        return define_cell(self.notebook, line, cell, options)
