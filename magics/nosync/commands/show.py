"""Subcommands of `%dd` that only read: status, show, diff, explain, compare, trust."""

from __future__ import annotations

from argparse import Namespace
from bisect import bisect_left
from contextlib import ExitStack
from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from nosync.commands import Subcommand, epoch_of, limit, moment
from nosync_widgets import formats
from nosync_widgets.comparison import comparison_table
from nosync_widgets.tables import WIDEST, Table, changed_rows, collection_table

MAIN = "main"
"""The name of the main log in the arguments of `%dd compare`: `main/delays`."""

if TYPE_CHECKING:
    from nosync.notebook import Notebook
    from nosync_nb import Collection, Session
    from nosync_nb.frontend import FailureName


def _status(notebook: Notebook, _arguments: Namespace) -> Table:
    session = notebook.session()
    frontiers, info = session.frontiers, session.info
    levels_shown = ["epoch", "on disk", "on replicas"]
    if not session.replicas.urls:
        levels_shown.pop()
    rows, cut, stale = [], [], []
    for name in [*session.inputs, *session.stages]:
        frontier = frontiers[name]
        kind = "input" if name in session.inputs else "stage"
        count, state = rows_now(session, name)
        if state == "live" and {each["persistence"] for each in info.layers(name)} == {"memory"}:
            state = "live, in memory only"
        if name in session.stale:
            stale.append(f"{name}: {state}")
        elif len(state) > WIDEST:
            cut.append(f"{name}: {state}")
        levels = (frontier.memory, frontier.disk, frontier.replicas)[: len(levels_shown)]
        counted = None if count is None else f"{count:,}"
        rows.append([name, kind, counted, *map(formats.value, levels), state])
    branch = f"branch {notebook.branch} of " if notebook.branch else ""
    caption = f"epoch {session.now} · {branch}log {notebook.main or ''}"
    pending = session.pending.items()
    notes = [f"pending: {name} {formats.count(item.rows, 'row')}" for name, item in pending]
    notes += cut
    notes += _repairs(session)
    notes.append(_failures(session))
    notes += [f"background: {each}" for each in info.background_failures]
    notes.append(_disk_usage_text(session))
    notes += _scrub_text(session)
    notes += session.replicas.demotions
    notes += _missing_data(session)
    columns = ("name", "kind", "rows", *levels_shown, "state")
    types = ("string", "string", "bigint", *["bigint"] * len(levels_shown), "string")
    watched, refused = _watched(session)
    return Table(caption, columns, rows, types, [*notes, *watched], [*stale, *refused])


def _watched(session: Session) -> tuple[list[str], list[str]]:
    """Returns notes on the watched folders, and warnings about refused files."""
    watches = session.info.watches
    return [str(each) for each in watches], [
        text for each in watches for text in each.refusal_texts
    ]


def _repairs(session: Session) -> list[str]:
    """Returns a note for each input that has a negative count, with the command that repairs it."""
    from nosync_nb.errors import NegativeMultiplicityError

    notes = []
    for name in session.inputs:
        try:
            len(session[name])
        except NegativeMultiplicityError as error:
            notes.append(f"input {name} cannot be read; repair it: {error.hint}")
        except Exception:  # the row of the input reports it
            continue
    return notes


def _missing_data(session: Session) -> list[str]:
    """Returns notes on data that may be lost, and on data that is not on this disk yet."""
    doubt, remaining = session.recovery.doubt, session.info.missing_files
    notes = [f"may be lost: {doubt}"] if doubt else []
    if remaining.files:
        size, why = (
            formats.size(remaining.size_bytes),
            f": {remaining.why}" if remaining.why else "",
        )
        files = formats.count(remaining.files, "file")
        notes.append(f"only at the replicas so far: {files} of rows, {size}{why}")
    return notes


def _disk_usage_text(session: Session) -> str:
    """Describes the disk usage of the log, by purpose."""
    usage = session.info.disk_usage()
    purposes = ("live", "history", "log", "branches", "garbage")
    parts = [
        f"{formats.size(getattr(usage, name))} {name}" for name in purposes if getattr(usage, name)
    ]
    file_count = formats.count(usage.files, "file")
    bound = ""
    if session.budget is not None:
        over = ": the next checkpoint retains less history, if there is some"
        used, most = formats.size(usage.own), formats.size(session.budget)
        bound = f"; {used} of the budget of {most}"
        bound += over if session.info.over_budget else ""
    return f"on this disk {formats.size(usage.total)} in {file_count}: {', '.join(parts)}{bound}"


