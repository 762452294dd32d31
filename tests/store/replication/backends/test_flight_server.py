"""Replica servers: real processes, with refusals, losses and restores."""

from __future__ import annotations

import http.server
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from checks.damaged_bytes import flipped
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from internals import log_of, services_of
from machines.replica_servers import ReplicaServer

import nosync_nb
from nosync_nb import Session
from nosync_nb.errors import DurabilityError, FencedError, NosyncError, SchemaError, TrustError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.log import segments
from nosync_nb.store.replication import consistency, protocol, remote_call
from nosync_nb.store.replication.address import parse_address
from nosync_nb.store.replication.backends import (
    flight_client,
    flight_protocol,
    flight_server,
)
from nosync_nb.store.replication.backends.flight_client import FlightReplica, ServerConnection
from nosync_nb.store.replication.backends.flight_server import LOGS_MAX, Connections, ServerCopies
from nosync_nb.store.replication.backends.folder import FolderReplica
from nosync_nb.store.replication.endpoints import connect_site
from nosync_nb.store.replication.protocol import FencingGrant, LogName, OwnerTerm
from nosync_nb.store.replication.remote_call import CallPolicy

WAIT_S = 120.0
NAME = LogName("/logs/x.nosync", "me")
TERM = OwnerTerm(1, "me")
ID = bytes(range(16))
GRANT = protocol.encode_grant(FencingGrant(TERM, "", NAME))
PART = "log1-1-g3-ab.arrow"
SEGMENT = segments.file_name(1, 1)


@pytest.fixture(scope="module", autouse=True)
def own_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    key = tmp_path_factory.mktemp("keys") / "key"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOSYNC_KEY_FILE", str(key))
        yield key


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaServer]:
    """A server that all tests share."""
    with ReplicaServer(tmp_path_factory.mktemp("served") / "copies") as running:
        yield running


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ReplicaServer]]:
    """Three servers that each test leaves running."""
    folder = tmp_path_factory.mktemp("three")
    with ExitStack() as ended:
        yield [ended.enter_context(ReplicaServer(folder / str(i))) for i in range(3)]


