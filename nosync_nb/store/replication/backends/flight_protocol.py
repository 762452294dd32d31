"""The protocol between a replica server and its clients: tokens, handshake, and messages.

    replica-token       the token of this user's servers and sessions on this machine; created at
                        the first use
    replica-tokens      the tokens of other servers: a line `host:port TOKEN` for each
    replica-roots.pem   root certificates for servers with TLS; by default those of the system

These files are beside the user's key. A token is written in hex, 64 digits or more, and is never
sent. Both sides prove that they have it:

    hello     the client's nonce -> the server's nonce and its proof
    call      mac, nonce, length of the header, header (JSON), data
    answer    mac, 0 and the result; or 1 and an error: kind, message, remedy (JSON)

The session key is derived from the token and both nonces. The server proves at once that it has the
token, and each call and answer carries a keyed digest. So a process that only took the server's
port cannot start a session, and its bytes are rejected. Messages are not encrypted; beyond this
machine they are sent through TLS.

Received bytes are untrusted: sizes are checked before anything is built from them, digests before
anything is decoded, and nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import ssl
from collections.abc import Iterable
from typing import Any, NamedTuple

from nosync_nb.collections.functions import signing
from nosync_nb.errors import (
    CorruptLogError,
    DurabilityError,
    FencedError,
    NosyncError,
    SchemaError,
    TrustError,
)
from nosync_nb.files import secret_files
from nosync_nb.files.filesystem import Files
from nosync_nb.store.replication.address import ReplicaAddress, is_loopback

OWN, KNOWN, ROOTS = "replica-token", "replica-tokens", "replica-roots.pem"
_BYTES_MAX = 1 << 20
_REMEDY = "set NOSYNC_KEY_FILE to a file of yours, whose folder also has the tokens"

NONCE_BYTES = MAC_BYTES = 32
PIECE_BYTES = 1 << 20
"""The maximum number of bytes of a file in one call or answer."""

HEADER_BYTES_MAX = 1 << 16
CALL_BYTES_MAX = MAC_BYTES + NONCE_BYTES + 4 + HEADER_BYTES_MAX + PIECE_BYTES
ANSWER_BYTES_MAX = 64 << 20
"""The maximum size of an answer; the largest one lists all files that the server has of a log."""

_ERROR_CHARACTERS_MAX = 2000
_DONE, _FAILED = b"\0", b"\1"
_ERRORS: dict[str, type[NosyncError]] = {
    each.kind: each
    for each in (CorruptLogError, DurabilityError, FencedError, SchemaError, TrustError)
}


def server_token(files: Files) -> bytes:
    """Returns the token of this user on this machine; the first call creates it.

    Raises:
        TrustError: other users can read the token, or it is damaged.
    """
    path = _secret_path(OWN)
    if not files.exists(path):
        secret_files.create_secret_file(files, path, "token", _REMEDY)
    secret_files.check_folder(files, os.path.dirname(path), "token", _REMEDY)
    return client_token(files, path)


def client_token(files: Files, path: str) -> bytes:
    """Returns the token in a file that contains nothing else.

    Raises:
        TrustError: other users can read the file, or it does not contain a token.
        DurabilityError: the file cannot be read.
    """
    return secret_files.read_secret(
        files,
        path,
        "token",
        "write 64 hex digits, from `openssl rand -hex 32`, and give them to the clients",
    )


def token_for(files: Files, address: ReplicaAddress) -> bytes:
    """Returns the token of a server; by default this user's own for a server on this machine.

    Raises:
        TrustError: other users can read the file, or its entry for the server is not a token.
        DurabilityError: the file has no entry for a server on another machine.
    """
    path = _secret_path(KNOWN)
    if files.exists(path):
        secret_files.check_secret_file(files, path, "tokens")
        for line in files.read(path, most=_BYTES_MAX).splitlines():
            server, _, token = line.strip().partition(b" ")
            if server == address.host.encode():
                secret = secret_files.decode_secret(token.strip())
                if not secret:
                    raise TrustError(
                        f"'{path}': the entry for '{address.host}' is not a valid token",
                        hint="write the 64 or more hex digits of the server's token file",
                    )
                return secret
    if is_loopback(address.host):
        return server_token(files)
    raise DurabilityError(
        f"there is no token for '{address.host}'",
        hint=f"add a line to '{path}' (mode 600): {address.host} TOKEN",
    )


def root_certificates(files: Files) -> bytes:
    """Returns the trusted root certificates for servers, as PEM.

    Raises:
        DurabilityError: no file with certificates exists, or it cannot be read.
    """
    path = _secret_path(ROOTS)
    if files.exists(path):
        return files.read(path, most=_BYTES_MAX)
    system = ssl.get_default_verify_paths().cafile
    if system is None:
        raise DurabilityError(
            "this system has no certificates to verify servers",
            hint=f"write the certificate of the server's authority to '{path}'",
        )
    return files.read(os.path.realpath(system), most=_BYTES_MAX)


def _secret_path(name: str) -> str:
    return os.path.join(os.path.dirname(signing.key_path()), name)


class UnauthenticatedError(Exception):
    """Received bytes were not signed with the token, or not for this session."""


class ClientCall(NamedTuple):
    """A call of a client, after its digest was verified."""

    nonce: bytes
    key: bytes
    mac: bytes
    header: dict[str, Any]
    data: bytes


class ServerHandshake:
    """The server's side of the handshake; it stores nothing about individual clients."""

    def __init__(self, token: bytes) -> None:
        self._token, self._start_secret = token, secrets.token_bytes(NONCE_BYTES)

    def hello(self, nonce: bytes) -> bytes:
        """Returns the answer to a client's nonce: the server's nonce and its proof.

        Raises:
            UnauthenticatedError: the nonce has a wrong length.
        """
        if len(nonce) != NONCE_BYTES:
            raise UnauthenticatedError("the nonce has an invalid length")
        server_nonce = self._nonce(nonce)
        return server_nonce + _proof(self._token, nonce, server_nonce)

    def opened(self, body: bytes) -> ClientCall:
        """Verifies and decodes a call.

        Raises:
            UnauthenticatedError: the call is malformed, or was signed with another token or for a
                session from before the server's restart.
        """
        if not MAC_BYTES + NONCE_BYTES + 4 <= len(body) <= CALL_BYTES_MAX:
            raise UnauthenticatedError("the call has an invalid length")
        mac, rest = body[:MAC_BYTES], memoryview(body)[MAC_BYTES:]
        nonce = bytes(rest[:NONCE_BYTES])
        key = _session_key(self._token, nonce, self._nonce(nonce))
        if not hmac.compare_digest(mac, _mac(key, b"call", rest)):
            raise UnauthenticatedError("the call was not signed with this token")
        start = NONCE_BYTES + 4
        size = int.from_bytes(rest[NONCE_BYTES:start], "big")
        if size > min(HEADER_BYTES_MAX, len(rest) - start):
            raise UnauthenticatedError("the header is longer than the call")
        try:
            header = json.loads(bytes(rest[start : start + size]))
        except (ValueError, RecursionError) as error:
            raise UnauthenticatedError("the header is not JSON") from error
        if not isinstance(header, dict):
            raise UnauthenticatedError("the header is not a JSON object")
        return ClientCall(nonce, key, mac, header, bytes(rest[start + size :]))

    def _nonce(self, client_nonce: bytes) -> bytes:
        """Derives the server's nonce from a client's; it differs after each start of the server."""
        return hashlib.blake2b(
            client_nonce, key=self._start_secret, digest_size=NONCE_BYTES
        ).digest()


