"""Replicas in object stores: one writer, few requests, few objects."""

from __future__ import annotations

import hashlib
import shutil
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest
from internals import checkpoint_now, services_of
from machines.object_server import ObjectServer, with_bucket
from obstore.store import MemoryStore

import nosync_nb
from nosync_nb.errors import CorruptLogError, DurabilityError, FencedError, SchemaError
from nosync_nb.files.filesystem import Files
from nosync_nb.session.durability import replication as replication_module
from nosync_nb.store.log import segments
from nosync_nb.store.replication import address, remote_call
from nosync_nb.store.replication.backends import object_manifest, object_requests
from nosync_nb.store.replication.backends.object_requests import ObjectStoreClient
from nosync_nb.store.replication.backends.object_store import (
    EMBEDDED_BYTES,
    ObjectReplica,
    ObjectSite,
)
from nosync_nb.store.replication.endpoints import connect_site
from nosync_nb.store.replication.protocol import LogName, OwnerTerm
from nosync_nb.store.replication.remote_call import CallPolicy

ID = bytes(range(16))
NAME = LogName("/logs/x.nosync", "me")
TERM = OwnerTerm(1, "me")
SEGMENT, NEXT = segments.file_name(1, 1), segments.file_name(2, 1)
PART, OTHER = "log1-1-g3-ab.arrow", "log1-2-g3-ab.arrow"
WAIT_S = 120.0


pytestmark = pytest.mark.usefixtures("own_key")


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    with with_bucket() as running:
        yield running


@pytest.fixture
def bucket(server: ObjectServer, tmp_path: Path) -> ObjectStoreClient:
    return ObjectStoreClient("s3", "bucket", tmp_path.name)


