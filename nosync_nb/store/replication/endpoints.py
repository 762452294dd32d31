"""Site: what a replica's URL names, where copies of several logs may be.

A new kind of place is a line in `_KINDS`, and one in `address` for what its URL looks like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from nosync_nb.errors import NosyncError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.replication.address import ReplicaAddress
from nosync_nb.store.replication.backends.flight_client import FlightSite
from nosync_nb.store.replication.backends.folder import FolderSite
from nosync_nb.store.replication.backends.object_requests import ObjectStoreClient
from nosync_nb.store.replication.backends.object_store import ObjectSite
from nosync_nb.store.replication.fencing_grant import FencingGrant
from nosync_nb.store.replication.protocol import Replica
from nosync_nb.store.replication.remote_call import Beat, RemoteTimeoutError, call_all


class ReplicaSite(Protocol):
    """One place, not asked anything before it is called.

    Each call raises DurabilityError if the place cannot be reached or refuses.
    """

    def prepare(self) -> bool:
        """Makes what has to be there before copies can be, since the user has named it.

        Returns:
            whether that is there now, as far as it can be told.
        """

    def logs(self, beat: Beat = lambda: None) -> Mapping[bytes, FencingGrant]:
        """The logs of which it holds something, by their ids.

        Args:
            beat: called when it has come further.

        Raises:
            CorruptLogError: it cannot be told of one of them whom it obeys.
            TrustError: others may write there.
        """

    def replica(self, log_id: bytes) -> Replica:
        """The copy of one log, whether there is one yet or not."""


_KINDS: dict[str, Callable[[ReplicaAddress, Files], ReplicaSite]] = {
    "file": lambda address, files: FolderSite(address.path, files),
    "grpc": FlightSite,
    "grpc+tls": FlightSite,
    "s3": lambda address, _: _in_bucket(address),
    "gs": lambda address, _: _in_bucket(address),
    "az": lambda address, _: _in_bucket(address),
}


def _in_bucket(address: ReplicaAddress) -> ObjectSite:
    return ObjectSite(ObjectStoreClient(address.kind, address.host, address.path))


def connect_site(address: ReplicaAddress, files: Files) -> ReplicaSite:
    """Returns the place that an address names."""
    return _KINDS[address.kind](address, files)


def prepare_copy(addresses: Iterable[ReplicaAddress], files: Files) -> None:
    """Makes what has to be there at several places; one that does not answer is gone on without.

    Raises:
        DurabilityError: a place refuses.
    """
    for answer in _prepared(addresses, files):
        if isinstance(answer, NosyncError) and not isinstance(answer, RemoteTimeoutError):
            raise answer


def is_prepared(addresses: Iterable[ReplicaAddress], files: Files) -> bool:
    """As `prepare` of what nobody named just now; whether all of it is there, without an error."""
    return all(answer is True for answer in _prepared(addresses, files))


def _prepared(addresses: Iterable[ReplicaAddress], files: Files) -> list[bool | NosyncError]:
    sites = [(each.url, connect_site(each, files)) for each in addresses]
    return call_all([(url, lambda _, site=site: site.prepare()) for url, site in sites])  # type: ignore[misc]
