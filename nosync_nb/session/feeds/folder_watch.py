"""Watches folders: each file that appears becomes one epoch of an input.

    watch("data/*.parquet", into=flights)

A file is identified by its path below the pattern's folder and a digest of its bytes. These are the
idempotency key of its load, so it is committed once, also after a kill and another watch. A file
with other bytes under the same name is another load: its rows are added, or replace those of their
keys in a keyed input.

Design
    A thread lists the folder, at most once a second. It reads a file that is unchanged since the
    last listing, because nothing signals that a file is complete. A file that cannot be loaded is
    refused: `refused` has the reason, and it is reported once (see feed_threads.py). It is tried
    again when the file or a definition has changed; after a disk error, at the next listing.

Failure
    1. A listing is interrupted, maybe in the middle of a file. 2. The next watch does not know
    which files were loaded. Hence the key of a load is in the frame of its epoch. A session that is
    closed or fenced ends the watch.

    1. The session is rewound. 2. The running watch loads all undone files again within a second.
    Hence a watch loads no file twice; a new watch does, because the keys of undone epochs are
    forgotten.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Collection, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nosync_nb.errors import NosyncError, SchemaError, StageError, one_line
from nosync_nb.files import user_files
from nosync_nb.files.user_files import FileMark
from nosync_nb.rows.ingest import file_formats
from nosync_nb.session.feeds.feed_threads import Feeder, FeedRegistry, feeding
from nosync_nb.session.state.report import listed_names
from nosync_nb.session.writes.idempotency import idempotency_mark
from nosync_nb.session.writes.input import Input, folder_watches_of
from nosync_nb.store import threads

if TYPE_CHECKING:
    from nosync_nb.dataflow.runtime.activity import ActivityMonitor
    from nosync_nb.session.writes.commit import EpochBlock

EVERY_S_MIN = 1.0
_REFUSED_MAX = 10
"""The most refused files that an error or a view names."""


class FailedFile(NamedTuple):
    """A file that could not be loaded, the reason, and the graph at that time."""

    mark: FileMark
    reason: str
    graph: object


class WatchStatus(NamedTuple):
    """The status of a watch, for users.

    Attributes:
        loaded: the number of files that it has committed.
        unsettled: the number of files that may still be written.
        refused: the reasons why files could not be loaded, by path.
    """

    pattern: str
    into: str
    running: bool
    loaded: int
    unsettled: int
    refused: Mapping[str, str]

    def __str__(self) -> str:
        state = "watching" if self.running else "stopped watching"
        return f"{state} {self.pattern} into {self.into}: {self.counts}"

    @property
    def refusal_texts(self) -> list[str]:
        """The messages about the first refused files, and the number of the others."""
        first = [*self.refused.items()][:_REFUSED_MAX]
        texts = [_refusal(path, self.into, why) for path, why in first]
        more = len(self.refused) - len(first)
        return [*texts, f"and {more} more: .refused has all"] if more else texts

    @property
    def counts(self) -> str:
        """The numbers of files in words: `3 loaded, 1 still being written`."""
        parts = [f"{self.loaded} loaded"]
        parts += [f"{self.unsettled} still being written"] if self.unsettled else []
        parts += [f"{len(self.refused)} refused"] if self.refused else []
        return ", ".join(parts)


class FolderWatch(Feeder):
    """A pattern of files that is watched until `stop`, or until its session ends.

    Threads: any may call it; `_lock` is held during a listing.

    Attributes:
        pattern: the pattern of the file paths.
        status: the numbers of files that are loaded, refused or not settled yet, as of the last
            listing.
    """

    def __init__(
        self, folder_watches: FolderWatches, pattern: str, into: Input, every: float
    ) -> None:
        super().__init__(folder_watches.subscriptions)
        self.pattern = pattern
        self._folder_watches = folder_watches
        self._into = into
        self._every = every
        self._folder = user_files.glob_root(pattern)
        self._lock = threading.RLock()
        self._after_listing = threading.Condition(self._lock)  # notified after each listing
        self._listings = 0
        self._last_error = ""  # the error of the last listing
        self._listed: dict[str, FileMark] = {}  # the files at the last listing
        # The files that were loaded or refused.
        self._outcomes: dict[str, FileMark | FailedFile] = {}
        # For each file its last committed block, and a block that is not committed yet.
        self._blocks: dict[str, tuple[EpochBlock, ...]] = {}
        self._status = WatchStatus(pattern, into.name or "", False, 0, 0, {})

    @property
    def loaded(self) -> dict[str, int]:
        """The last epoch of each file that this watch has loaded, by path."""
        blocks = (
            (path, block) for path, of_file in list(self._blocks.items()) for block in of_file
        )
        return {path: block.number for path, block in blocks if block.number is not None}

    @property
    def refused(self) -> dict[str, str]:
        """The reasons why existing files could not be loaded, by path."""
        return dict(self._status.refused)

    @property
    def status(self) -> WatchStatus:
        """The status of the watch, as of the last listing."""
        return self._status._replace(running=self.running)

    def look(self) -> int:
        """Loads the settled files now; returns the number of new epochs."""
        with self._lock:
            previous, self._listed = self._listed, user_files.matching_files(self.pattern)
            try:
                return self._sweep(self._listed, previous)
            finally:
                self._listings += 1
                self._after_listing.notify_all()

    def catch_up(self, timeout: float | None = None) -> int | None:
        """Waits until all current files are loaded; returns the last epoch of the watch.

        A file is loaded when it has not been written for `every` seconds.

        Args:
            timeout: the longest wait for files to settle, in seconds; `None` means no limit.

        Raises:
            NosyncError: files were refused (the message has the reasons), or did not settle in
                time. All other files are loaded.
            StageError: the watch was stopped.
        """
        until = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            awaited = user_files.matching_files(self.pattern).keys()
            while unsettled := self._load_settled(awaited):
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise self._timeout_error([*unsettled], timeout or 0)
                self._await(unsettled, left)
            refused = {path: why for path, why in self.refused.items() if path in awaited}
            if refused:
                raise self._refused_error(refused)
            return max(self.loaded.values(), default=None)

    def start_watching(self) -> None:
        """Lists the files once, and then starts the thread."""
        self.look()
        self.report_failures()
        if count := self._status.unsettled:
            it = "it" if count == 1 else "them"
            self._subscriptions.add_notice(
                f"{self.pattern}: {count} still being written (changed less than"
                f" {self._every:g} s ago); .catch_up() waits for {it}"
            )
        name = f"nosync watch {self.pattern}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return one_line(f"<{self.status}>")

    def _run(self) -> None:
        with feeding:
            while not self._ended.wait(self._every):
                try:
                    self.look()
                    self._last_error = ""
                except Exception as error:  # not of a file: those are handled per file
                    previous, self._last_error = (
                        self._last_error,
                        f"watching '{self.pattern}': {error}",
                    )
                    if self._last_error != previous:
                        self._queue_report(self._last_error)

    def _load_settled(self, awaited: Collection[str]) -> dict[str, FileMark]:
        """Loads the settled files; returns the marks of the awaited files that are not settled."""
        self._folder_watches.check()
        if self._ended.is_set():
            raise StageError(
                f"the watch of '{self.pattern}' was stopped",
                hint=f"watch again: nosync.watch('{self.pattern}', into={self._into.name})",
            )
        files = user_files.matching_files(self.pattern)
        self._sweep(files, {}, quiet=awaited)
        return {path: files[path] for path in self._unsettled(files) if path in awaited}

    def _await(self, unsettled: Mapping[str, FileMark], left: float | None) -> None:
        """Waits until an unsettled file is old enough, or the thread has listed the files again.

        Requires the lock.

        Args:
            left: the longest wait in seconds; None means no limit.
        """
        now, looks = time.time(), self._listings
        due = min(self._every - now + mark.changed_ns / 1e9 for mark in unsettled.values())
        seconds = max(due, 0.01) if left is None else min(max(due, 0.01), left)
        threads.wait_until(
            self._after_listing, lambda: self._listings != looks or self._ended.is_set(), seconds
        )

    def _timeout_error(self, paths: Sequence[str], timeout: float) -> NosyncError:
        files = listed_names([f"'{path}'" for path in paths])
        return NosyncError(
            f"still being written after {timeout:g} s: {files}",
            hint=f"wait longer: .catch_up(timeout=60); a file is loaded {self._every:g} s after its"
            " last write",
        )

    def _refused_error(self, refused: Mapping[str, str]) -> NosyncError:
        """Returns the error of refused files; the next commit does not report them again."""
        reported = {_refusal(path, self._into.name or "", why) for path, why in refused.items()}
        with self._mutex:
            self._unreported = tuple(text for text in self._unreported if text not in reported)
        files = "1 file was" if len(refused) == 1 else f"{len(refused)} files were"
        reasons = [
            why if repr(path) in why else f"'{path}': {why}" for path, why in refused.items()
        ]
        if (more := len(reasons) - _REFUSED_MAX) > 0:
            reasons[_REFUSED_MAX:] = [f"and {more} more"]
        return NosyncError(
            "\n".join([f"{files} not loaded into '{self._into.name}':", *reasons]),
            hint="correct the file, or move it out of the folder, then .catch_up() again;"
            " .refused has the reason of each",
        )

    def _sweep(
        self,
        files: Mapping[str, FileMark],
        previous: Mapping[str, FileMark],
        quiet: Container[str] = (),
    ) -> int:
        """Loads the settled files of a listing; returns the number of new epochs.

        Args:
            previous: the files at the previous listing; a file with an equal mark is settled.
            quiet: files that are not reported if they are refused.
        """
        epochs = 0
        for path in [path for path in self._outcomes if path not in files]:
            del self._outcomes[path]
        try:
            for path, mark in files.items():
                if self._ended.is_set():
                    break
                still = previous.get(path) == mark or self._is_settled(mark)
                if still and file_formats.kind_of(path) and self._must_load(path, mark):
                    epochs += self._try_load(path, mark, quiet=path in quiet)
            return epochs
        finally:
            outcomes = list(self._outcomes.items())
            self._status = self._status._replace(
                loaded=len(self.loaded),
                unsettled=len(self._unsettled(files)),
                refused={
                    path: outcome.reason
                    for path, outcome in outcomes
                    if isinstance(outcome, FailedFile) and outcome.mark == files.get(path)
                },
            )

    def _unsettled(self, files: Mapping[str, FileMark]) -> list[str]:
        """Returns the files that were neither loaded nor refused in their current form."""
        return [
            path
            for path, mark in files.items()
            if file_formats.kind_of(path) and _mark_of(self._outcomes.get(path)) != mark
        ]

    def _is_settled(self, mark: FileMark) -> bool:
        """Returns True if a file was not written during the last `every` seconds."""
        return time.time() - mark.changed_ns / 1e9 > self._every

    def _must_load(self, path: str, mark: FileMark) -> bool:
        """Returns True if a file must be loaded, or loaded again after a failure and a change."""
        outcome = self._outcomes.get(path)
        if not isinstance(outcome, FailedFile):
            return outcome != mark
        return (
            outcome.mark != mark
            or outcome.graph is not self._folder_watches.publisher.snapshot.graph
        )

    def _try_load(self, path: str, mark: FileMark, *, quiet: bool) -> bool:
        """Loads a file, and records a failure. Returns True if the file has become an epoch."""
        try:
            epoch = self._load(path, mark)
        except Exception as error:
            if self._folder_watches.over:  # the error is about the session, not about the file
                self._ended.set()
                return False
            reason = "\n".join([str(error), *getattr(error, "__notes__", ())])
            outcome = self._outcomes.get(path)
            if not quiet and (
                not isinstance(outcome, FailedFile)
                or (outcome.mark, outcome.reason) != (mark, reason)
            ):
                self._queue_report(_refusal(path, self._into.name or "", reason))
            # A disk error may be temporary; an error in the rows is not.
            graph = (
                None
                if isinstance(error, OSError)
                else self._folder_watches.publisher.snapshot.graph
            )
            self._outcomes[path] = FailedFile(mark, reason, graph)
            return False
        return epoch is not None

    def _load(self, path: str, mark: FileMark) -> int | None:
        """Commits a file as an epoch; None if it is committed already, or still being written."""
        watches, relative = self._folder_watches, os.path.relpath(path, self._folder)
        with watches.activities.record(
            f"reading {one_line(relative)}", mark.size_bytes, in_bytes=True
        ) as reading:
            data = user_files.file_content(path, mark, reading.add_steps)
        if data is None:
            return None
        digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        into, name = self._into, self._into.name or ""
        key, kind = f"{relative} {digest}", "upsert" if into.key else "insert"
        recorded = idempotency_mark(watches.ingest.stage(name).uid, kind, key)
        epoch = None
        with watches.loading:  # because a file may match two patterns
            if not watches.load_registry.is_loaded(recorded):
                what = f"decoding {one_line(relative)}"
                with watches.activities.record(what, len(data), in_bytes=True) as decoding:
                    table = file_formats.table_of(data, path, into.schema, decoding.add_steps)
                with watches.commits.epoch_block(None, None) as block:
                    committed = [b for b in self._blocks.get(path, ()) if b.number is not None]
                    self._blocks[path] = (*committed[-1:], block)
                    watches.ingest.ingest(name, kind, table, recorded)
                epoch = block.number
        self._outcomes[path] = mark
        return epoch


class FolderWatches(FeedRegistry[FolderWatch]):
    """The watches of a session.

    Attributes:
        loading: the lock that is held while a file is compared with the recorded loads and
            committed. It is acquired after the lock of a watch.
    """

    def __init__(self, *of_session: Any) -> None:
        super().__init__(*of_session)
        self.loading = threading.RLock()

    def status(self) -> tuple[WatchStatus, ...]:
        """Returns the status of watches that run or have refused files."""
        with self._lock:
            watches = list(self._feeders.values())
        return tuple(s for s in (each.status for each in watches) if s.running or s.refused)

    def check(self) -> None:
        """Raises an error if the session cannot load files now."""
        self._writer_lock.writable("catch_up")
        self.publisher.store.log.check()

    @property
    def activities(self) -> ActivityMonitor:
        """The monitor that receives the progress of a load."""
        return self.publisher.metrics.activities

    def start(self, pattern: str, into: Input, every: float) -> FolderWatch:
        """Starts a watch; stops an earlier one with that pattern and input."""
        self._writer_lock.writable("watch")
        key = pattern, into.name or ""
        self._stop(key)
        feed = FolderWatch(self, pattern, into, every)
        try:
            feed.start_watching()
            self._register(key, feed)
        except BaseException:
            feed.stop()
            raise
        return feed


def _refusal(path: str, into: str, reason: str) -> str:
    return f"'{path}' was not loaded into '{into}': {reason}"


def _mark_of(outcome: FileMark | FailedFile | None) -> FileMark | None:
    """Returns the mark of a file that was loaded or refused."""
    return outcome.mark if isinstance(outcome, FailedFile) else outcome


def watch(pattern: Any, into: Input, *, every: float = EVERY_S_MIN) -> FolderWatch:
    r"""Loads the files that match a pattern into an input: each becomes one epoch, once.

    Existing files are loaded before it returns, others when they appear, until `.stop()` or until
    the session ends. It reads Parquet, CSV with a header, and JSON lines, by the ending of the
    name; it ignores other files. A file that was written less than `every` seconds ago is not
    settled yet, and loaded later; `.catch_up(timeout=None)` waits until all existing files are
    loaded, and raises if one is refused. `.refused` has the reasons by path. Files undone by a
    rewind are loaded by a new watch, not by one that runs.

    Args:
        pattern: a pattern such as `"data/*.parquet"`; `**` matches nested folders.
        into: rows are inserted; into a keyed input they are upserted.
        every: seconds between listings, at least 1.

    Raises:
        SchemaError: files with such a name are not read.
        StageError: `into` is not an input.

    Examples:
        >>> from pathlib import Path
        >>> size = Path("tuesday.csv").write_text("carrier,day,delay\nUA,2,30.0\n")
        >>> feed = nosync.watch("*.csv", into=flights)
        >>> feed.catch_up(), late.count()
        (2, 3)
        >>> feed.stop()
    """
    text = os.fspath(pattern)
    if not isinstance(into, Input):
        raise StageError(
            f"watch('{text}'): into={into!r} is not an input",
            hint="pass one: watch('data/*.parquet', into=session.input('flights', ...))",
        )
    ending = os.path.splitext(text)[1]
    if ending and "*" not in ending and file_formats.kind_of(text) is None:
        raise SchemaError(
            f"watch('{text}'): files that end with {ending} are not supported",
            hint=f"use files that end with {', '.join(file_formats.KINDS)}",
        )
    return folder_watches_of(into).start(text, into, max(every, EVERY_S_MIN))
