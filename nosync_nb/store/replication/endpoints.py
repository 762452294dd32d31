"""Connects to the site that a replica's URL names: a folder, a server or an object store.

A site may hold copies of several logs. A new kind of site needs an entry in `_KINDS`, and a parser
for its URLs in `address`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import Protocol

from nosync_nb.errors import NosyncError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.replication.address import ReplicaAddress
from nosync_nb.store.replication.backends.flight_client import FlightSite
from nosync_nb.store.replication.backends.folder import FolderSite
from nosync_nb.store.replication.backends.object_requests import ObjectStoreClient
from nosync_nb.store.replication.backends.object_store import ObjectSite
from nosync_nb.store.replication.protocol import FencingGrant, Replica
from nosync_nb.store.replication.remote_call import Beat, RemoteTimeoutError, call_all


class ReplicaSite(Protocol):
    """One site for copies of logs; creating the object does not connect to it.

    Each call raises DurabilityError if the site cannot be reached or refuses the call.
    """

    def prepare(self) -> bool:
        """Creates the folder for copies if the site needs one, because the user has named the site.

        Returns:
            True if the site is ready for copies.
        """

    def logs(self, beat: Beat = lambda: None) -> Mapping[bytes, FencingGrant]:
        """Returns the grants of the logs that the site holds copies of, by log id.

        Args:
            beat: called whenever there is progress.

        Raises:
            CorruptLogError: the grant of a copy is damaged.
            TrustError: other users can write to a copy.
        """

    def replica(self, log_id: bytes) -> Replica:
        """Returns the copy of one log, which need not exist yet."""


_KINDS: dict[str, Callable[[ReplicaAddress, Files], ReplicaSite]] = {
    "file": lambda address, files: FolderSite(address.path, files),
    "grpc": FlightSite,
    "grpc+tls": FlightSite,
    "s3": lambda address, _: _object_site(address),
    "gs": lambda address, _: _object_site(address),
    "az": lambda address, _: _object_site(address),
}


def _object_site(address: ReplicaAddress) -> ObjectSite:
    return ObjectSite(ObjectStoreClient(address.kind, address.host, address.path))


def connect_site(address: ReplicaAddress, files: Files) -> ReplicaSite:
    """Returns the site that an address names."""
    return _KINDS[address.kind](address, files)


def open_copy(address: ReplicaAddress, files: Files, log_id: bytes) -> closing[Replica]:
    """Returns the copy of a log at a replica, for a `with` block that closes it."""
    return closing(connect_site(address, files).replica(log_id))


def prepare_copy(addresses: Iterable[ReplicaAddress], files: Files) -> None:
    """Prepares several sites for copies, and ignores those that do not answer.

    Raises:
        DurabilityError: a site refuses the call.
    """
    for answer in _prepare_all(addresses, files):
        if isinstance(answer, NosyncError) and not isinstance(answer, RemoteTimeoutError):
            raise answer


def is_prepared(addresses: Iterable[ReplicaAddress], files: Files) -> bool:
    """Prepares the sites in a log's settings; returns True if all are ready, and never raises."""
    return all(answer is True for answer in _prepare_all(addresses, files))


def _prepare_all(addresses: Iterable[ReplicaAddress], files: Files) -> list[bool | NosyncError]:
    sites = [(each.url, connect_site(each, files)) for each in addresses]
    return call_all([(url, lambda _, site=site: site.prepare()) for url, site in sites])  # type: ignore[misc]
