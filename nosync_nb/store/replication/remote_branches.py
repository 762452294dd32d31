"""Finds the branches of a log that replicas hold, and drops the copies of a deleted log.

A folder or bucket keeps a branch below the copy of its parent, in `branches/NAME`. A server keeps
it beside the parent's copy, by its id. Each copy records the original path of its log. That path
identifies the parent of a branch, whether the branch is on this disk or not.

Dropping takes two steps:

    promise: each copy accepts only the term of the caller, so that no keeper ships to it any more
    discard: its files are deleted; the grant remains

Failure: 1. A log is deleted, and then its copies. 2. Its keeper, which outlives the kernel, ships
the deleted files again. Hence the promise is first, and the grant remains: a copy without frames is
not listed as a log.

If the grant of a copy names a later owner than that of the dropped log, the log was restored
elsewhere. Such a copy is not deleted.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from nosync_nb.errors import FencedError, NosyncError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.replication.address import ReplicaAddress
from nosync_nb.store.replication.backends.object_requests import ObjectStoreClient
from nosync_nb.store.replication.config import config_signer
from nosync_nb.store.replication.endpoints import connect_site
from nosync_nb.store.replication.file_layout import BRANCHES
from nosync_nb.store.replication.protocol import FencingGrant, LogName, OwnerTerm, Replica
from nosync_nb.store.replication.remote_call import call_all


class RemoteBranch(NamedTuple):
    """A branch of a log, as its copies at replicas describe it.

    Attributes:
        name: the name of the branch.
        urls: the URLs of its copies, each followed by `#` and the id of the branch.
        quorum: the number of copies that make an epoch safe.
    """

    name: str
    urls: tuple[str, ...]
    quorum: int


def remote_branches(
    files: Files, log: str, replicas: Iterable[ReplicaAddress]
) -> list[RemoteBranch]:
    """Returns the branches of the log at a path that the answering replicas hold.

    If copies under one name belong to two different logs, both are listed.
    """
    calls = [(each.url, lambda _, each=each: _branch_copies(files, log, each)) for each in replicas]
    by_branch: dict[tuple[str, bytes], list[tuple[str, int]]] = {}
    for answer in call_all(calls):
        for name, url, log_id, quorum in [] if isinstance(answer, NosyncError) else answer:
            by_branch.setdefault((name, log_id), []).append((f"{url}#{log_id.hex()}", quorum))
    return [
        RemoteBranch(
            name, tuple(url for url, _ in copies), min(len(copies), max(each for _, each in copies))
        )
        for (name, _), copies in sorted(by_branch.items())
    ]


_BranchCopy = tuple[str, str, bytes, int]
"""The name of a branch, the URL of its site, its log id, and its quorum."""


def _branch_copies(files: Files, log: str, address: ReplicaAddress) -> list[_BranchCopy]:
    """Returns the copies of all branches of a log that one replica of the log holds."""
    if address.kind.startswith("grpc"):
        return [*_branches_of(log, address.url, connect_site(address, files).logs())]
    copies: list[_BranchCopy] = []
    for name in _branch_names(files, address):
        path = f"{address.path.rstrip('/')}/{BRANCHES}/{name}"
        below = address._replace(path=path, url=f"{address.url.rstrip('/')}/{BRANCHES}/{name}")
        copies += _branches_of(log, below.url, connect_site(below, files).logs())
    return copies


def _branch_names(files: Files, address: ReplicaAddress) -> list[str]:
    """Returns the names of the folders in `branches`, below the copy of the parent log."""
    where = f"{address.path.rstrip('/')}/{BRANCHES}"
    if address.kind != "file":
        return ObjectStoreClient(address.kind, address.host, where).folders()
    return files.names(where) if files.exists(where) else []


def _branches_of(log: str, url: str, logs: Mapping[bytes, FencingGrant]) -> Iterable[_BranchCopy]:
    """Yields the copies at a site that are branches of a log."""
    for log_id, grant in logs.items():
        above, name = os.path.split(grant.name.path)
        if above == os.path.join(log, BRANCHES):
            yield name, url, log_id, grant.name.quorum


def drop_copies(
    files: Files,
    path: str,
    log_id: bytes,
    replicas: Sequence[ReplicaAddress],
    *,
    generation: int | None = None,
) -> dict[str, str]:
    """Deletes the copies of a log at all replicas that can be reached.

    Args:
        path: the original path of the log, as its copies record it.
        generation: the generation of the dropped log; copies of a later one are not deleted.
            `None` means that copies of every generation are deleted.

    Returns:
        the reasons why copies still exist, by URL.

    Cost: two rounds of requests. Each round waits for the slowest replica, up to the timeout.
    """
    name = LogName(path, config_signer(files), max(1, len(replicas)), max(1, len(replicas)))
    sites = {each.url: connect_site(each, files) for each in replicas}
    copies = [(url, site.replica(log_id)) for url, site in sites.items()]
    term_of: dict[str, OwnerTerm] = {}

    def promise(url: str, copy: Replica) -> None:
        accepted = copy.promised()
        if accepted is None:
            sites[url].logs()  # raises if the site is unreachable, which looks like a missing grant
            return
        if generation is not None and accepted.generation > generation:
            raise FencedError(
                f"the copy belongs to a later owner (generation {accepted.generation})"
            )
        # One more, because the copy may hold a grant of the log's generation under another name.
        term = OwnerTerm(1 + max(accepted.generation, generation or 0), secrets.token_hex(16))
        copy.promise(term, name)
        term_of[url] = term

    def discard(url: str, copy: Replica) -> None:
        if url in term_of:
            copy.discard(term_of[url], list(copy.held().files))

    failures: dict[str, str] = {}
    try:
        for step in (promise, discard):
            failures.update(_run_step(copies, step, failures))
    finally:
        for url, copy in copies:
            if url not in failures:
                copy.close()
    return failures


def _run_step(
    copies: Sequence[tuple[str, Replica]],
    step: Callable[[str, Replica], None],
    failures: dict[str, str],
) -> dict[str, str]:
    """Runs a step for all copies that have not failed; returns the new failures by URL."""
    remaining = [(url, copy) for url, copy in copies if url not in failures]
    calls = [(url, lambda _, url=url, copy=copy: step(url, copy)) for url, copy in remaining]
    answers = zip(remaining, call_all(calls), strict=True)
    return {url: str(answer) for (url, _), answer in answers if isinstance(answer, NosyncError)}
