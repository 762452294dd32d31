"""Sends requests to an object store; each is counted, bounded in time, and reported if it fails.

Only this module uses the client, `obstore`, which is imported when a URL requires it. Credentials
and endpoints come from the environment that the client reads; a URL contains none.

IMPORTANT: the text of a client's error may contain a signed URL. It is never shown: messages have
the status and the store's error code, in words of this module.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from nosync_nb.errors import DurabilityError
from nosync_nb.store.replication import remote_call

if TYPE_CHECKING:
    from obstore import GetResult
    from obstore.store import ObjectStore

_PARALLEL_MAX = 8
_DELETED_AT_ONCE = 1000
_CONNECT_S = 3

_RETRIES = 2
_LISTED_MAX = 1_000_000
_FOLDERS_MAX = 10_000
_PAGE = 1000
_AFTER_SLASH = "0"
_CHUNK_BYTES = 1 << 16
_LARGE_BYTES, _LARGEST_BYTES = 1 << 16, 8 << 20
_ENVIRONMENT = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|specified bucket does not exist")
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_TIMED_OUT = re.compile(r"[Tt]imed ?out|TimedOut")
_NO_CREDENTIALS = re.compile(r"169\.254\.169\.254|metadata\.google|MissingCredentials")
_DENIED = frozenset({"401", "403"})

Result = TypeVar("Result")


class ObjectName(NamedTuple):
    """The key of an object, and a tag that differs for another object under that key."""

    key: str
    tag: str


class ObjectStoreClient:
    """A folder of an object store. Any thread may call.

    Each call raises DurabilityError if the store cannot be reached or refuses the request. No
    request waits longer than several seconds, plus the time to transfer its bytes.

    Args:
        kind: `s3`, `gs` or `az`.
        name: the name of the bucket or container.
        prefix: the prefix of all keys, without slashes at its ends; empty if there is none.
        client: sends the requests; `None` means a client that the environment configures.

    Attributes:
        where: the URL of the folder, for messages.
        requests: the number of requests; a bulk deletion counts as one.
        bytes_sent, bytes_read: the number of bytes of objects that were sent and read.
    """

    def __init__(
        self, kind: str, name: str, prefix: str, *, client: ObjectStore | None = None
    ) -> None:
        self._kind, self._name, self._prefix = kind, name, prefix
        self.where = f"{kind}://{name}/{prefix}".rstrip("/")
        self.requests = self.bytes_sent = self.bytes_read = 0
        self._clients: dict[bool, ObjectStore] = {}  # the key True is for large requests
        if client is not None:
            self._clients = {False: client, True: client}
        self._count_lock = threading.Lock()

    def create(self, key: str, data: bytes) -> str | None:
        """Creates an object unless its name is taken; returns its tag, or None if it is taken.

        None may also mean that the first attempt of a retried request succeeded. So the caller must
        compare the existing object.
        """
        self.check()
        from obstore.exceptions import AlreadyExistsError

        try:
            return self._put(key, data, new=True)
        except AlreadyExistsError:
            return None

    def put(self, key: str, data: bytes) -> None:
        """Writes an object whose name no other writer uses."""
        self._put(key, data, new=False)

    def _put(self, key: str, data: bytes, *, new: bool) -> str:
        self._count(sent=len(data))
        mode: Literal["create", "overwrite"] = "create" if new else "overwrite"
        result = self._ask(
            lambda client: client.put(key, data, mode=mode, use_multipart=False),
            large=len(data) > _LARGE_BYTES,
        )
        return result["e_tag"] or ""

    def get(self, key: str, *, most: int) -> bytes | None:
        """Returns an object; None if it does not exist, empty if it has more than `most` bytes."""
        return self.get_all([key], most=most)[0]

    def get_all(self, keys: Sequence[str], *, most: int) -> list[bytes | None]:
        """Returns several objects, requested in parallel; see `get`."""

        def asked(client: ObjectStore, key: str) -> bytes:
            got = client.get(key)
            return b"" if got.meta["size"] > most else _limited_body(got, most)

        def get(key: str) -> bytes | None:
            try:
                data = self._ask(lambda client: asked(client, key))
            except FileNotFoundError:
                return None
            self._count(read=len(data))
            return data

        return _in_parallel(get, keys)

    def read(self, key: str, start: int, size: int) -> bytes:
        """Returns `size` bytes of an object; raises DurabilityError if it does not have them."""

        def asked(client: ObjectStore) -> bytes:
            return _limited_body(client.get(key, options={"range": (start, start + size)}), size)

        try:
            data = self._ask(asked)
        except FileNotFoundError:
            raise DurabilityError(f"'{self.where}' has lost the object '{key}'") from None
        if len(data) != size:
            raise DurabilityError(f"'{self.where}' has other bytes of '{key}' than were sent")
        self._count(read=len(data))
        return data

    def read_all(self, ranges: Iterable[tuple[str, int, int]]) -> list[bytes]:
        """Returns ranges of several objects, requested in parallel; a range as for `read`."""
        return _in_parallel(lambda each: self.read(*each), list(ranges))

    def holds(self, key: str) -> bool:
        """Returns True if an object of this name exists."""
        return self.sizes([key])[0] >= 0

    def sizes(self, keys: Sequence[str]) -> list[int]:
        """Returns the sizes of several objects, requested in parallel; -1 for missing ones."""

        def size(key: str) -> int:
            try:
                return int(self._ask(lambda client: client.head(key))["size"])
            except FileNotFoundError:
                return -1

        return _in_parallel(size, keys)

    def listed(self, prefix: str) -> list[ObjectName]:
        """Returns the objects below a prefix, ascending by key."""
        objects = self._ask(lambda client: _list_all(client, prefix))
        if len(objects) > _LISTED_MAX:
            raise DurabilityError(f"'{self.where}' lists more than {_LISTED_MAX} objects")
        return sorted(objects)

    def folders(self) -> list[str]:
        """Returns the names of the folders directly below the prefix.

        Cost: one request for each folder, and for each page of other objects.

        Memory: one page.

        Raises:
            DurabilityError: the listing takes more than `_FOLDERS_MAX` requests.
        """
        names: set[str] = set()
        after: str | None = None
        for _ in range(_FOLDERS_MAX):
            page = self._ask(partial(_list_page, after=after))
            if not page:
                return sorted(names)
            names.update(key.partition("/")[0] for key in page if "/" in key)
            last, inside, _ = page[-1].partition("/")
            after = last + _AFTER_SLASH if inside else last  # skips the rest of that folder
        raise DurabilityError(
            f"'{self.where}' has more than {_FOLDERS_MAX} folders in one folder",
            hint="use a separate prefix for copies of logs: s3://bucket/prefix",
        )

    def delete(self, keys: Iterable[str]) -> None:
        """Deletes objects; missing ones are ignored."""
        remaining = list(keys)
        while remaining:
            batch, remaining = remaining[:_DELETED_AT_ONCE], remaining[_DELETED_AT_ONCE:]
            try:
                self._delete(batch)
            except FileNotFoundError:  # some stores fail the bulk without naming the missing key
                for key in batch:
                    with suppress(FileNotFoundError):
                        self._delete([key])

    def _delete(self, keys: list[str]) -> None:
        self._ask(lambda client: client.delete(keys))

    # -- the client --------------------------------------------------------------------------

    def check(self) -> None:
        """Raises DurabilityError if the client or its settings are missing; sends nothing."""
        if not self._clients:
            self._clients = {large: self._connect(large=large) for large in (False, True)}

    def _ask(self, request: Callable[[ObjectStore], Result], *, large: bool = False) -> Result:
        """Sends a request; a missing or an existing object raises the client's own error.

        Args:
            large: True if the request sends many bytes, which delays its answer.
        """
        self.check()
        from obstore.exceptions import AlreadyExistsError, BaseError

        self._count(requests=1)
        try:
            return request(self._clients[large])
        except AlreadyExistsError:
            raise
        except FileNotFoundError as error:
            if _NO_BUCKET.search(str(error)):
                raise self._request_error(str(error)) from None
            raise
        except (BaseError, OSError, TimeoutError) as error:
            raise self._request_error(str(error)) from None

    def _count(self, *, requests: int = 0, sent: int = 0, read: int = 0) -> None:
        with self._count_lock:
            self.requests += requests
            self.bytes_sent += sent
            self.bytes_read += read

    def _connect(self, *, large: bool) -> ObjectStore:
        """Creates a client; received bytes extend its timeout, sent bytes do not."""
        policy = remote_call.BUCKET
        whole_s = policy.limit_s(_LARGEST_BYTES)
        try:
            from obstore import store
            from obstore.exceptions import BaseError
        except ImportError:
            raise DurabilityError(
                f"'{self.where}' needs the client of object stores, which is not installed:"
                " pip install 'nosync[cloud]'"
            ) from None
        plain = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true")
        kinds = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}
        options: Mapping[str, object] = {
            "prefix": self._prefix or None,
            "client_options": {
                "read_timeout": timedelta(seconds=whole_s if large else policy.silent_s),
                "timeout": timedelta(seconds=whole_s),
                "connect_timeout": timedelta(seconds=_CONNECT_S),
                "allow_http": plain and self._kind == "s3",
            },
            "retry_config": {
                "max_retries": _RETRIES,
                "retry_timeout": timedelta(seconds=policy.silent_s),
            },
        }
        try:
            client: ObjectStore = kinds[self._kind](self._name, **options)
        except (BaseError, ValueError, OSError):
            raise DurabilityError(
                f"'{self.where}' cannot be used: the environment lacks settings"
                f" ({_ENVIRONMENT[self._kind]})"
            ) from None
        return client

    def _request_error(self, text: str) -> DurabilityError:
        """Returns the error for a failed request; `text`, the client's message, is not shown."""
        status, code = _STATUS.search(text), _CODE.search(text)
        answer = " ".join(each[1] for each in (status, code) if each)
        if _NO_BUCKET.search(text):
            return DurabilityError(
                f"'{self.where}': there is no bucket '{self._name}'",
                hint="create it, or use another bucket",
            )
        if _NO_CREDENTIALS.search(text):
            return DurabilityError(
                f"'{self.where}' cannot be used: the environment has no credentials"
                f" ({_ENVIRONMENT[self._kind]})"
            )
        if status and status[1] in _DENIED:
            return DurabilityError(
                f"'{self.where}' denies access: {answer}; the credentials come from the"
                f" environment ({_ENVIRONMENT[self._kind]})",
                hint="use credentials that allow list, read, write and delete",
            )
        if answer:
            return DurabilityError(f"'{self.where}' answers {answer}")
        late = f" within {remote_call.BUCKET.silent_s:g} s" if _TIMED_OUT.search(text) else ""
        return DurabilityError(f"'{self.where}' cannot be reached{late}")


