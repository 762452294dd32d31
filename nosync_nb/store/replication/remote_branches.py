"""Below: the branches of a log of which replicas hold copies, whether they are on this disk or not.

A replica keeps a branch below its copy of the log, in `branches/NAME`; a server beside it, by its
id. What a copy says of where its log lay tells whose branch it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from nosync_nb.errors import NosyncError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.replication.address import ReplicaAddress
from nosync_nb.store.replication.backends.object_requests import ObjectStoreClient
from nosync_nb.store.replication.endpoints import connect_site
from nosync_nb.store.replication.fencing_grant import FencingGrant
from nosync_nb.store.replication.file_layout import BRANCHES
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