@pytest.fixture
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits the timeout of clients in this process to half a second."""
    monkeypatch.setattr(remote_call, "SERVER", CallPolicy(silent_s=0.5))


def replica_at(url: str, log_id: bytes | None = None) -> FlightReplica:
    """The copy of a log at a server."""
    replica = connect_site(parse_address(url), Files()).replica(log_id or os.urandom(16))
    assert isinstance(replica, FlightReplica)
    return replica


def failure(url: str) -> DurabilityError:
    """The error of a client of that URL."""
    replica = replica_at(url)
    try:
        with pytest.raises(DurabilityError) as caught:
            replica.promised()
    finally:
        replica.close()
    assert caught.value.hint
    return caught.value


# -- access and trust ------------------------------------------------------------------------------


@pytest.mark.fault(44)
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("grpc://127.0.0.1", "no port"),
        ("grpc://:7461", "no port"),
        ("grpc://127.0.0.1:99999", "no port"),
        ("grpc://127.0.0.1:7461/folder", "no port"),
        ("grpc://host name:7461", "no port"),
        ("grpc://me:secret@127.0.0.1:7461", "not contain a user or password"),
        ("grpc://far.example:7461", "would not be encrypted"),
        ("grpc://10.0.0.7:7461", "would not be encrypted"),
    ],
)
def test_invalid_server_url_is_refused_with_hint(url: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message) as caught:
        parse_address(url)
    assert caught.value.hint
    assert "secret" not in str(caught.value)


def test_server_url_is_canonical() -> None:
    hosts = {
        parse_address(f"grpc://{name}:7461/").host
        for name in ("localhost", "LOCALHOST", "127.0.0.1")
    }
    assert hosts == {"127.0.0.1:7461"}
    assert parse_address("grpc://[::1]:7461").host == "[::1]:7461"
    assert parse_address("grpc+tls://far.example:7461").host == "far.example:7461"
    with pytest.raises(SchemaError, match="the same location"):
        nosync_nb.open("/nowhere", replicas=["grpc://localhost:1", "grpc://127.0.0.1:1"])


@pytest.mark.fault(44)
def test_client_with_other_token_is_refused(
    running: ReplicaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "key"))
    error = failure(running.url)
    assert "does not accept this user's token" in str(error)
    assert flight_protocol.KNOWN in str(error.hint)
    own = (tmp_path / flight_protocol.OWN).read_bytes()
    assert (tmp_path / flight_protocol.OWN).stat().st_mode & 0o777 == 0o600
    (tmp_path / flight_protocol.OWN).chmod(0o644)
    assert "other users can read it" in str(failure(running.url))
    (tmp_path / flight_protocol.OWN).chmod(0o600)
    known = tmp_path / flight_protocol.KNOWN
    given_there = Path(os.environ["NOSYNC_KEY_FILE"]).parent
    assert given_there == tmp_path
    known.write_bytes(b"# servers\n" + parse_address(running.url).host.encode() + b" nonsense\n")
    known.chmod(0o600)
    assert "is not a valid token" in str(failure(running.url))
    known.write_bytes(parse_address(running.url).host.encode() + b" " + own)
    assert "does not accept this user's token" in str(failure(running.url))


def test_token_is_found_by_host_and_port(
    own_key: Path, running: ReplicaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = flight_protocol.server_token(Files())
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "key"))
    known = tmp_path / flight_protocol.KNOWN
    known.write_text(f"other:1 {'00' * 32}\n{parse_address(running.url).host}  {token.hex()}\n")
    known.chmod(0o600)
    replica = replica_at(running.url)
    assert replica.promised() is None
    replica.close()
    error = failure("grpc+tls://far.example:7461")
    assert "there is no token for 'far.example:7461'" in str(error)
    assert str(known) in str(error.hint)
    known.chmod(0o640)
    with pytest.raises(TrustError, match="other users can read it"):
        flight_protocol.token_for(Files(), parse_address(running.url))


class Impostor(flight.FlightServerBase):  # type: ignore[misc]
    """A process that took the port of a server, and records its calls."""

    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.calls: list[tuple[str, bytes]] = []

    def do_action(self, _context: Any, action: Any) -> list[Any]:
        self.calls.append((action.type, action.body.to_pybytes()))
        return [flight.Result(pa.py_buffer(bytes(64)))]


@pytest.mark.fault(44)
def test_impostor_at_server_port_learns_nothing() -> None:
    with Impostor() as impostor:
        replica = replica_at(f"grpc://127.0.0.1:{impostor.port}")
        with pytest.raises(DurabilityError, match="does not accept this user's token"):
            replica.promise(TERM, NAME)
        ((what, nonce),) = impostor.calls
        assert what == "hello"
        assert len(nonce) == flight_protocol.NONCE_BYTES


@pytest.mark.fault(29)
def test_error_of_unreachable_server_is_plain(short_timeout: None) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        assert str(failure(f"grpc://127.0.0.1:{port}")).endswith(": nothing listens there")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        def answer() -> None:
            while True:
                with suppress(OSError), other.accept()[0] as asked:
                    asked.recv(10)
                    asked.sendall(b"HTTP/1.1 200 OK" + bytes(64))
                if other.fileno() < 0:
                    return

        threading.Thread(target=answer, daemon=True).start()
        message = str(failure(f"grpc://127.0.0.1:{port}"))
        assert message.endswith(": the server there is not a replica server")
        other.shutdown(socket.SHUT_RDWR)
    unknown = "Flight returned unavailable error, with message: failed to connect to all addresses;"
    unknown += " last error: UNKNOWN: ipv4:10.0.0.7:99: the cat sleeps. Detail: Unavailable"
    assert flight_client.plain(unknown) == "the cat sleeps"


@pytest.mark.fault(29)
def test_silent_server_is_abandoned(short_timeout: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert "did not answer within 0.5 s" in str(failure(f"grpc://127.0.0.1:{port}"))
    assert "cannot be reached" in str(failure(f"grpc://127.0.0.1:{port}"))


def test_http_server_is_refused(short_timeout: None) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as web:
        thread = threading.Thread(target=web.handle_request)
        thread.start()
        assert "'grpc://127.0.0.1" in str(failure(f"grpc://127.0.0.1:{web.server_port}"))
        web.server_close()
        thread.join()


def test_local_server_is_reached_without_proxy(
    running: ReplicaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "no_grpc_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    replica = replica_at(running.url)
    assert replica.promised() is None
    replica.close()


# -- TLS -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a self-signed certificate of this machine and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl, which makes the certificate")
    folder = tmp_path_factory.mktemp("tls")
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    command = f"{openssl} req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key"
    made = [*command.split(), "-out", "cert", "-addext", names]
    subprocess.run(made, cwd=folder, check=True, capture_output=True)
    (folder / "key").chmod(0o600)
    (folder / "token").write_text(f"{'5a' * 32}\n")
    (folder / "token").chmod(0o600)
    return folder


@pytest.mark.fault(44)
def test_remote_access_requires_tls_and_token(
    certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ("--tls-cert", certificate / "cert", "--tls-key", certificate / "key")
    options = ("--host", "0.0.0.0", "--token-file", certificate / "token", *tls)
    with ReplicaServer(tmp_path / "copies", *options) as beyond:
        url = f"grpc+tls://127.0.0.1:{beyond.port}"
        monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "home" / "key"))
        (tmp_path / "home").mkdir()
        known = tmp_path / "home" / flight_protocol.KNOWN
        known.write_text(f"127.0.0.1:{beyond.port} {'5a' * 32}\n")
        known.chmod(0o600)
        assert "cannot be reached" in str(failure(url))  # its certificate is not trusted
        shutil.copy(certificate / "cert", tmp_path / "home" / flight_protocol.ROOTS)
        replica = replica_at(url)
        assert dict(replica.promise(TERM, NAME).files) == {}
        replica.close()
        assert "'grpc://" in str(failure(f"grpc://127.0.0.1:{beyond.port}"))


@pytest.mark.fault(44)
def test_failed_start_of_server_names_reason(
    running: ReplicaServer,
    certificate: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    open_token, short = tmp_path / "open", tmp_path / "short"
    open_token.write_text(f"{'5a' * 32}\n")
    short.write_text("5a")
    short.chmod(0o600)
    (tmp_path / "writable").mkdir()
    (tmp_path / "writable").chmod(0o777)
    copies, nowhere = str(tmp_path / "copies"), str(tmp_path / "not" / "there")
    tls = ["--tls-cert", str(certificate / "cert"), "--tls-key", str(certificate / "key")]
    open_key = str(shutil.copy(certificate / "key", tmp_path / "key"))
    os.chmod(open_key, 0o644)
    token = ["--token-file", str(certificate / "token")]
    for arguments, message in (
        ([nowhere, "--host", "0.0.0.0"], "reachable from other machines"),
        ([nowhere, "--host", "0.0.0.0", *tls], "reachable from other machines"),
        ([nowhere, "--host", "0.0.0.0", *token], "reachable from other machines"),
        ([nowhere, *tls[:2]], "--tls-cert and --tls-key go together"),
        ([nowhere, *tls[:3], open_key], "other users can read it"),
        ([copies, "--token-file", str(open_token)], "other users can read it"),
        ([copies, "--token-file", str(short)], "damaged"),
        ([copies, "--token-file", str(tmp_path / "none")], "look at"),
        ([nowhere], "does not exist"),
        ([nowhere, "--port", "65535"], "does not exist"),
        ([str(tmp_path / "writable")], "writable by other users"),
        ([str(running.folder)], "another server uses"),
        ([copies, "--port", str(running.port)], "cannot listen"),
    ):
        port = [] if "--port" in arguments else ["--port", "0"]
        assert flight_server.main([*arguments, *port]) == 2, arguments
        output = capfd.readouterr().err
        assert message in output
        assert "Hint: " in output or "look at" in output
    with pytest.raises(SystemExit):
        flight_server.main([copies, "--port", "70000"])


def test_server_stops_on_signal_and_restarts_at_its_port(tmp_path: Path) -> None:
    with ReplicaServer(tmp_path / "copies") as first:
        replica = replica_at(first.url, ID)
        replica.promise(TERM, NAME)
        replica.store(TERM, SEGMENT, 0, b"begin", last=True)
        first.send(signal.SIGTERM)
        assert first.wait() == 0
        with pytest.raises(DurabilityError, match="cannot be reached"):
            replica.sync(TERM, 1)
        first.start()
        with pytest.raises(DurabilityError, match="was replaced by another copy"):
            replica.sync(TERM, 1)
        assert dict(replica.promise(TERM, NAME).files) == {SEGMENT: 5}
        first.kill()
        first.start()
        with pytest.raises(DurabilityError, match="was restarted"):
            replica.sync(TERM, 1)
        assert dict(replica.promise(TERM, NAME).files) == {SEGMENT: 5}
        replica.close()


# -- hostile clients -------------------------------------------------------------------------------


def memory_bytes(pid: int) -> int:
    """The private memory of a process."""
    resident, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[1:3])
    return (resident - shared) * resource.getpagesize()


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes.fromhex("000000040000000000")


@pytest.mark.fault(44)
def test_garbage_at_port_is_harmless(running: ReplicaServer) -> None:
    before = memory_bytes(running.pid)
    random = Random(44)
    frames = [random.randbytes(1 << random.randrange(16)) for _ in range(40)]
    lies = [
        bytes.fromhex("ffffff0000000000010000000000"),
        bytes.fromhex("00000500000000000101ffffff"),
    ]
    for sent in (b"", b"GET / HTTP/1.1\r\n\r\n", *frames, *lies):
        for begin in (b"", PREFACE + SETTINGS):
            connection = socket.create_connection(("127.0.0.1", running.port))
            with connection, suppress(OSError):  # the server closes the connection
                connection.sendall(begin + sent)
    assert memory_bytes(running.pid) - before < 64 << 20
    replica = replica_at(running.url)
    assert replica.promised() is None
    replica.close()


@pytest.mark.fault(44)
def test_unauthenticated_flight_calls_are_refused(running: ReplicaServer) -> None:
    schema = pa.schema([("a", pa.int64())])
    ticket, path = flight.Ticket(b"x"), flight.FlightDescriptor.for_path("x")
    with flight.FlightClient(running.url) as client:
        for what, body in (
            ("call", b""),
            ("call", bytes(200)),
            ("call", bytes(flight_protocol.CALL_BYTES_MAX + 1)),
            ("hello", b""),
            ("hello", bytes(33)),
            ("other", bytes(32)),
        ):
            with pytest.raises(flight.FlightUnauthenticatedError):
                list(client.do_action(flight.Action(what, body)))
        for asked in (
            lambda: list(client.list_flights()),
            lambda: client.do_get(ticket),
            lambda: client.get_flight_info(path),
            lambda: client.do_put(path, schema)[0].close(),
            lambda: list(client.list_actions()),
        ):
            with pytest.raises((NotImplementedError, pa.ArrowException, flight.FlightError)):
                asked()
    replica = replica_at(running.url)
    assert replica.promised() is None
    replica.close()


GROWN = """
import sys
from nosync_nb.store.replication.backends import flight_server
flight_server.MEMORY_BYTES_MAX = 120 << 20
sys.exit(flight_server.main(sys.argv[1:]))
"""


@pytest.mark.fault(44)
def test_flooded_server_restarts_without_loss(
    tmp_path: Path,
) -> None:
    with ReplicaServer(tmp_path / "copies", program=GROWN) as small:
        replica = replica_at(small.url, ID)
        replica.promise(TERM, NAME)
        replica.store(TERM, SEGMENT, 0, b"begin", last=True)
        with flight.FlightClient(small.url) as client:
            flood = flight.Action("call", bytes(128 << 20))
            with pytest.raises((flight.FlightError, pa.ArrowException)):
                list(client.do_action(flood, flight.FlightCallOptions(timeout=WAIT_S)))
        assert small.line().split()[0] == small.url
        ends = time.monotonic() + WAIT_S
        while (
            memory_bytes(small.pid) > 120 << 20
        ):  # gRPC may have repeated the call at the new process
            assert time.monotonic() < ends
        with pytest.raises(DurabilityError):
            replica.sync(TERM, 1)
        assert dict(replica.promise(TERM, NAME).files) == {SEGMENT: 5}
        replica.close()


WORDS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.sampled_from(["../../etc/passwd", "promise", PART, SEGMENT, ID.hex(), "/", "\0", "a" * 300]),
    st.lists(st.one_of(st.integers(), st.text(), st.sampled_from([PART, "../x"]))),
)
ASKED = ["promise", "promised", "held", "store", "append", "sync", "acknowledged", "digest", "read"]


@pytest.mark.fault(44)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_invalid_call_is_refused_and_touches_nothing_else(
    tmp_path: Path, no_disk: None, data: st.DataObject
) -> None:
    folder = tmp_path / "copies"
    folder.mkdir(exist_ok=True)
    copies = ServerCopies(str(folder))
    log = {"log": ID.hex(), "term": [1, "me"]}
    copies.call(b"session", {"do": "promise", **log}, GRANT)
    header = data.draw(st.dictionaries(st.sampled_from(["name", "offset", "size", "seq"]), WORDS))
    other = data.draw(st.dictionaries(st.sampled_from(["log", "term", "last", "names"]), WORDS))
    asked = data.draw(st.sampled_from([*ASKED, "discard", "logs", "nonsense"]))
    body = data.draw(st.one_of(st.just(GRANT), st.binary(max_size=100)))
    with suppress(NosyncError):
        copies.call(b"session", {"do": asked, **log, **header, **other}, body)
    copies.close()
    assert os.listdir(tmp_path) == ["copies"]
    assert len(ServerCopies(str(folder)).call(b"other", {"do": "held", **log}, b"")) > 0
    mine = {"promise", "lock", "acknowledged", "layers", "history"}
    assert {name.split(".")[0] for name in os.listdir(folder / ID.hex())} <= {
        *mine,
        SEGMENT.split(".")[0],
    }


@pytest.mark.fault(44)
def test_tampered_messages_are_refused() -> None:
    token, other = bytes(range(32)), bytes(32)
    greeter, greeting = (
        flight_protocol.ServerHandshake(token),
        flight_protocol.ClientHandshake(token),
    )
    assert not flight_protocol.ClientHandshake(token).proved(
        flight_protocol.ServerHandshake(other).hello(bytes(32))
    )
    assert not greeting.proved(b"")
    assert greeting.proved(greeter.hello(greeting.nonce))
    body = greeting.call({"do": "held"}, b"data")
    call = greeter.opened(body)
    assert (call.header, call.data, call.nonce) == ({"do": "held"}, b"data", greeting.nonce)
    for at in range(len(body)):
        with pytest.raises(flight_protocol.UnauthenticatedError):
            greeter.opened(flipped(body, at))
    for size in range(len(body)):
        with pytest.raises(flight_protocol.UnauthenticatedError):
            greeter.opened(body[:size])
    with pytest.raises(flight_protocol.UnauthenticatedError):  # the server was restarted
        flight_protocol.ServerHandshake(token).opened(body)
    answer = flight_protocol.joined_bytes(flight_protocol.check_answer(call, b"x" * 100))
    assert greeting.read(body, answer) == b"x" * 100
    for at in range(len(answer)):
        with pytest.raises(flight_protocol.UnauthenticatedError):
            greeting.read(body, flipped(answer, at))
    with pytest.raises(flight_protocol.UnauthenticatedError):  # the answer to another call
        greeting.read(greeting.call({"do": "held"}, b"date"), answer)
    fenced = flight_protocol.joined_bytes(
        flight_protocol.check_answer(call, FencedError("taken\x1b", hint="go"))
    )
    with pytest.raises(FencedError, match="taken") as caught:
        greeting.read(body, fenced)
    assert caught.value.hint == "go"


@pytest.mark.fault(44)
def test_server_limits_logs_names_and_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "copies"
    folder.mkdir()
    copies = ServerCopies(str(folder))

    def promise(number: int, data: bytes = GRANT) -> bytes:
        log_id = number.to_bytes(16, "big").hex()
        return copies.call(b"session", {"do": "promise", "log": log_id}, data)

    long = protocol.encode_grant(FencingGrant(TERM, "", LogName("/" * 40_000, "")))
    with pytest.raises(DurabilityError, match="'name'"):
        promise(1, long)
    for number in range(LOGS_MAX):
        (folder / number.to_bytes(16, "big").hex()).mkdir(mode=0o700)
    promise(1)
    with pytest.raises(DurabilityError, match=f"copies of {LOGS_MAX} logs"):
        promise(LOGS_MAX + 1)
    monkeypatch.setattr("nosync_nb.store.replication.backends.flight_server.SESSIONS_MAX", 1)
    with pytest.raises(DurabilityError, match="ship to the server already"):
        promise(2)
    promise(1)
    copies.close()


@pytest.mark.fault(24)
def test_owner_without_session_learns_of_later_owner(tmp_path: Path) -> None:
    copies = ServerCopies(str(tmp_path))
    first, second = ({"log": ID.hex(), "term": [number, "me"]} for number in (3, 4))
    for owner_header in (first, second):
        word = protocol.encode_grant(FencingGrant(OwnerTerm(*owner_header["term"]), "", NAME))
        copies.call(b"session", {"do": "promise", **owner_header}, word)
    for session in (b"session", b"another"):
        with pytest.raises(FencedError, match="generation 4"):
            copies.call(session, {"do": "sync", **first}, b"")
    with pytest.raises(DurabilityError, match="was replaced by another copy"):
        copies.call(b"another", {"do": "sync", **second}, b"")
    copies.close()


def test_idle_session_must_start_again(tmp_path: Path) -> None:
    copies = ServerCopies(str(tmp_path))
    log = {"log": ID.hex(), "term": list(TERM)}
    copies.call(b"session", {"do": "promise", **log}, GRANT)
    copies.call(b"session", {"do": "sync", **log}, b"")
    assert copies.drop_idle() == 0
    assert copies.drop_idle(0.0) == 1
    with pytest.raises(DurabilityError, match="was replaced by another copy"):
        copies.call(b"session", {"do": "sync", **log}, b"")
    copies.call(b"session", {"do": "promise", **log}, GRANT)
    copies.call(b"session", {"do": "sync", **log}, b"")
    copies.close()


@pytest.mark.fault(21)
def test_call_without_grant_leaves_no_replica_open(tmp_path: Path) -> None:
    copies, log = ServerCopies(str(tmp_path)), {"log": ID.hex()}
    copies.call(b"session", {"do": "promise", "term": list(TERM), **log}, GRANT)
    closed = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FolderReplica, "close", lambda replica: closed.append(replica))
        for _ in range(3):
            copies.call(b"another", {"do": "held", **log}, b"")
    assert len(closed) == 3
    copies.close()


class SlowFiles(Files):
    """A disk whose renames wait for the test."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def rename(self, source: str, target: str) -> None:
        if target.endswith(PART):
            self.begun.set()
            assert self.go_on.wait(WAIT_S)
        super().rename(source, target)


