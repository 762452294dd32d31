"""Below: the branches of a log of which replicas hold copies, whether they are on this disk or not.

A replica keeps a branch below its copy of the log, in `branches/NAME`; a server beside it, by its
id. What a copy says of where its log lay tells whose branch it is.

Dropping: the copies of a log that was deleted, or is to be, go from its replicas as well.

    promise: each copy obeys whoever drops it from now on, so nobody ships to it any more
    discard: its files are deleted; the promise stays

Failure: 1. A log is deleted, and then its copies. 2. Its keeper, which outlives the kernel, ships
what is gone anew. Hence the promise first, and it stays: a copy without frames is nobody's log.

A copy that has promised itself to a later owner than the log had is of somebody who has made it
anew elsewhere: it is left alone.
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
from nosync_nb.store.replication.fencing_grant import FencingGrant
from nosync_nb.store.replication.file_layout import BRANCHES
from nosync_nb.store.replication.protocol import LogName, OwnerTerm, Replica
from nosync_nb.store.replication.remote_call import call_all


class RemoteBranch(NamedTuple):
    """A branch that replicas have copies of.

    Attributes:
        urls: where, each with the id of its log.
        quorum: how many of them make an epoch safe.
    """

    name: str
    urls: tuple[str, ...]
    quorum: int


def remote_branches(
    files: Files, log: str, replicas: Iterable[ReplicaAddress]
) -> list[RemoteBranch]:
    """The branches of the log that lay in a folder, at those of its replicas that answer.

    Where two logs have been of one name, each is told.
    """
    calls = [(each.url, lambda _, each=each: _copies(files, log, each)) for each in replicas]
    held: dict[tuple[str, bytes], list[tuple[str, int]]] = {}
    for said in call_all(calls):
        for name, url, log_id, quorum in [] if isinstance(said, NosyncError) else said:
            held.setdefault((name, log_id), []).append((f"{url}#{log_id.hex()}", quorum))
    return [
        RemoteBranch(
            name, tuple(url for url, _ in own), min(len(own), max(each for _, each in own))
        )
        for (name, _), own in sorted(held.items())
    ]


_Copy = tuple[str, str, bytes, int]
"""The name of a branch, the URL and the id of its log, its quorum."""


def _copies(files: Files, log: str, address: ReplicaAddress) -> list[_Copy]:
    """The copies of branches at one replica of their parent."""
    if address.kind.startswith("grpc"):
        return [*_of(log, address.url, connect_site(address, files).logs())]
    copies: list[_Copy] = []
    for name in _names(files, address):
        path = f"{address.path.rstrip('/')}/{BRANCHES}/{name}"
        below = address._replace(path=path, url=f"{address.url.rstrip('/')}/{BRANCHES}/{name}")
        copies += _of(log, below.url, connect_site(below, files).logs())
    return copies


def _names(files: Files, address: ReplicaAddress) -> list[str]:
    """What lies below a copy of a log."""
    where = f"{address.path.rstrip('/')}/{BRANCHES}"
    if address.kind != "file":
        return ObjectStoreClient(address.kind, address.host, where).folders()
    return files.names(where) if files.exists(where) else []


def _of(log: str, url: str, logs: Mapping[bytes, FencingGrant]) -> Iterable[_Copy]:
    """Those of the copies at a place that are of branches of a log."""
    for log_id, said in logs.items():
        above, name = os.path.split(said.name.path)
        if above == os.path.join(log, BRANCHES):
            yield name, url, log_id, said.name.quorum


def drop_copies(
    files: Files,
    path: str,
    log_id: bytes,
    replicas: Sequence[ReplicaAddress],
    *,
    generation: int | None = None,
) -> dict[str, str]:
    """Deletes the copies of a log at those replicas that can be reached.

    Args:
        path: where the log lay, as its copies call it.
        generation: whoever drops it is of this one; None: of one after any that a copy has.

    Returns:
        why copies are still there, by URL.

    Cost: two rounds of questions; one who does not answer is waited for as long as any is.
    """
    name = LogName(path, config_signer(files), max(1, len(replicas)), max(1, len(replicas)))
    sites = {each.url: connect_site(each, files) for each in replicas}
    copies = [(url, site.replica(log_id)) for url, site in sites.items()]
    term_of: dict[str, OwnerTerm] = {}

    def promise(url: str, copy: Replica) -> None:
        said = copy.promised()
        if said is None:
            sites[url].logs()  # raises if nothing is known of it, as it cannot be reached
            return
        if generation is not None and said.generation > generation:
            raise FencedError(f"its copy obeys generation {said.generation}, of a later owner")
        # One more: to the log's own generation it may have promised itself, under another name.
        term = OwnerTerm(1 + max(said.generation, generation or 0), secrets.token_hex(16))
        copy.promise(term, name)
        term_of[url] = term

    def discard(url: str, copy: Replica) -> None:
        if url in term_of:
            copy.discard(term_of[url], list(copy.held().files))

    left: dict[str, str] = {}
    try:
        for step in (promise, discard):
            left.update(_each(copies, step, left))
    finally:
        for url, copy in copies:
            if url not in left:
                copy.close()
    return left


def _each(
    copies: Sequence[tuple[str, Replica]],
    step: Callable[[str, Replica], None],
    left: dict[str, str],
) -> dict[str, str]:
    """Takes a step at all copies that are not left yet; why some did not, by URL."""
    asked = [(url, copy) for url, copy in copies if url not in left]
    calls = [(url, lambda _, url=url, copy=copy: step(url, copy)) for url, copy in asked]
    said = zip(asked, call_all(calls), strict=True)
    return {url: str(answer) for (url, _), answer in said if isinstance(answer, NosyncError)}
