"""Wire: what a replica server and its clients say to each other, as bytes.

    hello     the client's nonce -> the server's nonce and its proof
    call      mac, nonce, length of the header, header (JSON), data
    answer    mac, 0 and what was asked for; or 1 and an error: kind, message, remedy (JSON)

Both have a token, which is never sent. A key for the session is made of it and of both nonces; the
server proves at once that it has the token, and each call and each answer carries a keyed digest.
So no session begins with a process that only took the server's port, and nothing is believed of it.
What is said can be read on the way: beyond this machine it goes through TLS.

Bytes of the other side are data: sizes are checked before anything is made of them, a digest before
anything is decoded, and nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable
from typing import Any, NamedTuple

from nosync_nb.errors import (
    CorruptLogError,
    DurabilityError,
    FencedError,
    NosyncError,
    SchemaError,
    TrustError,
)

NONCE_BYTES = MAC_BYTES = 32
PIECE_BYTES = 1 << 20
"""The most data of a file in a call or an answer."""

HEADER_BYTES_MAX = 1 << 16
CALL_BYTES_MAX = MAC_BYTES + NONCE_BYTES + 4 + HEADER_BYTES_MAX + PIECE_BYTES
ANSWER_BYTES_MAX = 64 << 20
"""The most that a server says: what it holds of a log, by name."""

_ERROR_CHARACTERS_MAX = 2000
_DONE, _FAILED = b"\0", b"\1"
_ERRORS: dict[str, type[NosyncError]] = {
    each.kind: each
    for each in (CorruptLogError, DurabilityError, FencedError, SchemaError, TrustError)
}


class UnauthenticatedError(Exception):
    """Bytes that were not made by who has the token, for this session."""


class ClientCall(NamedTuple):
    """What a client asks, after its digest was found right."""

    nonce: bytes
    key: bytes
    mac: bytes
    header: dict[str, Any]
    data: bytes


class ServerHandshake:
    """The server's part in a session's beginning. It remembers nothing of any client."""

    def __init__(self, token: bytes) -> None:
        self._token, self._start = token, secrets.token_bytes(NONCE_BYTES)

    def hello(self, nonce: bytes) -> bytes:
        """Answers a client's nonce.

        Raises:
            ForeignError: it is none.
        """
        if len(nonce) != NONCE_BYTES:
            raise UnauthenticatedError("no nonce")
        own = self._nonce(nonce)
        return own + _proof(self._token, nonce, own)

    def opened(self, body: bytes) -> ClientCall:
        """Takes a call apart.

        Raises:
            ForeignError: it was made with another token, before the server was started again, or
                is no call.
        """
        if not MAC_BYTES + NONCE_BYTES + 4 <= len(body) <= CALL_BYTES_MAX:
            raise UnauthenticatedError("a call of no size of one")
        mac, rest = body[:MAC_BYTES], memoryview(body)[MAC_BYTES:]
        nonce = bytes(rest[:NONCE_BYTES])
        key = _session_key(self._token, nonce, self._nonce(nonce))
        if not hmac.compare_digest(mac, _mac(key, b"call", rest)):
            raise UnauthenticatedError("a digest that the token does not make")
        start = NONCE_BYTES + 4
        size = int.from_bytes(rest[NONCE_BYTES:start], "big")
        if size > min(HEADER_BYTES_MAX, len(rest) - start):
            raise UnauthenticatedError("a header beyond the call")
        try:
            header = json.loads(bytes(rest[start : start + size]))
        except (ValueError, RecursionError) as error:
            raise UnauthenticatedError("a header that is no JSON") from error
        if not isinstance(header, dict):
            raise UnauthenticatedError("a header of no names")
        return ClientCall(nonce, key, mac, header, bytes(rest[start + size :]))

    def _nonce(self, theirs: bytes) -> bytes:
        """The server's nonce for a client's; another one after each start."""
        return hashlib.blake2b(theirs, key=self._start, digest_size=NONCE_BYTES).digest()


class ClientHandshake:
    """A client's part: its nonce, and the key after the server has proved itself."""

    def __init__(self, token: bytes) -> None:
        self._token = token
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self._key = b""

    def proved(self, answer: bytes) -> bool:
        """Whether an answer to the nonce is of a server that has the same token."""
        own = answer[:NONCE_BYTES]
        if not hmac.compare_digest(answer, own + _proof(self._token, self.nonce, own)):
            return False
        self._key = _session_key(self._token, self.nonce, own)
        return True

    def call(self, header: dict[str, Any], data: bytes) -> bytes:
        """Returns the bytes of a call."""
        said = json.dumps(header).encode()
        assert len(said) <= HEADER_BYTES_MAX
        assert len(data) <= PIECE_BYTES
        rest = b"".join((self.nonce, len(said).to_bytes(4, "big"), said, data))
        return _mac(self._key, b"call", rest) + rest

    def read(self, call: bytes, answer: bytes) -> bytes:
        """Returns what the answer to a call says.

        Raises:
            ForeignError: it is not of the server that has proved itself.
            NosyncError: the error that the server gave.
        """
        mac, said = answer[:MAC_BYTES], answer[MAC_BYTES:]
        if not hmac.compare_digest(mac, _mac(self._key, b"answer", call[:MAC_BYTES] + said)):
            raise UnauthenticatedError("an answer that the token does not make")
        if said[:1] == _DONE:
            return said[1:]
        kind, message, hint = json.loads(said[1:])
        raise _ERRORS.get(kind, DurabilityError)(message, hint=hint)


def check_answer(call: ClientCall, said: bytes | NosyncError) -> list[bytes]:
    """Returns the bytes of an answer, in pieces that a message can carry."""
    if isinstance(said, NosyncError):
        texts = [said.kind, str(said), said.hint]
        short = [text and text[:_ERROR_CHARACTERS_MAX] for text in texts]
        said = _FAILED + json.dumps(short).encode()
    else:
        said = _DONE + said
    whole = _mac(call.key, b"answer", call.mac + said) + said
    return [whole[at : at + PIECE_BYTES] for at in range(0, len(whole), PIECE_BYTES)]


def joined_bytes(pieces: Iterable[bytes]) -> bytes:
    """Puts an answer together; takes no more than one may have.

    Raises:
        ForeignError: it is longer.
    """
    whole = bytearray()
    for piece in pieces:
        whole += piece
        if len(whole) > ANSWER_BYTES_MAX:
            raise UnauthenticatedError("an answer without end")
    return bytes(whole)


def _proof(token: bytes, theirs: bytes, own: bytes) -> bytes:
    return _mac(_hashed(token), b"proof", theirs + own)


def _session_key(token: bytes, theirs: bytes, own: bytes) -> bytes:
    return _mac(_hashed(token), b"session", theirs + own)


def _hashed(token: bytes) -> bytes:
    """A token of any length as a key."""
    return hashlib.blake2b(token, digest_size=32, person=b"nosync replica").digest()


def _mac(key: bytes, purpose: bytes, data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, key=key, digest_size=MAC_BYTES, person=purpose).digest()