@pytest.mark.fault(30)
def test_abandoned_call_ends_before_next_session(tmp_path: Path) -> None:
    slow = SlowFiles()
    copies = ServerCopies(str(tmp_path), slow)
    log = {"log": ID.hex(), "term": list(TERM)}
    copies.call(b"first", {"do": "promise", **log}, GRANT)
    store = {"do": "store", **log, "name": PART, "offset": 0, "last": True}
    given_up = threading.Thread(target=copies.call, args=(b"first", store, b"abc"))
    given_up.start()
    assert slow.begun.wait(WAIT_S)
    done: list[bytes] = []

    def again() -> None:
        done.append(copies.call(b"second", {"do": "promise", **log}, GRANT))

    next_ = threading.Thread(target=again)
    next_.start()
    assert not done
    slow.go_on.set()
    given_up.join()
    next_.join()
    assert PART.encode() in done[0]
    with pytest.raises(DurabilityError):
        copies.call(b"first", {**store, "last": False}, b"abc")
    copies.call(b"second", {"do": "sync", **log, "seq": 3}, b"")
    copies.close()


@pytest.mark.fault(20)
def test_full_disk_is_reported_and_server_survives(running: ReplicaServer) -> None:
    replica = replica_at(running.url, ID)
    replica.promise(TERM, NAME)
    replica.store(TERM, SEGMENT, 0, b"begin", last=True)
    hard = resource.prlimit(running.pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(DurabilityError, match="EFBIG"):
            replica.store(TERM, PART, 0, bytes(8192), last=True)
        replica.append(TERM, SEGMENT, 5, bytes(8192))
        with pytest.raises(DurabilityError, match="EFBIG"):
            replica.sync(TERM, 1)
    finally:
        resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (hard, hard))
    held = dict(replica.promise(TERM, NAME).files)
    assert PART not in held
    replica.store(TERM, PART, 0, bytes(8192), last=True)
    replica.close()