def test_folders_are_listed_by_page_and_bounded(
    bucket: ObjectStoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a", "a!", "a!0", "a0", "a00", "b", "b0"]
    for name in names:
        for key in range(7):
            bucket.put(f"{name}/{key}/x", b"1")
    for key in range(5):
        bucket.put(f"a{key}", b"1")
    assert bucket.folders() == sorted(names)
    monkeypatch.setattr(object_requests, "_PAGE", 3)
    before = bucket.requests
    assert bucket.folders() == sorted(names)
    assert bucket.requests - before <= len(names) + 5
    monkeypatch.setattr(object_requests, "_FOLDERS_MAX", 4)
    with pytest.raises(DurabilityError, match="more than 4 folders"):
        bucket.folders()


class LateRequest:
    """An abandoned request, which is executed some requests later, or never."""

    def __init__(self, after: int | None) -> None:
        self._after = after
        self._request: Callable[[], Any] | None = None

    def give_up(self, request: Callable[[], Any]) -> None:
        """Executes the request later, or at once if `after` is 0."""
        self._request = request
        self.passed(0)

    def passed(self, count: int = 1) -> None:
        """Counts other requests, and executes the late one when it is due."""
        if self._request is None or self._after is None:
            return
        self._after -= count
        if self._after <= 0:
            request, self._request = self._request, None
            with suppress(Exception):  # its answer is lost
                request()


class Failing(ObjectStoreClient):
    """A bucket in memory that does not answer its `at`th request.

    Args:
        late: when the request is executed, counted over all clients of the store.
        then: called before the request is executed; without it the request fails.
    """

    def __init__(
        self,
        store: MemoryStore,
        at: int = -1,
        *,
        late: LateRequest | None = None,
        then: Callable[[], None] | None = None,
    ) -> None:
        super().__init__("s3", "bucket", "", client=store)
        self._left, self._late, self._then = at, late or LateRequest(None), then
        self.made = 0

    def _ask(self, request: Callable[[Any], Any], *, large: bool = False) -> Any:
        self.made += 1
        self._left -= 1
        self._late.passed()
        if self._left == -1:
            if self._then is None:
                ask = super()._ask
                self._late.give_up(lambda: ask(request, large=large))
                raise DurabilityError("the request is not answered")
            self._then()
        return super()._ask(request, large=large)


def granted_copy(bucket: ObjectStoreClient, term: OwnerTerm = TERM) -> ObjectReplica:
    replica = ObjectReplica(bucket, ID)
    replica.promise(term, NAME)
    return replica


def contents(replica: ObjectReplica) -> dict[str, bytes]:
    """The files of a copy, checked against its sizes and digests."""
    files = {}
    for name, size in replica.held().files.items():
        files[name] = replica.read(name, 0, size + 1)
        assert len(files[name]) == size
        assert replica.digest(name, size) == hashlib.blake2b(files[name], digest_size=16).digest()
    return files


def test_url_names_bucket_and_key_prefix() -> None:
    for url, place in {
        "s3://logs": ("s3", "logs", ""),
        "gs://my.logs/a/b/": ("gs", "my.logs", "a/b"),
        "az://logs/a%2Db": ("az", "logs", "a-b"),
    }.items():
        assert address.parse_address(url)[1:4] == place
    for url, message in {
        "s3://key:secret@logs/a": "not contain a user or password",
        "s3://logs/a?X-Amz-Signature=secret": "a query after ?",
        "s3:///a": "no bucket",
        "s3://Logs": "no bucket",
        "s3://logs/../a": "empty parts",
        "s3://logs/a//b": "empty parts",
        "s3://logs/a%00b": "a prefix may only have",
    }.items():
        with pytest.raises(SchemaError, match=message.replace("?", r"\?")) as caught:
            address.parse_address(url)
        assert "secret" not in str(caught.value)
        assert caught.value.hint


def test_files_round_trip_in_any_pieces(bucket: ObjectStoreClient) -> None:
    random = Random(3)
    replica = granted_copy(bucket)
    model = {SEGMENT: b"begin", PART: random.randbytes(5 << 20), OTHER: b""}
    for name, data in model.items():
        for at in range(0, max(1, len(data)), 1 << 20):
            piece = data[at : at + (1 << 20)]
            replica.store(TERM, name, at, piece, last=at + len(piece) == len(data))
    for size in (1, 700, EMBEDDED_BYTES, EMBEDDED_BYTES + 1, 3 << 20):
        more = random.randbytes(size)
        replica.append(TERM, SEGMENT, len(model[SEGMENT]), more)
        model[SEGMENT] += more
        assert replica.read(SEGMENT, 3, 1 << 30) == model[SEGMENT][3:]
        assert ObjectReplica(bucket, ID).held().files[SEGMENT] == len(model[SEGMENT]) - size
        replica.sync(TERM, size)
    for reader in (replica, ObjectReplica(bucket, ID)):
        assert contents(reader) == model
        for _ in range(20):
            start, size = random.randrange(5 << 20), random.randrange(3 << 20)
            assert reader.read(PART, start, size) == model[PART][start : start + size]
        some = hashlib.blake2b(model[SEGMENT][:800], digest_size=16).digest()
        assert reader.digest(SEGMENT, 800) == some
        assert reader.acknowledged() == 3 << 20
    read = bucket.bytes_read
    assert granted_copy(bucket).digest(PART, 5 << 20) == replica.digest(PART, 5 << 20)
    assert bucket.bytes_read - read < 1 << 20  # stored data is not read back for its digest


@pytest.mark.fault(46)
def test_many_appends_make_few_objects_and_requests(server: ObjectServer) -> None:
    del server  # the counts are the same on every store
    store = MemoryStore()
    bucket = ObjectStoreClient("s3", "bucket", "", client=store)
    replica = granted_copy(bucket)
    replica.store(TERM, SEGMENT, 0, b"begin", last=True)
    model, count = b"begin", 3000
    asked, sent = bucket.requests, bucket.bytes_sent
    for i in range(count):
        more = b"%06d" % i * (1 + i % 50)
        replica.append(TERM, SEGMENT, len(model), more)
        model += more
        replica.sync(TERM, i)
    asked, sent = bucket.requests - asked, bucket.bytes_sent - sent
    assert contents(ObjectReplica(bucket, ID)) == {SEGMENT: model}
    objects = [each["path"] for each in store.list().collect()]
    assert len(objects) < 3 * 15 + 2 * object_manifest.FAN
    # one request writes the record, one checks the copy; then deletions and merges
    assert asked < count * 2.2
    assert sent < 3 * len(model) + 1200 * count


def test_sync_takes_two_requests_and_lists_nothing(
    bucket: ObjectStoreClient, server: ObjectServer
) -> None:
    replica = granted_copy(bucket)
    replica.store(TERM, SEGMENT, 0, b"begin", last=True)
    asked, before = bucket.requests, server.settled()
    for i in range(10):
        replica.append(TERM, SEGMENT, 5 + i, b"x")
        replica.sync(TERM, i)
    assert bucket.requests - asked <= 21  # plus a deletion after a full record
    replica.sync(TERM, 9)
    made = server.requests[before : server.settled() - 1]
    assert Counter(method for method, _ in made)["PUT"] == 10
    assert not [path for method, path in made if method == "GET"]


def object_names(store: MemoryStore) -> set[str]:
    return {each["path"].partition("/")[2] for each in store.list().collect()}


def workload(replica: ObjectReplica, *, promised: list[dict[str, bytes]]) -> None:
    """Brings a copy from any state to the goal; `promised` collects the promised content."""
    held = replica.promise(TERM, NAME).files
    goal = {PART: b"p" * 70_000, SEGMENT: bytes(range(60))}

    def store(name: str) -> None:
        data = goal[name][:5] if name == SEGMENT else goal[name]
        for at in range(0, len(data), 40_000):
            piece = data[at : at + 40_000]
            replica.store(TERM, name, at, piece, last=at + len(piece) == len(data))

    for name in (OTHER, *goal):
        if name not in held and (name in goal or SEGMENT not in held):
            goal.setdefault(name, b"o")
            store(name)
    start = held.get(SEGMENT, 5)
    for at in range(start, 60, 3):
        replica.append(TERM, SEGMENT, at, goal[SEGMENT][at : at + 1])
        replica.append(TERM, SEGMENT, at + 1, goal[SEGMENT][at + 1 : min(at + 3, 60)])
        replica.sync(TERM, at)
        promised.append({SEGMENT: goal[SEGMENT][: min(at + 3, 60)], PART: goal[PART]})
    if OTHER in replica.held().files:
        replica.discard(TERM, [OTHER])
    replica.sync(TERM, 99)


@pytest.mark.fault(16, 20, 30)
@pytest.mark.parametrize(
    ("after", "same"),
    [(None, True), (0, True), (3, True), (3, False), (25, False)],
    ids=["never", "unheard", "late", "late, another process", "very late, another process"],
)
def test_failed_request_leaves_all_or_nothing_of_step(after: int | None, same: bool) -> None:
    counted = Failing(MemoryStore())
    workload(ObjectReplica(counted, ID), promised=[])
    assert counted.made > 50
    goal = {PART: b"p" * 70_000, SEGMENT: bytes(range(60))}
    for at in range(counted.made):
        store, promised, late = MemoryStore(), [], LateRequest(after)
        failing = ObjectReplica(Failing(store, at, late=late), ID)
        with pytest.raises(DurabilityError, match="not answered"):
            workload(failing, promised=promised)
        there = contents(ObjectReplica(Failing(store), ID))
        for name, data in (promised[-1] if promised else {}).items():
            assert there[name][: len(data)] == data
        another = ObjectReplica(Failing(store, late=late), ID)
        for copy in (failing, another) if same else (another,):
            reach_goal(copy)
            assert copy.acknowledged() == 99
            assert contents(ObjectReplica(Failing(store), ID)) == goal
        last = granted_copy(Failing(store), OwnerTerm(2, "next"))
        assert contents(last) == goal
        assert sum(shape.startswith("data/") for shape in object_names(store)) == 1  # the part's
        assert len(object_names(store)) < 2 * object_manifest.FAN


def reach_goal(replica: ObjectReplica) -> None:
    """Brings a copy to the goal; a late request may stop it once."""
    for _ in range(3):
        with suppress(DurabilityError):
            return workload(replica, promised=[])
    raise AssertionError("the copy was stopped three times")


class RepeatingClient(ObjectStoreClient):
    """A bucket in memory whose client repeats each request, as after a lost answer."""

    def _ask(self, request: Callable[[Any], Any], *, large: bool = False) -> Any:
        with suppress(Exception):
            super()._ask(request)
        return super()._ask(request, large=large)


@pytest.mark.fault(30)
def test_repeated_requests_have_effect_once() -> None:
    store = MemoryStore()
    replica = ObjectReplica(RepeatingClient("s3", "bucket", "", client=store), ID)
    replica.promise(TERM, NAME)
    replica.store(TERM, SEGMENT, 0, b"begin", last=True)
    for i in range(40):
        replica.append(TERM, SEGMENT, 5 + i, b"x")
        replica.sync(TERM, i)
    assert contents(ObjectReplica(Failing(store), ID)) == {SEGMENT: b"begin" + b"x" * 40}
    with pytest.raises(FencedError):
        granted_copy(Failing(store), OwnerTerm(1, "another"))


def test_failed_request_requires_new_grant() -> None:
    store = MemoryStore()
    replica = ObjectReplica(failing := Failing(store, 102), ID)
    replica.promise(TERM, NAME)
    replica.store(TERM, SEGMENT, 0, b"begin", last=True)

    def more() -> None:
        while failing.made < 200:
            replica.append(TERM, SEGMENT, replica.held().files[SEGMENT], b"x")
            replica.sync(TERM, 1)

    with pytest.raises(DurabilityError, match="not answered"):
        more()
    for step in (
        lambda: replica.sync(TERM, 1),
        lambda: replica.store(TERM, PART, 0, b"p", last=True),
        lambda: replica.discard(TERM, [SEGMENT]),
    ):
        with pytest.raises(DurabilityError, match="its fencing record must be written again"):
            step()
    size = replica.promise(TERM, NAME).files[SEGMENT]
    replica.append(TERM, SEGMENT, size, b"y")
    replica.sync(TERM, 2)
    assert contents(replica)[SEGMENT] == b"begin" + b"x" * (size - 5) + b"y"


def test_object_names_are_never_reused() -> None:
    store, names = MemoryStore(), set()
    replica = granted_copy(Failing(store))
    for _ in range(3):  # with equal bytes, so that a late deletion hits only the old object
        replica.store(TERM, PART, 0, b"p" * 70_000, last=True)
        names |= {shape for shape in object_names(store) if shape.startswith("data/")}
        replica.discard(TERM, [PART])
    assert len(names) == 3


@pytest.mark.fault(24)
def test_overtaken_owner_changes_nothing() -> None:
    counted = Failing(MemoryStore())
    workload(ObjectReplica(counted, ID), promised=[])
    refused = [overtaken(at) for at in range(counted.made)]
    assert sum(refused) >= counted.made - 1


def overtaken(at: int) -> bool:
    """Lets a later owner start at a request of an earlier one; returns True if that is refused."""
    store, term = MemoryStore(), OwnerTerm(2, "later")
    later = ObjectReplica(Failing(store), ID)
    promised: list[dict[str, bytes]] = []
    before: list[int] = []

    def overtake() -> None:
        before.append(len(promised))
        later.promise(term, NAME)
        later.store(term, NEXT, 0, b"later", last=True)
        later.sync(term, 7)

    fenced = ObjectReplica(Failing(store, at, then=overtake), ID)
    refused = False
    try:
        workload(fenced, promised=promised)
    except FencedError:
        refused = True
    assert len(promised) <= before[0] + 1  # a record written before the grant is part of the copy
    there = contents(later)
    assert there[NEXT] == b"later"
    for data in promised[-1:]:
        assert {name: there[name] for name in data} == data
    with pytest.raises(FencedError, match="generation 2"):
        fenced.promise(TERM, NAME)
    for i in range(40):  # records are merged and deleted, but no slot becomes free
        later.append(term, NEXT, 5 + i, b"!")
        later.sync(term, 8 + i)
    for step in (
        lambda: fenced.sync(TERM, 1),
        lambda: fenced.store(TERM, PART, 0, b"fenced", last=True),
        lambda: fenced.discard(TERM, [NEXT]),
    ):
        with pytest.raises(FencedError, match="generation 2"):
            step()
    there[NEXT] += b"!" * 40
    assert contents(ObjectReplica(Failing(store), ID)) == contents(later) == there
    return refused


@pytest.mark.fault(24)
def test_sleeping_owner_finds_its_slot_taken() -> None:
    store = MemoryStore()
    sleeper = granted_copy(Failing(store))
    sleeper.store(TERM, SEGMENT, 0, b"begin", last=True)
    later = granted_copy(Failing(store), OwnerTerm(2, "later"))
    for i in range(100):
        later.append(OwnerTerm(2, "later"), SEGMENT, 5 + i, b"!")
        later.sync(OwnerTerm(2, "later"), i)
    there = contents(later)
    sleeper.append(TERM, SEGMENT, 5, b"?")
    with pytest.raises(FencedError, match="generation 2"):
        sleeper.sync(TERM, 1)
    assert contents(later) == there


@pytest.mark.fault(23)
def test_one_of_many_owners_wins_a_generation() -> None:
    count = 6
    bucket = Failing(MemoryStore())  # with an atomic conditional create, which moto lacks
    for generation in range(1, 6):
        ready = threading.Barrier(count)

        def ask(number: int, generation: int = generation, ready: Any = ready) -> int | None:
            replica = ObjectReplica(bucket, ID)
            term = OwnerTerm(generation, f"owner {number}")
            ready.wait()
            try:
                replica.promise(term, NAME)
                replica.store(term, f"log{generation}-{number}-g1-ab.arrow", 0, b"x", last=True)
            except FencedError:
                return None
            return number

        with ThreadPoolExecutor(count) as pool:
            won = [number for number in pool.map(ask, range(count)) if number is not None]
        assert len(won) == 1
        state = ObjectReplica(bucket, ID)
        assert state.promised() == OwnerTerm(generation, f"owner {won[0]}")
        assert f"log{generation}-{won[0]}-g1-ab.arrow" in state.held().files
        assert len(state.held().files) == generation


def test_grant_during_recreation_reads_new_copy() -> None:
    """The slot of the owner's record is taken by one that does not follow its known records."""
    later = OwnerTerm(2, "later")

    def old() -> MemoryStore:
        store = MemoryStore()
        granted_copy(Failing(store)).store(TERM, PART, 0, b"old", last=True)
        return store

    counted = Failing(old())
    granted_copy(counted, later)
    for at in range(counted.made - 1):  # the last request only lists leftovers
        store = old()

        def recreate(store: MemoryStore = store) -> None:
            store.delete([each["path"] for each in store.list().collect()])
            other = granted_copy(Failing(store))
            other.store(TERM, SEGMENT, 0, b"begin", last=True)
            for i in range(5):
                other.append(TERM, SEGMENT, 5 + i, b"x")
                other.sync(TERM, i)

        replica = ObjectReplica(Failing(store, at, then=recreate), ID)
        assert replica.promise(later, NAME).files == {SEGMENT: 10}
        assert contents(ObjectReplica(Failing(store), ID)) == {SEGMENT: b"beginxxxxx"}


@pytest.mark.fault(12, 14)
def test_damaged_or_missing_records_are_reported() -> None:
    store = MemoryStore()
    replica = granted_copy(Failing(store))
    replica.store(TERM, SEGMENT, 0, b"begin", last=True)
    for i in range(20):
        replica.append(TERM, SEGMENT, 5 + i, b"x")
        replica.sync(TERM, i)
    before = replica.held()
    path = max(each["path"] for each in store.list(f"{ID.hex()}/state").collect())
    whole = bytes(store.get(path).bytes())
    for at in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[at] ^= 0x40
        store.put(path, bytes(damaged))
        copy = ObjectReplica(Failing(store), ID)
        if at < len(whole) - 1:  # the last byte belongs to the segment, whose frames have checksums
            with pytest.raises(CorruptLogError, match="damaged"):
                copy.held()
    store.put(path, whole)
    missing = f"{ID.hex()}/{object_manifest.record_key(object_manifest.FAN)}"
    store.delete(missing)
    copy = ObjectReplica(Failing(store), ID)
    assert copy.held().files == {}
    assert copy.promise(OwnerTerm(2, "next"), NAME).incarnation != before.incarnation
    with pytest.raises(FencedError, match="generation 2"):
        granted_copy(Failing(store), TERM)


def test_lost_piece_is_reported() -> None:
    store = MemoryStore()
    bucket = Failing(store)
    replica = granted_copy(bucket)
    replica.store(TERM, PART, 0, b"p" * 70_000, last=True)
    (piece,) = (each["path"] for each in store.list(f"{ID.hex()}/data").collect())
    store.delete(piece)
    asked = bucket.made
    with pytest.raises(DurabilityError, match="has lost the object"):
        replica.read(PART, 0, 10)
    assert bucket.made - asked == 1  # no other client writes there, so no other piece exists
    assert replica.digest(PART, 70_000) == b""  # the digest of no file, so it is stored again
    with pytest.raises(DurabilityError, match="has no data of"):
        replica.read(OTHER, 0, 10)


def test_reader_asks_once_until_copy_changes() -> None:
    store = MemoryStore()
    writer, bucket = granted_copy(Failing(store)), Failing(store)
    writer.store(TERM, PART, 0, b"p" * 70_000, last=True)
    writer.store(TERM, SEGMENT, 0, b"begin", last=True)
    reader = ObjectReplica(bucket, ID)
    assert reader.read(SEGMENT, 0, 9) == b"begin"
    asked = bucket.made
    for at in range(0, 70_000, 10_000):
        assert reader.read(PART, at, 10_000) == b"p" * 10_000
    assert bucket.made - asked == 7
    for i in range(40):  # merges and deletes the records that the reader knows
        writer.append(TERM, SEGMENT, 5 + i, b"x")
        writer.sync(TERM, i)
    assert reader.read(SEGMENT, 0, 99)[:5] == b"begin"
    writer.store(TERM, OTHER, 0, b"new", last=True)
    assert reader.read(OTHER, 0, 9) == b"new"
    assert contents(reader) == contents(writer)


class Answer(BaseHTTPRequestHandler):
    """Answers each request with the same status and code."""

    status: ClassVar[int] = 200
    code: ClassVar[str] = ""

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = f"<Error><Code>{self.code}</Code><Message>secret</Message></Error>".encode()
        self.send_response(self.status)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if self.command != "HEAD" else b"")

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _answer  # noqa: N815  (as the base class asks)

    def log_message(self, format: str, *args: Any) -> None:
        del format, args


