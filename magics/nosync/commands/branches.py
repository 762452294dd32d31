"""Subcommands of `%dd` for branches and rewinds: branch, switch, rewind, follow."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from nosync.commands import Subcommand, epoch_of, moment
from nosync_widgets import formats
from nosync_widgets.tables import Table

if TYPE_CHECKING:
    from nosync.notebook import Notebook
    from nosync_nb import Session
    from nosync_nb.frontend import BranchInfo


_SHOWN_FACTS = ("lost", "uncertain", "extend", "recompute", "stale", "note")
"""The facts of a recovery report that are shown when cells switch to another log."""


def _branch(notebook: Notebook, arguments: Namespace) -> Table | None:
    __tracebackhide__ = True
    if arguments.drop is not None:
        if arguments.name is not None or arguments.at is not None or arguments.then:
            raise UsageError("%dd branch: write `%dd branch NAME`, or `%dd branch --drop NAME`")
        above, name = _split_parent(arguments.drop)
        with notebook.log(above) as parent:
            parent.drop_branch(name)
        notebook.say(f"dropped branch {arguments.drop}")
        return None
    if arguments.name is None:
        if arguments.at is not None or arguments.then:
            raise UsageError("%dd branch: write `%dd branch NAME --at EPOCH`")
        return _list_branches(notebook)
    session = notebook.session()
    epoch = None if arguments.at is None else epoch_of(session, arguments.at)
    notebook.say(fork(notebook, arguments.name, epoch, then=arguments.then))
    return None


def fork(notebook: Notebook, given: str, at: int | None, *, then: bool = False) -> str:
    """Forks a branch, and returns a message.

    Args:
        given: the name of the branch.
        at: the epoch of the fork; None means the last one.
        then: True to use the definitions of that epoch instead of the current ones.
    """
    __tracebackhide__ = True
    from nosync_nb.frontend import check_name

    session = notebook.session()
    name = check_name(given, "branch")
    if session.mode == "r":
        from nosync_nb.errors import FencedError

        raise FencedError(
            f"branch '{name}': this notebook only reads the log, and only its owner can fork it",
            hint=f"run `%dd branch {name}` in the notebook that writes the log, then here"
            f" `%dd open '{session.path}' --branch {name}`",
        )
    epoch = session.now if at is None else at
    definitions = "then" if then else "now"
    session.fork(name, epoch, definitions=definitions)
    cells = " with the definitions of that epoch" if then else ""
    name = _full_name(notebook, name)
    return (
        f"branch {name} forked at epoch {epoch}{cells}: `%dd switch {name}` continues there"
        f"{_replica_warning(session)}"
    )


def _list_branches(notebook: Notebook) -> Table | None:
    with notebook.log(mode="r") as main:
        branches = [*_walk_branches(main.branches, "")]
    if not branches:
        notebook.say("there are no branches: `%dd branch NAME` creates one")
        return None
    rows = [
        [
            name,
            "" if each.replicas else formats.value(each.at),
            "" if each.replicas else formats.value(each.now),
            "this notebook" if name == notebook.branch else _owner_text(each, name),
        ]
        for name, each in branches
    ]
    head = ("branch", "forked at", "last epoch", "open in")
    return Table("branches", head, rows, ("string", "bigint", "bigint", "string"))


def _replica_warning(session: Session) -> str:
    """Returns a warning that a new branch is not replicated yet; empty without replicas."""
    return "; until then it is on this disk only" if session.replicas.urls else ""


def _walk_branches(
    branches: Mapping[str, BranchInfo], above: str
) -> Iterator[tuple[str, BranchInfo]]:
    """Yields branches and, recursively, their own branches, with full names such as `A/B`."""
    from nosync_nb.log_folders import LogFolder

    for each in branches.values():
        name = above + each.name
        yield name, each
        if not each.replicas:
            yield from _walk_branches(LogFolder(each.path).list_branches(), f"{name}/")


def _full_name(notebook: Notebook, name: str) -> str:
    """Returns the full name of a branch that was forked from the branch in use, or from the log."""
    return name if notebook.branch is None else f"{notebook.branch}/{name}"


def _split_parent(name: str) -> tuple[str | None, str]:
    """Splits a full name into parent branch and name; the parent is None for the log itself."""
    above, _, own = name.rpartition("/")
    return above or None, own


def _owner_text(branch: BranchInfo, name: str) -> str:
    """Returns the owner of a branch, or the reason why it cannot be opened."""
    if branch.replicas:
        return f"at replicas only: `%dd switch {name}` restores it"
    return branch.damaged or branch.owner or ""


def _switch(notebook: Notebook, arguments: Namespace) -> None:
    __tracebackhide__ = True
    session = notebook.switch(arguments.name)
    where, back = "on the main log", ""
    if notebook.branch is not None:
        where, back = f"on branch {notebook.branch}", "; `%dd switch` returns to the main log"
    if notebook.home is not None:
        back = "; `%dd switch` reads the main log"
        if notebook.branch is None:
            where = "reading the main log, which another notebook writes"
            back = f"; `%dd switch {notebook.home}` returns to this notebook's branch"
    lines = [f"now {where}, at epoch {session.now}{back}"]
    lines += [f"{what}: {text}" for what, text in session.recovery.facts() if what in _SHOWN_FACTS]
    notebook.say("\n".join(lines))


def _rewind(notebook: Notebook, arguments: Namespace) -> None:
    __tracebackhide__ = True
    at = arguments.epoch
    epoch = at if isinstance(at, int) else epoch_of(notebook.session(), at)
    notebook.say(rewind(notebook, epoch))


def rewind(notebook: Notebook, epoch: int) -> str:
    """Rewinds the session to an epoch, and returns a message."""
    __tracebackhide__ = True
    session = notebook.session()
    outcome = session.rewind(to=epoch)
    if not outcome.branch:
        return f"already at epoch {outcome.epoch}"
    groups = {"recomputed": outcome.computed, "undefined at that epoch": outcome.unknown}
    rest = "".join(f"; {what}: {', '.join(names)}" for what, names in groups.items() if names)
    branch = _full_name(notebook, outcome.branch)
    return (
        f"rewound from epoch {outcome.left} to {outcome.epoch}{rest}; the undone epochs remain in"
        f" branch {branch}: `%dd switch {branch}` returns to them{_replica_warning(session)}"
    )


class NotebookForks:
    """The actions of a slider's buttons; `rewind` and `branch` do the same as the commands."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook

    def rewind(self, epoch: int) -> str:
        """Rewinds to an epoch and refreshes all views."""
        done = rewind(self._notebook, epoch)
        self._notebook.views.refresh()
        return done

    def branch(self, name: str, epoch: int) -> str:
        """Forks a branch at an epoch."""
        return fork(self._notebook, name, epoch)

    def replay(self, stage: str) -> str:
        """Backfills a stage that was defined late, as far back as its inputs are readable."""
        begin = self._notebook.session().replay(stage)
        self._notebook.views.refresh()
        return f"{stage} is readable from epoch {begin} on"