class ClientHandshake:
    """The client's side of the handshake: its nonce, and the key once the server is verified."""

    def __init__(self, token: bytes) -> None:
        self._token = token
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self._key = b""

    def proved(self, answer: bytes) -> bool:
        """Returns True if the answer to the nonce proves that the server has the token."""
        server_nonce = answer[:NONCE_BYTES]
        if not hmac.compare_digest(
            answer, server_nonce + _proof(self._token, self.nonce, server_nonce)
        ):
            return False
        self._key = _session_key(self._token, self.nonce, server_nonce)
        return True

    def call(self, header: dict[str, Any], data: bytes) -> bytes:
        """Encodes and signs a call."""
        encoded = json.dumps(header).encode()
        assert len(encoded) <= HEADER_BYTES_MAX
        assert len(data) <= PIECE_BYTES
        rest = b"".join((self.nonce, len(encoded).to_bytes(4, "big"), encoded, data))
        return _mac(self._key, b"call", rest) + rest

    def read(self, call: bytes, answer: bytes) -> bytes:
        """Returns the result in the answer to a call.

        Raises:
            UnauthenticatedError: the answer was not signed by the verified server.
            NosyncError: the error that the server reports.
        """
        mac, body = answer[:MAC_BYTES], answer[MAC_BYTES:]
        if not hmac.compare_digest(mac, _mac(self._key, b"answer", call[:MAC_BYTES] + body)):
            raise UnauthenticatedError("the answer was not signed with this token")
        if body[:1] == _DONE:
            return body[1:]
        kind, message, hint = json.loads(body[1:])
        raise _ERRORS.get(kind, DurabilityError)(message, hint=hint)


def check_answer(call: ClientCall, answer: bytes | NosyncError) -> list[bytes]:
    """Encodes and signs an answer; returns it in pieces that fit into a message."""
    if isinstance(answer, NosyncError):
        texts = [answer.kind, str(answer), answer.hint]
        short = [text and text[:_ERROR_CHARACTERS_MAX] for text in texts]
        answer = _FAILED + json.dumps(short).encode()
    else:
        answer = _DONE + answer
    whole = _mac(call.key, b"answer", call.mac + answer) + answer
    return [whole[at : at + PIECE_BYTES] for at in range(0, len(whole), PIECE_BYTES)]


def joined_bytes(pieces: Iterable[bytes]) -> bytes:
    """Joins the pieces of an answer.

    Raises:
        UnauthenticatedError: the answer is longer than `ANSWER_BYTES_MAX`.
    """
    whole = bytearray()
    for piece in pieces:
        whole += piece
        if len(whole) > ANSWER_BYTES_MAX:
            raise UnauthenticatedError("the answer is too long")
    return bytes(whole)


def _proof(token: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    return _mac(_token_key(token), b"proof", client_nonce + server_nonce)


def _session_key(token: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    return _mac(_token_key(token), b"session", client_nonce + server_nonce)


def _token_key(token: bytes) -> bytes:
    """Derives a key of fixed length from a token."""
    return hashlib.blake2b(token, digest_size=32, person=b"nosync replica").digest()


def _mac(key: bytes, purpose: bytes, data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, key=key, digest_size=MAC_BYTES, person=purpose).digest()
