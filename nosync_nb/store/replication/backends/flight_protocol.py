"""Tokens: the secrets by which a replica server and who ships to it know each other.

    replica-token       of this user's servers and sessions on this machine; made at first use
    replica-tokens      of servers elsewhere: a line `host:port TOKEN` for each
    replica-roots.pem   certificates that sign those of such servers; without it the system's

They lie beside the user's key. A token is written in hex, 64 digits or more, and is never sent: who
has it proves so (see `wire`).
"""

from __future__ import annotations

import os
import ssl

from nosync_nb.collections.functions import signing
from nosync_nb.errors import DurabilityError, TrustError
from nosync_nb.files import secret_files
from nosync_nb.files.filesystem import Files
from nosync_nb.store.replication.address import ReplicaAddress, is_loopback

OWN, KNOWN, ROOTS = "replica-token", "replica-tokens", "replica-roots.pem"
_BYTES_MAX = 1 << 20
_REMEDY = "set NOSYNC_KEY_FILE to a file of yours: tokens lie beside it"


def server_token(files: Files) -> bytes:
    """Returns the token of this user on this machine; the first call ever makes it.

    Raises:
        TrustError: others can read it, or it is damaged.
    """
    path = _beside(OWN)
    if not files.exists(path):
        secret_files.create_secret_file(files, path, "token", _REMEDY)
    secret_files.check_folder(files, os.path.dirname(path), "token", _REMEDY)
    return client_token(files, path)


def client_token(files: Files, path: str) -> bytes:
    """Returns the token in a file that holds nothing else.

    Raises:
        TrustError: others can read it, or it is none.
        DurabilityError: it cannot be read.
    """
    return secret_files.read_secret(
        files, path, "token", "write 64 hex digits: `openssl rand -hex 32`; the clients need them"
    )


def token_for(files: Files, address: ReplicaAddress) -> bytes:
    """Returns the token of a server.

    Raises:
        TrustError: others can read the file, or what it says of the server is no token.
        DurabilityError: none is known.
    """
    path = _beside(KNOWN)
    if files.exists(path):
        secret_files.check_secret_file(files, path, "tokens")
        for line in files.read(path, most=_BYTES_MAX).splitlines():
            server, _, token = line.strip().partition(b" ")
            if server == address.host.encode():
                known = secret_files.decode_secret(token.strip())
                if not known:
                    raise TrustError(
                        f"'{path}': what stands behind '{address.host}' is no token",
                        hint="it has 64 hex digits or more, those of the server's token file",
                    )
                return known
    if is_loopback(address.host):
        return server_token(files)
    raise DurabilityError(
        f"no token is known for '{address.host}'",
        hint=f"write a line into '{path}' (mode 600): {address.host} TOKEN",
    )


def root_certificates(files: Files) -> bytes:
    """Returns the certificates, as PEM, by one of which a server's must be signed.

    Raises:
        DurabilityError: there are none, or they cannot be read.
    """
    path = _beside(ROOTS)
    if files.exists(path):
        return files.read(path, most=_BYTES_MAX)
    system = ssl.get_default_verify_paths().cafile
    if system is None:
        raise DurabilityError(
            "this system has no certificates to know servers by",
            hint=f"put the one that signed the server's into '{path}'",
        )
    return files.read(os.path.realpath(system), most=_BYTES_MAX)


def _beside(name: str) -> str:
    return os.path.join(os.path.dirname(signing.key_path()), name)
