"""Parses the URLs of replicas, and checks them against each other and the log.

A URL is stored with the log and shown in status output. It must not contain a secret: a URL with a
user or a password is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from nosync_nb.errors import SchemaError, visible
from nosync_nb.store.replication.remote_call import call_all

_URLS_MAX = 16
_ID_HEX = 32
_HOST = re.compile(r"[0-9a-z.:_-]{1,255}")
_HEX = frozenset("0123456789abcdef")
_FORM = "use file:///absolute/folder, grpc://host:port or s3://bucket/prefix"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,221}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9._/-]{0,500}")


class ReplicaAddress(NamedTuple):
    """The address of a replica.

    Attributes:
        url: the URL without its `#` part.
        kind: the scheme of the URL.
        host: the host with its port, or the bucket; empty for a local folder.
        path: the absolute path of a local folder, or the prefix in a bucket; empty for a server.
        log_id: the id of the log, if the URL names one: `file:///folder#ID`.
    """

    url: str
    kind: str
    host: str
    path: str
    log_id: bytes | None = None

    def site(self, real_of: Callable[[str], str]) -> tuple[str, str, str]:
        """Returns a key that is equal for two addresses of one site.

        Args:
            real_of: resolves the links in the path of a local folder.
        """
        return self.kind, self.host, real_of(self.path) if self.kind == "file" else self.path


def parse_address(url: Any) -> ReplicaAddress:
    """Parses and checks the URL of a replica.

    Raises:
        SchemaError: the URL is not valid for a replica, or contains a user or a password.
    """
    if not isinstance(url, str):
        raise SchemaError(f"{url!r:.80} is not a valid replica URL", hint=_FORM)
    shown = visible(url[:200])
    try:
        parts = urlsplit(url)
        secret = parts.username is not None or parts.password is not None
    except ValueError as error:
        raise SchemaError(f"'{shown}' is not a valid replica URL: {error}", hint=_FORM) from None
    if secret:
        raise SchemaError(
            "a replica URL must not contain a user or password, because it is stored with the log",
            hint="remove them from the URL",
        )
    taken_apart = _KINDS.get(parts.scheme)
    if taken_apart is None:
        raise SchemaError(f"'{shown}': there is no kind of replica '{parts.scheme}'", hint=_FORM)
    host, path = taken_apart(parts, shown)
    which = parts.fragment
    if which and not (len(which) == _ID_HEX and set(which) <= _HEX):
        raise SchemaError(
            f"'{shown}': the part after # is not the id of a log",
            hint=f"write its {_ID_HEX} hex digits",
        )
    log_id = bytes.fromhex(which) if which else None
    return ReplicaAddress(url.partition("#")[0], parts.scheme, host, path, log_id)


def _folder(parts: SplitResult, shown: str) -> tuple[str, str]:
    """Returns an empty host, and the absolute path in the URL of a folder."""
    path = unquote(parts.path)
    if parts.netloc or parts.query or not os.path.isabs(path) or "\0" in path:
        raise SchemaError(f"'{shown}' is not an absolute folder", hint=_FORM)
    path = os.path.normpath(path)
    if path == os.sep:
        raise SchemaError(f"'{shown}' is the root folder", hint="use a folder below it")
    return "", path


def _server(parts: SplitResult, shown: str) -> tuple[str, str]:
    """Returns the host with its port in the URL of a replica server, and an empty path."""
    try:
        name, port = parts.hostname, parts.port
    except ValueError:
        name = port = None
    if not name or not port or parts.query or parts.path.strip("/") or not _HOST.fullmatch(name):
        raise SchemaError(f"'{shown}' has no port", hint=_FORM)
    if name == "localhost":
        name = "127.0.0.1"
    with suppress(ValueError):  # a host name, not a number
        number = ip_address(name)
        name = str((number.version == 6 and number.ipv4_mapped) or number)
    host = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
    if parts.scheme == "grpc" and not is_loopback(host):
        raise SchemaError(
            f"'{shown}': data sent to another machine would not be encrypted",
            hint=f"start the server with TLS, and use grpc+tls://{host}",
        )
    return host, ""


def is_loopback(host: str) -> bool:
    """Returns True if `host:port` is a loopback address, which other machines cannot reach."""
    name = host.rpartition(":")[0].strip("[]")
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


def _bucket(parts: SplitResult, shown: str) -> tuple[str, str]:
    """Returns the bucket and the prefix in the URL of an object store."""
    path = unquote(parts.path).strip("/")
    if parts.query:  # some users put credentials there
        raise SchemaError(
            f"'{shown.partition('?')[0]}' has a query after ?", hint="remove the query"
        )
    if not _BUCKET.fullmatch(parts.netloc):
        raise SchemaError(f"'{shown}' has no bucket", hint=_FORM)
    steps = path.split("/")
    if not _PREFIX.fullmatch(path) or (path and {"", ".", ".."} & {*steps}):
        raise SchemaError(
            f"'{shown}': a prefix may only have letters, digits and `-._/`, and no empty parts",
            hint=_FORM,
        )
    return parts.netloc, path


_KINDS: dict[str, Callable[[SplitResult, str], tuple[str, str]]] = {
    "file": _folder,
    "grpc": _server,
    "grpc+tls": _server,
    "s3": _bucket,
    "gs": _bucket,
    "az": _bucket,
}


def parse_addresses(urls: Any, *, log: str, look: bool = True) -> tuple[ReplicaAddress, ...]:
    """Parses the URLs of several replicas of a log.

    Args:
        log: the folder of the log.
        look: True resolves symbolic links before the folders are compared, except on a disk that
            hangs. False reads no disk.

    Raises:
        SchemaError: a URL is invalid, there are too many, two of them name the same site, or the
            folders of a replica and the log contain each other.
    """
    if isinstance(urls, str) or not isinstance(urls, Sequence):
        raise SchemaError(f"replicas={urls!r:.80} is not a list", hint=f"pass a list; {_FORM}")
    if len(urls) > _URLS_MAX:
        raise SchemaError(f"{len(urls)} replicas are more than {_URLS_MAX}", hint="name fewer")
    sites: dict[tuple[str, str, str], ReplicaAddress] = {}
    addresses = list(map(parse_address, urls))
    real = _followed(addresses) if look else {}
    log_path = os.path.realpath(log) if look else os.path.abspath(log)

    def real_of(path: str) -> str:
        return real.get(path) or os.path.abspath(path)

    for each in addresses:
        same = each.site(real_of)
        if same in sites:
            raise SchemaError(
                f"'{sites[same].url}' and '{each.url}' are the same location",
                hint="list it once: two copies in one location are lost together",
            )
        if each.kind == "file" and os.path.commonpath((same[-1], log_path)) in (same[-1], log_path):
            raise SchemaError(
                f"'{each.url}' and the log '{log_path}' contain each other",
                hint="use another folder, preferably on another disk",
            )
        sites[same] = each
    return tuple(sites.values())


def _followed(addresses: Iterable[ReplicaAddress]) -> dict[str, str]:
    """Returns the real path of each local folder, except those on a disk that hangs."""
    folders = [(each.url, each.path) for each in addresses if each.kind == "file"]
    answers = call_all(
        [(url, lambda _, path=path: os.path.realpath(path)) for url, path in folders]  # type: ignore[misc]
    )
    return {
        path: answer
        for (_, path), answer in zip(folders, answers, strict=True)
        if isinstance(answer, str)
    }


def checked_quorum(quorum: Any, count: int) -> int:
    """Returns the quorum that makes an epoch safe; None means more than half of `count` replicas.

    Raises:
        SchemaError: the quorum is not a number from 1 to `count`.
    """
    if quorum is None:
        return count // 2 + 1
    if not count:
        raise SchemaError(f"quorum={quorum!r} without replicas", hint="list them: replicas=[...]")
    if type(quorum) is not int or not 1 <= quorum <= count:
        raise SchemaError(
            f"quorum={quorum!r} of {count} replica{'s' if count != 1 else ''}",
            hint=f"use 1 to {count}; the log's own disk does not count",
        )
    return quorum