# -- sessions --------------------------------------------------------------------------------------


def replicated_session(path: Path, servers: list[ReplicaServer]) -> Session:
    """A session with a stage and an epoch on a quorum of servers."""
    session = nosync_nb.open(path, replicas=[each.url for each in servers], quorum=2)
    edges = session.input("edges", "src int, dst int")
    session.stage("degrees", edges.group_by("src").agg(n="count(*)"))
    edges.insert([(1, 2), (1, 3)])
    session.commit(wait="replicas", timeout=WAIT_S)
    return session


def wait_for_epochs(session: Session, holds: Callable[[list[int]], bool]) -> list[int]:
    """Waits until the epochs of the replicas meet a condition."""
    replication = services_of(session).replication

    def epochs() -> list[int]:
        return [each.epoch for each in replication.status()]

    with replication.heard:
        assert replication.heard.wait_for(lambda: holds(epochs()), WAIT_S), replication.status()
    return epochs()


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a log in a folder."""
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.name.endswith((".log", ".arrow", ".pack")) or path.name.startswith("checkpoint")
    }


@pytest.mark.fault(33, 35)
def test_acknowledged_log_survives_loss_of_disk_and_server(
    tmp_path: Path, three: list[ReplicaServer]
) -> None:
    path = tmp_path / "x.nosync"
    with replicated_session(path, three) as session:
        for i in range(20):
            session.inputs["edges"].insert([(i, i)])
            session.commit()
        session.inputs["edges"].insert([(i, i) for i in range(70_000)])  # a part, not in a frame
        safe = session.commit(wait="replicas", timeout=WAIT_S)
        rows = session["degrees"].rows()
    shutil.rmtree(path)
    three[1].kill()
    urls = [each.url for each in three]
    with nosync_nb.open(path, replicas=urls, quorum=2) as session:
        assert session.now == safe
        assert session["degrees"].rows() == rows
        assert session.recovery.recomputed == 0
        assert any("restored from grpc://" in note for note in session.recovery.notes)
        three[1].start()
        wait_for_epochs(session, lambda epochs: epochs == [safe] * 3)


@pytest.mark.fault(27)
def test_server_killed_under_load_catches_up_without_loss(
    tmp_path: Path, three: list[ReplicaServer]
) -> None:
    path = tmp_path / "x.nosync"
    random = Random(27)
    with replicated_session(path, three) as session:
        log_id = log_of(session).id
        for life in range(4):
            for i in range(30):
                session.inputs["edges"].insert([(life, i)])
                session.commit()
            session.commit(wait="replicas", timeout=WAIT_S)
            for i in range(random.randrange(20)):
                session.inputs["edges"].insert([(life, -i)])
                session.commit()
            number = life % 3
            known = session.replicas.status()[number].epoch
            three[number].kill()
            copy = FolderReplica(str(three[number].folder), log_id)
            assert known <= copy.acknowledged()  # one frame for each epoch and for the definitions
            consistency.examine_copy(Files(), "killed", copy)
            copy.close()
            three[number].start()
        last = session.commit(wait="replicas", timeout=WAIT_S)
        wait_for_epochs(session, lambda epochs: epochs == [last] * 3)
    for each in three:
        held = contents(each.folder / log_id.hex())
        assert held == {name: contents(path)[name] for name in held}
        assert set(held) == set(contents(path))


@pytest.mark.fault(28)
def test_epochs_continue_while_servers_are_stopped(
    tmp_path: Path, three: list[ReplicaServer]
) -> None:
    with replicated_session(tmp_path / "x.nosync", three) as session:
        wait_for_epochs(session, lambda epochs: epochs == [1, 1, 1])
        stopped = three[:2]
        for each in stopped:
            each.send(signal.SIGSTOP)
        try:
            for i in range(50):
                session.inputs["edges"].insert([(i, i)])
                session.commit()
            assert session.sync() is None
            wait_for_epochs(session, lambda epochs: epochs[2] == 51)
            assert session.frontiers["degrees"] == (51, 51, 1)
            with pytest.raises(DurabilityError, match="1 of 2 replicas"):
                session.sync("replicas", timeout=0.1)
            status = services_of(session).replication
            with status.heard:  # every call has a timeout
                status.heard.wait_for(
                    lambda: all(one.state == "failing" for one in status.status()[:2]), WAIT_S
                )
            assert "did not answer within" in status.status()[0].why
        finally:
            for each in stopped:
                each.send(signal.SIGCONT)
        wait_for_epochs(session, lambda epochs: epochs == [51, 51, 51])
        assert session.frontiers["degrees"] == (51, 51, 51)


def test_small_append_takes_one_call_per_epoch(
    running: ReplicaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    call = ServerConnection.call

    def counted(
        line: ServerConnection, header: dict[str, Any], data: bytes = b"", **more: Any
    ) -> bytes:
        calls.append(header["do"])
        return call(line, header, data, **more)

    monkeypatch.setattr(ServerConnection, "call", counted)
    replica = replica_at(running.url)
    replica.promise(TERM, NAME)
    replica.store(TERM, SEGMENT, 0, b"begin", last=True)
    for i in range(3):
        replica.append(TERM, SEGMENT, 5 + i, b"x")
        replica.sync(TERM, i)
    assert calls == ["promise", "store", "sync", "sync", "sync"]
    assert replica.read(SEGMENT, 0, 100) == b"beginxxx"
    replica.close()


def test_flight_is_imported_only_for_a_server(tmp_path: Path) -> None:
    program = (
        "import sys, nosync_nb, nosync_nb.store.replication.endpoints\n"
        "import nosync_nb.store.replication.agent.keeper\n"
        "assert 'pyarrow._flight' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)


FEW_DESCRIPTORS = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from nosync_nb.store.replication.backends.flight_server import main
sys.exit(main(sys.argv[1:]))
"""


