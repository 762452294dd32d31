"""Commits each micro-batch of a streaming DataFrame as one epoch, exactly once.

    session.stream(spark.readStream.parquet("data"), into=flights)

Spark numbers micro-batches, and records in a checkpoint which of them it has delivered. The number
of the last one is recorded in the frame of its epoch, under the id that the checkpoint gives the
query. So a batch that is delivered again after a kill is recognised, and the record does not grow.
Spark gets the acknowledgement of a batch when its epoch is on disk, not before: every batch in its
checkpoint is in the log. The rows of a batch are fixed on disk before its epoch is committed
(`spark/streaming.py`).

Failure
    1. The log is restored from replicas; the checkpoint was on the lost disk. 2. Spark delivers all
    batches from the beginning, and their rows are inserted twice. Hence the first batch of an input
    is recorded as such, and another first batch is refused.

    1. The log's own checkpoint, of the epoch before the last one, is written after the last one. 2.
    The power fails, and the last epoch is lost. Hence numbers are recorded in two places in turn:
    the previous number is still recorded then, and all epochs before it are on disk.

    1. The session is rewound. 2. Spark has delivered the batches after that epoch, and does not
    deliver them again. They are in the backup branch of the rewind.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nosync_nb.collections.functions import signing
from nosync_nb.errors import NosyncError, StageError, TrustError
from nosync_nb.session.feeds.feed_threads import Feeder, FeedRegistry, feeding
from nosync_nb.session.writes.idempotency import BLOCK, idempotency_mark
from nosync_nb.session.writes.input import Input, belongs_to
from nosync_nb.store.catalog import signature

if TYPE_CHECKING:
    from nosync_nb.spark.streaming import StreamFolder

FOLDER = "streams"
"""The subfolder of the log in which Spark stores the progress of streams by default."""


class StreamFeed(Feeder):
    """A stream that feeds an input until `stop`, until it fails, or its session ends.

    Threads: any may call it. Spark delivers batches, one after the other, in a thread of its own.

    Attributes:
        query: Spark's `StreamingQuery`.
        epochs: the number of epochs of this feed.
        last: the last epoch of this feed; None before the first one.
    """

    def __init__(
        self, stream_feeds: StreamFeeds, into: Input, checkpoint: str, *, anew: bool
    ) -> None:
        super().__init__(stream_feeds.subscriptions)
        self.query: Any = None
        self.epochs = 0
        self.last: int | None = None
        self._stream_feeds = stream_feeds
        self._into = into
        self._uid = stream_feeds.publisher.snapshot.stage(into.name or "").uid
        self._first_key = None if anew else f"stream {self._uid} {checkpoint}"
        self._query_id = ""
        self._folder: StreamFolder | None = None
        self._query_started = threading.Event()
        self._error: BaseException | None = None

    def catch_up(self) -> int | None:
        """Waits until all current rows of the source are epochs; returns the last epoch.

        Raises:
            NosyncError: a batch was not committed, with the reason.
        """
        try:
            if self.running:
                self.query.processAllAvailable()
        except Exception as error:
            raise self._error or self._query_error(error) from None
        if self._error is not None:
            raise self._error
        return self.last

    def stop(self) -> None:
        """Stops the stream after the batch that it is loading; reports remaining failures."""
        self._ended.set()
        if self.query is not None and not self._stream_feeds.inherited:
            try:
                self.query.stop()
            except Exception as error:  # the JVM has ended
                self._queue_report(f"{self._title()} was not stopped: {error}")
        super().stop()

    def start_query(self, frame: Any, checkpoint: str, trigger: Mapping[str, Any]) -> None:
        """Starts the query, and the thread that waits for its end."""
        from nosync_nb.spark import streaming

        try:
            name = self._into.name or ""
            self._folder = streaming.stream_folder_of(
                frame.sparkSession, self._stream_feeds.publisher.store.files, checkpoint, name=name
            )
            self.query = streaming.start_query(
                frame, self._commit_batch, checkpoint, trigger, name=name
            )
            self._query_id = str(self.query.id)
        except BaseException:
            self._ended.set()
            raise
        finally:
            self._query_started.set()
        name = f"nosync stream into {self._into.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        state = "running" if self.running else "failed" if self._error else "stopped"
        epochs = f"{self.epochs} epoch" + "s" * (self.epochs != 1)
        return f"<{state} {self._title()}: {epochs}>"

    def _title(self) -> str:
        return f"stream into '{self._into.name}'"

    def _run(self) -> None:
        """Waits for the end of the query; reports the reason if it was not stopped."""
        try:
            self.query.awaitTermination()
        except Exception as error:
            if not self._ended.is_set():
                self._error = self._error or self._query_error(error)
                self._queue_report(f"{self._title()} has ended: {self._error}")
        finally:
            self._ended.set()

    def _query_error(self, error: Exception) -> NosyncError:
        """Translates an error of the query."""
        from nosync_nb.spark import error_translation

        return error_translation.query_error(error, f"stream into {self._into.name}")

    def _commit_batch(self, frame: Any, batch: int) -> None:
        """Commits a micro-batch as an epoch; it is on disk when this returns."""
        self._query_started.wait()
        try:
            if self._ended.is_set() or self._stream_feeds.over:
                raise StageError(
                    f"{self._title()} is stopped", hint="start it again with session.stream(...)"
                )
            self._sync_checkpoint()
            self._load(frame, batch)
            self._stream_feeds.commits.sync("disk")
            self._sync_checkpoint()
        except BaseException as error:
            if not self._ended.is_set():
                self._error = error
                hints = " ".join(getattr(error, "__notes__", ()))
                self._queue_report(
                    f"{self._title()} has ended: batch {batch} was not inserted:"
                    f" {error}\n{hints}\nHint: start the stream again, which repeats the batch"
                )
                self._ended.set()
            raise

    def _sync_checkpoint(self) -> None:
        """Waits until the files of the query are on disk; a remote checkpoint needs no wait."""
        if self._folder is not None:
            self._folder.sync()

    def _load(self, frame: Any, batch: int) -> None:
        from nosync_nb.spark.streaming import drain_batch, handing

        streams, name = self._stream_feeds, self._into.name or ""
        if streams.publisher.snapshot.stage(name).uid != self._uid:
            raise StageError(
                f"{self._title()}: the input was dropped, and another one has its name",
                hint="stream into the current input",
            )
        kind = "upsert" if self._into.key else "insert"
        marks = [idempotency_mark(self._uid, kind, f"{self._query_id} {turn}") for turn in (0, 1)]
        noted = list(map(streams.load_registry.last_note, marks))
        if batch <= max(map(int, filter(str.isdecimal, noted)), default=-1):
            drain_batch(frame)
            return
        first = None if batch else self._first_key
        with handing, feeding, streams.commits.epoch_block(first, None) as block:
            if block.skipped:
                raise self.restart_error()
            streams.ingest.ingest(name, kind, frame)
            block.note(marks[batch % 2], str(batch), noted[batch % 2])
        self.epochs, self.last = self.epochs + 1, block.number

    def is_lost(self) -> bool:
        """Returns True if the log has the first batch of this stream already."""
        return self._first_key is not None and self._stream_feeds.load_registry.is_loaded(
            f"{BLOCK}{self._first_key}"
        )

    def restart_error(self) -> StageError:
        """Returns the error for a stream that Spark would start from scratch."""
        return StageError(
            f"{self._title()}: the log has its batches, but its checkpoint is missing: Spark"
            " would repeat all of them",
            hint="pass checkpoint=, or restart from the source's current content with anew=True,"
            " preferably into another input",
        )


class StreamFeeds(FeedRegistry[StreamFeed]):
    """The streams of a session."""

    def start(
        self,
        frame: Any,
        into: Any,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        anew: bool = False,
        **trigger: Any,
    ) -> StreamFeed:
        """Starts a feed; see `Session.stream`."""
        from nosync_nb.spark import streaming

        if not isinstance(into, Input) or not belongs_to(into, self.ingest):
            raise StageError(
                f"stream(into={into!r}) is not an input of this session",
                hint="pass one: session.stream(frame, into=session.input('flights', ...))",
            )
        self._writer_lock.writable("stream")
        if not isinstance(checkpoint, str | os.PathLike | None):
            raise StageError(
                f"stream(checkpoint={checkpoint!r}) is not a folder or URL",
                hint="pass a folder or a URL, or omit it to use a folder below the log's",
            )
        name, place = into.name or "", os.fspath(checkpoint or "")
        streaming.check_stream(frame, into.schema, name, trigger)
        self._stop((name, place))
        feed = StreamFeed(self, into, place, anew=anew)
        try:
            stage = self.publisher.snapshot.stage(name)
            feed.start_query(frame, place or self._default_checkpoint(feed, stage.uid), trigger)
            self._register((name, place), feed)
        except BaseException:
            feed.stop()
            raise
        return feed

    def _default_checkpoint(self, feed: StreamFeed, uid: str) -> str:
        """Returns the default folder for the progress of a stream.

        Failure: 1. An untrusted log contains a checkpoint. 2. Spark adopts its settings, which may
        name classes. Hence the name of the folder depends on this user's key.

        Raises:
            StageError: the log has batches of the stream, and its checkpoint is missing.
            TrustError: this user has no key.
        """
        store = self.publisher.store
        try:
            folder = signature.own_key_name(signing.user_key(), store.log.id, f"stream {uid}")
        except TrustError as error:
            error.add_note("Hint: or pass a folder for Spark's checkpoint: checkpoint=")
            raise
        path = os.path.join(store.path, FOLDER, folder)
        store.files.make_folder(path)
        if feed.is_lost() and not store.files.exists(os.path.join(path, "metadata")):
            raise feed.restart_error()
        return f"file://{path}"  # because Spark's default file system may be another one
