"""The copy of a log at a replica server (flight_server.py), in another process or machine.

No call waits longer than several seconds, plus the time to transfer its bytes. Any failure of a
call closes the connection. The next call opens another one, on which the server accepts no write
until the owner has renewed its fencing record.

Up to `PIECE_BYTES` of appended bytes are buffered and sent with the next `sync`. So a small epoch
takes one round trip.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import closing, suppress
from typing import Any

from nosync_nb.errors import CorruptLogError, DurabilityError, TrustError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.replication import protocol, remote_call
from nosync_nb.store.replication.address import ReplicaAddress, is_loopback
from nosync_nb.store.replication.backends import flight_protocol
from nosync_nb.store.replication.backends.flight_protocol import (
    PIECE_BYTES,
    ClientHandshake,
    UnauthenticatedError,
    joined_bytes,
)
from nosync_nb.store.replication.protocol import FencingGrant, LogName, OwnerTerm, ReplicaHoldings
from nosync_nb.store.replication.remote_call import Beat

_NAMES_BYTES = 1 << 20
_DIGEST_BYTES_PER_S = 10e6
_MESSAGE_BYTES_MAX = 4 << 20
_NAMES_MAX = 256
_SHOWN_MAX = 200
_PLAIN_WORDS = (
    ("Connection refused", "nothing listens there"),
    ("resolv", "its host name cannot be resolved"),
    ("lookup failed", "its host name cannot be resolved"),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is signed by an unknown authority"),
    ("andshake failed", "the server there does not use TLS"),
    ("Failed parsing HTTP/2", "the server there is not a replica server"),
    ("unreachable", "there is no route to it"),
    ("No route to host", "there is no route to it"),
    ("reset by peer", "the connection was cut"),
    ("Socket closed", "the connection was cut"),
    ("imed out", "it does not answer"),
)
_JARGON = re.compile(r"Flight [a-z ]+ error, with message: |\b[A-Z_]{3,}: |ipv[46]:\S+: ")
_TLS = "grpc+tls"


class ServerConnection:
    """A connection to a server, opened by the first call; all calls come from one thread."""

    def __init__(self, address: ReplicaAddress, files: Files) -> None:
        self._address, self._files = address, files
        self._client: Any = None
        self._handshake: ClientHandshake | None = None

    def call(
        self, header: dict[str, Any], data: bytes = b"", *, more_bytes: int = 0, more_s: float = 0.0
    ) -> bytes:
        """Returns the server's answer.

        Args:
            more_bytes: the expected size of the answer in bytes, which extends the time limit.
            more_s: additional seconds that the server may take.

        Raises:
            DurabilityError: the server cannot be reached, is slow, or has another token.
            NosyncError: the error that the server reports.
        """
        import pyarrow as pa
        import pyarrow.flight as flight

        seconds = remote_call.SERVER.limit_s(len(data) + more_bytes) + more_s
        try:
            greeting = self._handshake or self._connect()
            body = greeting.call(header, data)
            return greeting.read(body, self._action("call", body, seconds))
        except (flight.FlightError, pa.ArrowException, UnauthenticatedError) as error:
            self.close()
            raise self._call_error(error, seconds) from error

    def close(self) -> None:
        """Closes the connection."""
        client, self._client, self._handshake = self._client, None, None
        if client is not None:
            with suppress(Exception):
                client.close()

    def _connect(self) -> ClientHandshake:
        """Connects, and verifies that the server has the token."""
        import pyarrow.flight as flight

        kind, host = self._address.kind, self._address.host
        try:
            token = flight_protocol.token_for(self._files, self._address)
            roots = flight_protocol.root_certificates(self._files) if kind == _TLS else None
        except TrustError as error:
            raise DurabilityError(str(error), hint=error.hint) from error
        options: list[tuple[str, int]] = [("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX)]
        if is_loopback(host):
            options.append(("grpc.enable_http_proxy", 0))  # because no proxy leads to this machine
        self._client = flight.FlightClient(
            f"{kind}://{host}", tls_root_certs=roots, generic_options=options
        )
        greeting = ClientHandshake(token)
        if not greeting.proved(self._action("hello", greeting.nonce, remote_call.SERVER.silent_s)):
            self.close()
            raise DurabilityError(
                f"'{self._address.url}' does not accept this user's token",
                hint=f"add a line `{host} TOKEN` with the server's token to"
                f" '{flight_protocol.KNOWN}' beside the key",
            )
        self._handshake = greeting
        return greeting

    def _action(self, what: str, body: bytes, seconds: float) -> bytes:
        import pyarrow.flight as flight

        action = flight.Action(what, body)
        found = self._client.do_action(action, flight.FlightCallOptions(timeout=seconds))
        return joined_bytes(each.body.to_pybytes() for each in found)

    def _call_error(self, error: Exception, seconds: float) -> DurabilityError:
        """Returns the error to raise for a failed call, in terms that users know."""
        import pyarrow.flight as flight

        url = self._address.url
        if isinstance(error, flight.FlightTimedOutError):
            return DurabilityError(
                f"'{url}' did not answer within {seconds:.3g} s",
                hint="check that the server runs and that the network reaches it",
            )
        if isinstance(error, flight.FlightUnauthenticatedError | UnauthenticatedError):
            return DurabilityError(
                f"'{url}' was restarted, or is not a replica server with this token",
                hint="NoSync asks again; if this persists, check the server",
            )
        why = plain(str(error))
        if isinstance(error, flight.FlightUnavailableError):
            return DurabilityError(
                f"'{url}' cannot be reached: {why}",
                hint="check that the server runs there: python -m nosync_nb.replica DIR --port P",
            )
        return DurabilityError(
            f"'{url}' does not answer as a replica server: {why}", hint="check the server"
        )


class FlightSite:
    """A replica server; see `ReplicaSite`."""

    def __init__(self, address: ReplicaAddress, files: Files) -> None:
        self._address, self._files = address, files

    def prepare(self) -> bool:
        """Does nothing: the server created its folder when it was started."""
        return True

    def logs(self, _beat: Beat = lambda: None) -> dict[bytes, FencingGrant]:
        """Returns the grants of the logs that the site holds copies of, by log id."""
        with closing(ServerConnection(self._address, self._files)) as line:
            logs = decoded(line.call({"do": "logs"}), self._address.url)
        try:
            return {
                bytes.fromhex(log_id): protocol.decode_grant(text.encode(), self._address.url)
                for log_id, text in logs.items()
            }
        except (ValueError, AttributeError, TypeError) as error:
            raise malformed_reply_error(self._address.url) from error

    def replica(self, log_id: bytes) -> FlightReplica:
        """Returns the copy of one log, which need not exist yet."""
        return FlightReplica(
            ServerConnection(self._address, self._files), self._address.url, log_id
        )


class FlightReplica:
    """The copy of one log at a server; see `Replica`.

    Args:
        line: a connection to the server that only this copy uses.
        url: the URL of the server, for error messages.
    """

    def __init__(self, line: ServerConnection, url: str, log_id: bytes) -> None:
        self._connection, self._url, self._log_hex = line, url, log_id.hex()
        self._buffered: tuple[OwnerTerm, str, int, bytes] | None = None  # buffered bytes to append

    @property
    def folder(self) -> None:
        """Always None, because the files belong to the server, even if it is on this machine."""
        return None

    def promised(self) -> OwnerTerm | None:
        """Returns the term whose writes the copy accepts; None if it has no grant."""
        reply = self._call("promised")
        return protocol.decode_grant(reply, self._url).term if reply else None

    def promise(self, term: OwnerTerm, name: LogName) -> ReplicaHoldings:
        """Makes the copy reject all writes of earlier terms, durably; returns its files."""
        self._buffered = None
        grant = protocol.encode_grant(FencingGrant(term, "", name))
        # The answer lists the files of the copy.
        return self._holdings(self._call("promise", grant, more_bytes=_NAMES_BYTES))

    def held(self) -> ReplicaHoldings:
        """Returns the files that the copy holds."""
        self._flush()
        return self._holdings(self._call("held", more_bytes=_NAMES_BYTES))

    def store(self, term: OwnerTerm, name: str, offset: int, data: bytes, *, last: bool) -> None:
        """Writes the next piece of a new file, which appears, durably, with its last piece."""
        self._flush()
        self._call("store", data, term=term, name=name, offset=offset, last=last)

    def append(self, term: OwnerTerm, name: str, offset: int, data: bytes) -> None:
        """Appends to a segment at its end; the next `sync` makes the bytes durable."""
        pending = self._buffered
        if pending is not None and pending[:2] == (term, name):
            buffered = pending[3]
            if pending[2] + len(buffered) == offset and len(buffered) + len(data) <= PIECE_BYTES:
                self._buffered = term, name, pending[2], buffered + data
                return
        self._flush()
        self._buffered = term, name, offset, data

    def sync(self, term: OwnerTerm, seq: int | None) -> None:
        """Makes appended bytes durable, then checks that the term is still accepted."""
        if self._buffered is not None and self._buffered[0] == term:
            _, name, offset, data = self._buffered
            self._buffered = None
            self._call("sync", data, term=term, seq=seq, name=name, offset=offset)
        else:
            self._flush()
            self._call("sync", term=term, seq=seq)

    def acknowledged(self) -> int:
        """Returns the number of the last acknowledged frame; 0 if no frame was acknowledged."""
        reply = decoded(self._call("acknowledged"), self._url)
        if type(reply) is not int or reply < 0:
            raise malformed_reply_error(self._url)
        return reply

    def digest(self, name: str, size: int) -> bytes:
        """Returns the digest of the first `size` bytes of a file."""
        self._flush()
        return self._call("digest", name=name, size=size, more_s=size / _DIGEST_BYTES_PER_S)

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Returns `size` bytes of a file from an offset; fewer only at the end of the file."""
        self._flush()
        whole = bytearray()
        while len(whole) < size:
            piece = min(PIECE_BYTES, size - len(whole))
            at = offset + len(whole)
            data = self._call("read", name=name, offset=at, size=piece, more_bytes=piece)
            if len(data) > piece:
                raise malformed_reply_error(self._url)
            whole += data
            if len(data) < piece:
                break
        return bytes(whole)

    def discard(self, term: OwnerTerm, names: Iterable[str]) -> None:
        """Deletes files of the log."""
        self._flush()
        all_ = list(names)
        for at in range(0, len(all_), _NAMES_MAX):
            self._call("discard", term=term, names=all_[at : at + _NAMES_MAX])

    def close(self) -> None:
        """Closes the connection; buffered bytes are dropped."""
        self._buffered = None
        self._connection.close()

    def _flush(self) -> None:
        if self._buffered is not None:
            (term, name, offset, data), self._buffered = self._buffered, None
            self._call("append", data, term=term, name=name, offset=offset)

    def _call(
        self,
        what: str,
        data: bytes = b"",
        *,
        more_bytes: int = 0,
        more_s: float = 0.0,
        **fields: Any,
    ) -> bytes:
        header = {"do": what, "log": self._log_hex, **fields}
        try:
            return self._connection.call(header, data, more_bytes=more_bytes, more_s=more_s)
        except BaseException:
            self._buffered = None  # the shipper starts over
            raise

    def _holdings(self, reply: bytes) -> ReplicaHoldings:
        match decoded(reply, self._url):
            case [str(incarnation), dict(files)]:
                if all(type(size) is int and size >= 0 for size in files.values()):
                    return ReplicaHoldings(incarnation, files)
        raise malformed_reply_error(self._url)


def plain(message: str) -> str:
    """Returns plain words for a known transport error, or the message without its jargon."""
    for sign, words in _PLAIN_WORDS:
        if sign in message:
            return words
    why = message.partition(". Detail:")[0].rpartition("last error: ")[2]
    return _JARGON.sub("", why)[:_SHOWN_MAX]


def decoded(reply: bytes, url: str) -> Any:
    """Decodes JSON that a server sent.

    Raises:
        CorruptLogError: the reply is malformed.
    """
    try:
        return json.loads(reply)
    except (ValueError, RecursionError) as error:
        raise malformed_reply_error(url) from error


def malformed_reply_error(url: str) -> CorruptLogError:
    """Returns the error for a malformed answer."""
    return CorruptLogError(f"'{url}' sent an invalid answer", hint="update the server")