@contextmanager
def store_at(port: int) -> Iterator[ObjectStoreClient]:
    """A client of the store at a port of this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        patch.setenv("AWS_ALLOW_HTTP", "true")
        patch.setenv("AWS_ACCESS_KEY_ID", "tester")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "never-shown")
        yield ObjectStoreClient("s3", "bucket", "logs")


@contextmanager
def served_store(answer: type[Answer]) -> Iterator[ObjectStoreClient]:
    """A client of a store with given answers."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        with store_at(server.server_port) as client:
            yield client
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.fault(29, 44)
@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (403, "AccessDenied", "denies access: 403 AccessDenied; the credentials come"),
        (403, "SignatureDoesNotMatch", "denies access: 403 SignatureDoesNotMatch"),
        (401, "", "denies access: 401"),
        (404, "NoSuchBucket", "there is no bucket 'bucket'"),
        (507, "InsufficientStorage", "answers 507"),
    ],
)
def test_refusal_of_store_is_reported_without_secrets(status: int, code: str, message: str) -> None:
    answer = type("Refusal", (Answer,), {"status": status, "code": code})
    with served_store(answer) as bucket, pytest.raises(DurabilityError) as caught:
        granted_copy(bucket)
    assert message in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    text = f"{caught.value}{caught.value.__notes__ if hasattr(caught.value, '__notes__') else ''}"
    for secret in ("secret", "never-shown", "tester", "127.0.0.1", "Signature="):
        assert secret not in text