def idle_at(port: int, count: int) -> list[socket.socket]:
    """Idle connections of clients."""
    return [socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) for _ in range(count)]


@pytest.mark.fault(21, 44)
def test_idle_connections_do_not_block_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "key"))
    with ReplicaServer(tmp_path / "copies", program=FEW_DESCRIPTORS) as server:
        known = connect_site(parse_address(server.url), Files()).replica(ID)
        known.promise(TERM, NAME)
        known.store(TERM, SEGMENT, 0, b"begin", last=True)
        idle = idle_at(server.port, 400)
        try:
            for each in idle[:100]:
                each.settimeout(WAIT_S)
                while each.recv(4096):  # the greeting of Flight; then the server closes it
                    pass
            # The session with earlier calls continues on its connection.
            assert retried(lambda: known.sync(TERM, 1)) is None
            other = connect_site(parse_address(server.url), Files()).replica(bytes(16))
            assert retried(lambda: other.promise(TERM, NAME)).files == {}
            other.close()
        finally:
            for each in idle:
                each.close()
        assert known.acknowledged() == 1
        known.close()


def retried(call: Callable[[], Any]) -> Any:
    """The result of a call, retried until the server has a free descriptor."""
    for _ in range(30):
        try:
            return call()
        except DurabilityError as error:
            last = error
    raise last


def test_unproved_connections_are_closed_above_limit() -> None:
    with ExitStack() as ends:
        listening = ends.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = listening.getsockname()[1]
        own = Connections(port)
        clients, accepted = [], []
        for _ in range(flight_server.UNPROVED_MAX + 80):
            clients.append(ends.enter_context(socket.create_connection(("127.0.0.1", port))))
            accepted.append(ends.enter_context(listening.accept()[0]))
        for each in clients[::2]:
            own.prove("ipv4:{}:{}".format(*each.getsockname()))
        assert own.limit(now=5.0) == 0
        assert own.limit(now=5.0 + flight_server.PROOF_S / 2) == 0
        silent = len(clients[1::2])
        assert own.limit(now=5.0 + flight_server.PROOF_S) == (silent if silent > 64 else 0)
        for number, each in enumerate(clients):
            accepted[number].setblocking(False)
            if number % 2:
                assert each.recv(1) == b""
            else:
                accepted[number].setblocking(True)
                accepted[number].send(b"x")
                assert each.recv(1) == b"x"