def _follow(notebook: Notebook, arguments: Namespace) -> None:
    __tracebackhide__ = True
    session = notebook.session()
    before = session.now
    above = None if notebook.branch is None else _split_parent(notebook.branch)[0]
    with notebook.log(above, mode="r") as parent:
        if above is None:
            notebook.check_main(parent)
        upto = None if arguments.upto is None else epoch_of(parent, arguments.upto)
        now = session.follow(parent, upto)
    notebook.cells.heard(now)
    which = "the main log" if above is None else f"branch {above}"
    notebook.say(f"caught up with {which}: {formats.count(now - before, 'epoch')}, now at {now}")


COMMANDS = (
    Subcommand(
        "branch",
        "fork a branch at an epoch, or list the branches",
        _branch,
        [
            (["name"], {"nargs": "?", "help": "an identifier; omitted: lists the branches"}),
            (
                ["--at"],
                {
                    "type": moment,
                    "metavar": "EPOCH",
                    "help": "where it forks; default: the last epoch",
                },
            ),
            (["--then"], {"action": "store_true", "help": "with the definitions of that epoch"}),
            (["--drop"], {"metavar": "NAME", "help": "delete a branch that is not open"}),
        ],
    ),
    Subcommand(
        "switch",
        "continue on a branch, or on the main log",
        _switch,
        [
            (
                ["name"],
                {
                    "nargs": "?",
                    "help": "a branch; A/B is branch B of branch A; omitted: the main log",
                },
            )
        ],
    ),
    Subcommand(
        "rewind",
        "rewind to an epoch; the undone epochs remain in a branch",
        _rewind,
        [(["epoch"], {"type": moment, "help": "an epoch, or its label"})],
    ),
    Subcommand(
        "follow",
        "bring the current branch up to date with its parent",
        _follow,
        [
            (
                ["--upto"],
                {
                    "type": moment,
                    "metavar": "EPOCH",
                    "help": "an epoch of the parent; default: the last",
                },
            )
        ],
    ),
)
