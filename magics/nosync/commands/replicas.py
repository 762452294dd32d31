"""The subcommand `%dd replicas`: lists the replicas with their state, and adds or removes them."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from nosync.commands import Subcommand
from nosync_widgets import formats
from nosync_widgets.tables import Table

if TYPE_CHECKING:
    from nosync.notebook import Notebook
    from nosync_nb import Session
    from nosync_nb.frontend import Replicas, ReplicaStatus

_COLUMNS = (
    "replica",
    "state",
    "epoch",
    "epochs behind",
    "to ship",
    "behind for",
    "sent",
    "deferred",
    "reason",
)
_TYPES = ("string", "string", "bigint", "bigint", *["string"] * 5)


def _replicas(notebook: Notebook, arguments: Namespace) -> Table | None:
    __tracebackhide__ = True
    session = notebook.session()
    if arguments.act is not None or arguments.quorum is not None:
        _change(notebook, session, arguments)
    return _table(notebook, session)


def _change(notebook: Notebook, session: Session, arguments: Namespace) -> None:
    """Adds or removes replicas, or changes the quorum."""
    __tracebackhide__ = True
    replicas = session.replicas
    before = replicas.urls
    named = [_url(text) for text in arguments.urls]
    if arguments.act is not None and not named:
        raise UsageError(f"%dd replicas {arguments.act}: give its folder or its URL")
    missing = [url for url in named if url not in before]
    if arguments.act == "remove" and missing:
        known = formats.listing(before)
        raise UsageError(f"%dd replicas remove: '{missing[0]}' is not a replica; replicas: {known}")
    if arguments.act == "remove":
        urls = [url for url in before if url not in named]
    else:  # an existing replica stays, so that the line can be run again
        urls = [*before, *missing]
    if urls != before or arguments.quorum not in (None, replicas.quorum):
        least = replicas.read_quorum
        replicas.change(urls, arguments.quorum)
        if before:
            _warn_larger_quorum(notebook, least, replicas)


def _warn_larger_quorum(notebook: Notebook, least: int, replicas: Replicas) -> None:
    """Warns if more replicas than before must answer to recover every safe epoch.

    Args:
        least: the number of replicas that had to answer before the change.
    """
    count, needed = len(replicas), replicas.read_quorum
    if count and needed > least:
        keeping = count - least + 1
        notebook.say(
            f"if the disk is lost, {needed} of the {count} replicas must answer; with --quorum"
            f" {keeping} it is {least} as before, and an epoch is safe when {keeping} have it"
        )


def _url(text: str) -> str:
    """Returns the URL of a replica; a folder may be given as a path."""
    return text if ":" in text else Path(text).expanduser().absolute().as_uri()


def _table(notebook: Notebook, session: Session) -> Table | None:
    replicas = session.replicas
    copies, quorum = replicas.status(), replicas.quorum
    if not copies:
        notebook.say("the log has no replicas: %dd replicas add FOLDER")
        return None
    owed = replicas.unconfirmed
    more = f"; the lower quorum counts when {owed} more have confirmed it" if owed else ""
    return Table(
        caption=f"replicas: epoch {replicas.safe} is on {quorum} of {len(copies)}{more}",
        columns=_COLUMNS,
        types=_TYPES,
        rows=[
            [
                each.url,
                formats.replica_state(each.state),
                formats.value(each.epoch),
                formats.value(each.behind),
                _unshipped(each),
                f"{each.behind_s:.1f} s" if each.behind else "",
                formats.size(each.bytes_sent),
                formats.size(each.last_bytes) if each.last_bytes else "",
                each.why,
            ]
            for each in copies
        ],
        notes=replicas.demotions,
    )


def _unshipped(copy: ReplicaStatus) -> str:
    """Returns the amount of data still to be shipped; empty while it is unknown."""
    return "" if copy.behind and not copy.behind_bytes else formats.size(copy.behind_bytes)


COMMANDS = (
    Subcommand(
        "replicas",
        "list, add or remove replicas of the log",
        _replicas,
        [
            (["act"], {"nargs": "?", "choices": ["add", "remove"]}),
            (
                ["urls"],
                {
                    "nargs": "*",
                    "help": "a folder, or file:///..., grpc://host:port, s3://bucket/prefix",
                },
            ),
            (
                ["--quorum"],
                {"type": int, "help": "how many make an epoch safe; default: a majority"},
            ),
        ],
    ),
)