def test_store_without_conditional_create_is_refused() -> None:
    with (
        served_store(Answer) as bucket,
        pytest.raises(DurabilityError, match="cannot exclude a second writer") as caught,
    ):
        granted_copy(bucket)
    assert caught.value.hint


@pytest.mark.fault(29)
def test_silent_store_is_abandoned() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        store_at(silent.getsockname()[1]) as bucket,
    ):
        with pytest.raises(DurabilityError, match="cannot be reached"):
            granted_copy(bucket)
        assert bucket.requests == 1


def test_client_is_imported_on_demand_and_its_absence_reported(tmp_path: Path) -> None:
    code = """
import sys
import nosync_nb
from nosync_nb.errors import DurabilityError
assert "obstore" not in sys.modules
sys.modules["obstore"] = None
try:
    nosync_nb.open("log", replicas=["s3://bucket/logs"])
except DurabilityError as error:
    assert "pip install 'nosync[cloud]'" in str(error), error
else:
    raise AssertionError
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr


def test_each_request_reports_missing_client(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("obstore", "obstore.store", "obstore.exceptions"):
        monkeypatch.setitem(sys.modules, name, None)
    for step in (
        lambda bucket: bucket.create("key", b""),
        lambda bucket: bucket.put("key", b""),
        lambda bucket: bucket.get("key", most=9),
        lambda bucket: bucket.listed(""),
        lambda bucket: ObjectSite(bucket).prepare(),
    ):
        bucket = ObjectStoreClient("s3", "bucket", "")
        with pytest.raises(DurabilityError, match=r"pip install 'nosync\[cloud\]'"):
            step(bucket)
        assert bucket.requests == 0


@pytest.mark.fault(24)
def test_copy_refuses_earlier_term_of_same_owner() -> None:
    store = MemoryStore()
    replica = granted_copy(Failing(store), TERM)
    replica.promise(OwnerTerm(2, "me"), NAME)
    before = contents(replica)
    for step in (
        lambda: replica.store(TERM, PART, 0, b"part", last=True),
        lambda: replica.append(TERM, SEGMENT, 0, b"more"),
        lambda: replica.sync(TERM, 3),
        lambda: replica.discard(TERM, [PART]),
    ):
        with pytest.raises(FencedError, match="generation 2"):
            step()
    assert contents(replica) == before


def _not_started(*_: Any) -> Any:
    raise OSError("none is asked for")


@pytest.mark.fault(33)
def test_acknowledged_log_is_restored_from_bucket(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, urls = tmp_path / "x.nosync", [f"s3://bucket/{tmp_path.name}-e2e"]
    with nosync_nb.open(path, replicas=urls) as session:
        edges = session.input("edges", "src int, dst int")
        session.stage("degrees", edges.group_by("src").agg(n="count(*)"))
        edges.insert([(i, i) for i in range(70_000)])  # enough for a part file
        session.commit()
        checkpoint_now(session)
        session.commit(wait="replicas", timeout=WAIT_S)
        before = server.settled()
        for i in range(20):
            edges.insert([(i, i + 1)])
            session.commit(wait="replicas", timeout=WAIT_S)
        asked = Counter(method for method, _ in server.requests[before : server.settled()])
        assert asked["PUT"] <= 30, asked
        assert sum(asked.values()) <= 200, asked
        now = session.now
        rows = {at: session["degrees"].rows(at=at) for at in (1, 5, now)}
        assert session.recovery_frontier("disk", lost=0) == now
        own = services_of(session).replication
        with own.heard:
            assert own.heard.wait_for(
                lambda: [each[1:3] for each in own.status()] == [("level", now)], WAIT_S
            ), own.status()
    shutil.rmtree(path)
    # Without a keeper, whose number of requests depends on timing.
    monkeypatch.setattr(replication_module, "start_keeper", _not_started)
    before = server.settled()
    with nosync_nb.open(path, replicas=urls) as session:
        assert session.now == now
        assert {at: session["degrees"].rows(at=at) for at in rows} == rows
        assert session.recovery.recomputed == 0
    asked = Counter(method for method, _ in server.requests[before : server.settled()])
    assert sum(asked.values()) < 120, asked
    site = connect_site(address.parse_address(urls[0]), Files())
    assert isinstance(site, ObjectSite)
    assert [found.name.path for found in site.logs().values()] == [str(path)]


def test_missing_bucket_is_reported_without_blocking(server: ObjectServer, tmp_path: Path) -> None:
    del server
    path, urls = tmp_path / "x.nosync", ["s3://missing/logs"]
    with pytest.raises(DurabilityError, match="there is no bucket 'missing'"):
        nosync_nb.open(path, replicas=urls)  # the bucket may have the log
    with nosync_nb.open(path) as session:
        session.input("a", "n int")
    with nosync_nb.open(path, replicas=urls) as session:
        session.inputs["a"].insert([(1,)])
        session.commit(wait="disk")
        replication = services_of(session).replication
        with replication.heard:
            assert replication.heard.wait_for(
                lambda: replication.status()[0].state == "failing", WAIT_S
            )
        assert "there is no bucket 'missing'" in replication.status()[0].why


# -- bounds ----------------------------------------------------------------------------------------


def test_many_owners_leave_bounded_state() -> None:
    """The state and the requests stay small with many files and owners."""
    store = MemoryStore()
    bucket = Failing(store)
    replica = granted_copy(bucket)
    replica.store(TERM, SEGMENT, 0, b"begin", last=True)
    for i in range(200):
        replica.store(TERM, f"log1-{i}-g3-ab.arrow", 0, b"rows", last=True)
    before = contents(replica)

    def kept() -> int:
        return sum(each["size"] for each in store.list(f"{ID.hex()}/state").collect())

    start = kept()
    for generation in range(2, 66):
        granted_copy(bucket, OwnerTerm(generation, "me"))
    assert kept() - start < 64 * 600
    made = bucket.made
    assert contents(ObjectReplica(bucket, ID)).keys() == before.keys()
    bucket.made = made
    last = granted_copy(bucket, OwnerTerm(66, "me"))
    last.store(OwnerTerm(66, "me"), OTHER, 0, b"more", last=True)
    asked = bucket.made
    reader = ObjectReplica(bucket, ID)
    assert len(reader.held().files) == len(before)
    assert bucket.made - asked <= 1 + object_manifest.FAN
    assert contents(reader) == {**before, OTHER: b"more"}


class Hostile(Answer):
    """Announces one size and sends without end."""

    announced: ClassVar[int | None] = None
    sent: ClassVar[int] = 0

    def _much(self) -> None:
        self.send_response(206 if self.headers.get("Range") else 200)
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Mon, 23 Nov 2026 05:00:00 GMT")
        if wanted := self.headers.get("Range"):
            span = wanted.removeprefix("bytes=")
            self.send_header("Content-Range", f"bytes {span}/{1 << 40}")
        self.send_header("Content-Length", str(self.announced))
        self.end_headers()
        with suppress(OSError):  # the client has closed the connection
            while type(self).sent < 1 << 30:
                self.wfile.write(bytes(1 << 16))
                type(self).sent += 1 << 16

    do_GET = _much  # noqa: N815  (as the base class asks)


@pytest.mark.fault(44)
@pytest.mark.parametrize("whole", [True, False])
def test_oversized_object_is_not_read(whole: bool) -> None:
    class Own(Hostile):
        announced = 1 << 40

    with served_store(Own) as bucket:
        if whole:
            assert bucket.get("state/1", most=1 << 20) == b""
        else:
            with pytest.raises(DurabilityError):
                bucket.read("data/1", 5, 1000)
        assert bucket.bytes_read == 0
    assert Own.sent < 64 << 20


def test_oversized_record_is_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(object_manifest, "RECORD_BYTES_MAX", 2000)
    replica = granted_copy(Failing(MemoryStore()))
    with pytest.raises(DurabilityError, match="too many files") as caught:
        replica.store(TERM, PART, 0, b"x" * 3000, last=True)
    assert caught.value.hint


class Slow(Answer):
    """Reads a request, and answers when the test allows it."""

    answer: ClassVar[threading.Event]

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.answer.wait()
        self.send_response(200)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_PUT = _answer  # noqa: N815  (as the base class asks)


@pytest.mark.fault(30)
def test_large_upload_may_outlast_deadline_of_small_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(Slow):
        answer = threading.Event()

    monkeypatch.setattr(remote_call, "BUCKET", CallPolicy(silent_s=1))
    ended: list[BaseException | None] = []
    with served_store(Own) as bucket, ExitStack() as unblocked:
        unblocked.callback(Own.answer.set)

        def send() -> None:
            try:
                bucket.put("data/1", bytes(2 << 20))
                ended.append(None)
            except DurabilityError as error:
                ended.append(error)

        large = threading.Thread(target=send)
        large.start()
        with pytest.raises(DurabilityError, match="cannot be reached"):
            bucket.put("data/2", b"little")
        assert ended == [], "the first upload is still running"
        Own.answer.set()
        large.join(WAIT_S)
        assert ended == [None]