def _limited_body(got: GetResult, most: int) -> bytes:
    """Returns the bytes of a response; empty if there are more than `most`."""
    data = bytearray()
    for piece in got.stream(_CHUNK_BYTES):
        data += piece
        if len(data) > most:
            return b""
    return bytes(data)


def _list_page(client: ObjectStore, after: str | None) -> list[str]:
    """Returns one page of the keys after `after`, ascending; empty if there are no more."""
    pages = client.list(offset=after, chunk_size=_PAGE)
    return [each["path"] for each in next(iter(pages), ())]


def _list_all(client: ObjectStore, prefix: str) -> list[ObjectName]:
    """Returns the objects below a prefix; stops once there are more than `_LISTED_MAX`."""
    objects: list[ObjectName] = []
    for page in client.list(prefix):
        objects += (ObjectName(each["path"], each["e_tag"] or "") for each in page)
        if len(objects) > _LISTED_MAX:
            break
    return objects


Given = TypeVar("Given")


def _in_parallel(call: Callable[[Given], Result], values: Sequence[Given]) -> list[Result]:
    """Returns the results of calls, in order; at most `_PARALLEL_MAX` run in parallel."""
    if len(values) < 2:
        return [call(each) for each in values]
    with ThreadPoolExecutor(min(_PARALLEL_MAX, len(values)), "nosync objects") as pool:
        return list(pool.map(call, values))