def _failures(session: Session) -> str:
    """Describes the epochs that each class of failure would lose now."""
    none = "" if session.replicas.urls else " (no replicas)"
    return (
        f"if the kernel dies: {_cost_text(session, 'kernel')} lost;"
        f" if the power fails: {_cost_text(session, 'power')} lost;"
        f" if the disk is lost: {_cost_text(session, 'disk')} lost{none}"
    )


def _cost_text(session: Session, failure: FailureName) -> str:
    """Describes the epochs that a failure would lose now."""
    left = session.recovery_frontier(failure)
    lost = session.now - left
    if lost <= 0:
        return "nothing"
    if left:
        return formats.count(lost, "epoch")
    return f"all {lost:,} epochs" if lost > 1 else "the only epoch"


def _scrub_text(session: Session) -> list[str]:
    """Describes the files that the keeper has scrubbed and repaired; empty without any."""
    scrubbed = session.replicas.scrubbed
    if not scrubbed.files:
        return []
    often = formats.count(scrubbed.rounds, "time")
    read = (
        f"scrubbed {often}: {formats.count(scrubbed.files, 'file')}, {formats.size(scrubbed.bytes)}"
    )
    return [f"{read}, {scrubbed.repaired} repaired"]


def rows_now(session: Session, name: str) -> tuple[int | None, str]:
    """Returns the row count of a collection, and "live" or the reason why it is not live.

    The count is None if the collection cannot be read.
    """
    try:
        cursor = session.cursor(name)
        count = len(session[name]) if cursor.stopped is None else cursor.count()
    except Exception as error:
        return None, str(error)
    if cursor.stopped is not None:
        return count, str(cursor.stopped)
    return count, "taken over by another process" if session.info.fenced else "live"


def _show_stage(notebook: Notebook, arguments: Namespace) -> Table:
    collection = collection_of(notebook, arguments.stage)
    at, most = epoch_asked(notebook, arguments.at), _limit(notebook, arguments)
    return collection_table(collection, at=at, limit=most, session=notebook.session())


def _diff(notebook: Notebook, arguments: Namespace) -> Table:
    session = notebook.session()
    collection = collection_of(notebook, arguments.stage)
    ended = collection.stale
    last = session.now if ended is None or ended.epoch is None else ended.epoch
    upto = last if arguments.upto is None else epoch_of(session, arguments.upto)
    after = epoch_asked(notebook, arguments.after)
    if after is None:
        earlier = (part[: bisect_left(part, upto)] for part in collection.history())
        after = max((part[-1] for part in earlier if part), default=None)
    if after is not None and after > upto:
        raise UsageError(f"%dd diff: epoch {after} is after {upto}; write the earlier one first")
    most = _limit(notebook, arguments)
    changes, added, removed = changed_rows(collection, after, upto, most)
    schema = collection.schema
    shown = sum(abs(diff) for diff, _ in changes)
    first = formats.count(len(changes), "change")
    return Table(
        caption=f"{arguments.stage} from epoch {after or 0} to {upto}: +{added:,} −{removed:,}",
        columns=("", *schema.names),
        types=("string", *schema.types),
        rows=[[_sign(diff), *row] for diff, row in changes],
        notes=[f"the first {first}"] if shown < added + removed else [],
        marks=[] if ended is None else [str(ended)],
    )


def _sign(diff: int) -> str:
    return ("+" if diff > 0 else "−") + ("" if abs(diff) == 1 else f" ×{abs(diff):,}")


def _compare(notebook: Notebook, arguments: Namespace) -> Table:
    session, at = notebook.session(), arguments.at or [None]
    if len(at) > 2 or (arguments.b is None and len(at) != 2):
        raise UsageError(
            f"%dd compare: write `%dd compare {arguments.a} OTHER [--at E]`, or two epochs of it:"
            f" `%dd compare {arguments.a} --at 5 9`"
        )
    with ExitStack() as opened:
        one = _side(notebook, arguments.a, opened)
        other = one if arguments.b is None else _side(notebook, arguments.b, opened)
        epochs = [
            None if each is None else epoch_of(side[0], each)
            for side, each in zip((one, other), (at[0], at[-1]), strict=True)
        ]
        sides, by, columns = (one[1], other[1]), arguments.by, arguments.columns
        compared = session.compare(*sides, at=tuple(epochs), by=by, columns=columns)
        compared = compared.called(arguments.a, arguments.b or arguments.a)
        return comparison_table(compared, limit=_limit(notebook, arguments))


def _side(notebook: Notebook, name: str, opened: ExitStack) -> tuple[Session, Collection]:
    """Returns one side of a comparison, `stage` or `branch/stage`: session and collection."""
    import nosync_nb

    branch, slash, stage = name.rpartition("/")
    if not slash:
        return notebook.session(), collection_of(notebook, name)
    session = opened.enter_context(notebook.log(mode="r"))
    if branch == MAIN:
        notebook.check_main(session)
    for part in branch.split("/") if branch != MAIN else ():
        branches = session.branches
        if part not in branches:
            known = ", ".join([MAIN, *branches])
            raise UsageError(f"%dd compare: there is no branch '{branch}'; branches: {known}")
        session = opened.enter_context(nosync_nb.open(branches[part].path, mode="r"))
    return session, session[stage]


def _limit(notebook: Notebook, arguments: Namespace) -> int:
    """Returns the number of rows to show."""
    requested: int | None = arguments.limit
    return notebook.settings.limit if requested is None else requested


def epoch_asked(notebook: Notebook, at: int | str | None) -> int | None:
    """Returns the epoch that an argument names; None if the argument was omitted."""
    return None if at is None else epoch_of(notebook.session(), at)


def collection_of(notebook: Notebook, name: str) -> Collection:
    """Returns the collection of that name, or raises a UsageError that lists the names."""
    from nosync_nb.errors import likely

    session = notebook.session()
    if name not in session:
        suggestion = likely(name, [*session.stages, *session.inputs], "there are")
        raise UsageError(f"%dd: no stage or input is named '{name}'; {suggestion}")
    return session[name]


_STAGE = (["stage"], {"help": "name of a stage or input"})
_LIMIT = (["--limit"], {"type": limit, "help": "number of rows shown; default: NoSync.limit"})
MOMENT = "epoch, label (quoted if it is a number), negative offset, or '2026-01-31 18:00'"
AT = (["--at"], {"type": moment, "help": MOMENT})


def _trust(notebook: Notebook, _arguments: Namespace) -> Table:
    """Returns a table of the definitions and of the keys that signed them; runs no function."""
    report = notebook.session().info.trust()
    rows = [[s.name, s.whose, s.held or "runs", s.text] for s in report.stages]
    return Table(
        caption=f"log {report.log[:16]} · {report.whose} · your key: {report.yours}",
        columns=("stage", "signed by", "state", "definition"),
        rows=rows,
        types=("string", "string", "string", "string"),
        notes=["a stage becomes yours when you run a cell that defines it"],
    )


def _explain(notebook: Notebook, arguments: Namespace) -> str:
    """Explains a stage, a variable of the notebook, or a query; nothing is defined."""
    from nosync_nb import Collection

    session, query = notebook.session(), arguments.query
    value = None if query in session else notebook.shell.user_ns.get(query)
    return session.explain(
        value if isinstance(value, Collection) else query, notebook.shell.user_ns
    )


COMMANDS = (
    Subcommand("status", "list inputs and stages: rows, epochs, durability", _status),
    Subcommand(
        "show",
        "show the rows of a stage, current or at an epoch",
        _show_stage,
        [_STAGE, AT, _LIMIT],
    ),
    Subcommand(
        "diff",
        "show the changes of a stage between two epochs",
        _diff,
        [
            _STAGE,
            (["after"], {"type": moment, "nargs": "?", "help": "default: the previous epoch"}),
            (
                ["upto"],
                {"type": moment, "nargs": "?", "help": f"default: the last epoch; {MOMENT}"},
            ),
            _LIMIT,
        ],
    ),
    Subcommand(
        "explain",
        "explain the work and the state of a stage or a query",
        _explain,
        [(["query"], {"help": "a stage, a variable with a collection, or SELECT ... as written"})],
        raw=True,
    ),
    Subcommand(
        "compare",
        "compare two collections, versions or epochs, row by row",
        _compare,
        [
            (
                ["a"],
                {"help": "a stage, an input, a version (delays@1), or of a branch (main/delays)"},
            ),
            (["b"], {"nargs": "?", "help": "the other one; omitted: `a` at two epochs"}),
            (
                ["--at"],
                {"type": moment, "nargs": "+", "help": f"one for both, or one for each; {MOMENT}"},
            ),
            (["--by"], {"nargs": "+", "help": "columns that match a row with its changed version"}),
            (["--columns"], {"nargs": "+", "help": "the columns to compare"}),
            _LIMIT,
        ],
    ),
    Subcommand("trust", "show whose key signed the log, and the definitions of its stages", _trust),
)
