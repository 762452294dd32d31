"""Merges large layers in the keeper; the owner of the log then adopts the files or ignores them.

A merge of many rows in the committing process takes turns of the interpreter and memory bandwidth
away from epochs. So the owner requests it from its keeper, with a line in the pipe that wakes the
keeper. The keeper reads the files of the layers, writes files with the same sums, and lists these
in a line of its output. It accepts requests from its owner only: the content of a log cannot start
a merge.

IMPORTANT: a merge changes nothing in the log: no frame, no frontier, no file that is referenced.
Its files have unique names and are durable before the owner receives the list. They become part of
the log when a checkpoint of the owner names them. Until then the next opening deletes them, like
those of any unfinished merge. The keeper deletes the files of a merge that failed, whose owner has
ended, or whose log has another owner.

Memory: the rows of one range of key hashes; see `nosync_nb.trace.compaction`.
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from nosync_nb.errors import CorruptLogError, DurabilityError
from nosync_nb.files.filesystem import Files
from nosync_nb.files.safe_names import FOLDERS, PART, checked_file_name, checked_path_within
from nosync_nb.rows import parallel
from nosync_nb.store.replication.agent.log_source import LogSource
from nosync_nb.trace.batch import Layout
from nosync_nb.trace.compaction import each_range
from nosync_nb.trace.parts.part_file import PartRef, open_part, refs_from_json, write_parts

LINE_MAX = 1 << 15
"""The maximum size of a request's line in bytes, because a pipe accepts only that many at once."""

_WAKE_BYTE = b"."


class MergeRequest(NamedTuple):
    """A merge that an owner requests.

    Attributes:
        merge: the number that identifies the request.
        stem: the prefix of the names of the files to be written.
        layout: the layout of the layers.
        layers: the files of each layer, the oldest layer first.
    """

    merge: int
    stem: str
    layout: Layout
    layers: tuple[tuple[PartRef, ...], ...]

    @property
    def line(self) -> bytes:
        """The line for the keeper; its first newline ends an earlier line that was cut short."""
        return b"\n" + json.dumps(self).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> MergeRequest:
        """Parses a line that the owner has written.

        Raises:
            ValueError, TypeError, CorruptLogError: the line is not a valid request.
        """
        merge, stem, layout, layers = json.loads(line)
        every = tuple(refs_from_json(refs) for refs in layers)
        return cls(int(merge), checked_file_name(stem), Layout.from_json(layout), every)


class MergeProposal(NamedTuple):
    """The answer of a keeper to a request.

    Attributes:
        merge: the number of the request.
        done: True if this is the last answer; False if it only reports progress.
        files: the written files, ascending in key hash; empty if the merge failed.
        why: the reason why the merge failed; else empty.
    """

    merge: int
    done: bool = False
    files: tuple[PartRef, ...] = ()
    why: str = ""

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> MergeProposal:
        """Decodes a proposal from JSON.

        Raises:
            TypeError, CorruptLogError: the proposal is malformed.
        """
        proposal = cls(**fields)
        return proposal._replace(files=refs_from_json(proposal.files))


class MergeRequests:
    """Splits the input of a keeper: lines are merge requests, other bytes only wake it."""

    def __init__(self) -> None:
        self._partial_line = b""

    def complete_requests(self, data: bytes) -> list[MergeRequest]:
        """Adds the next bytes of the input; returns the requests that they complete."""
        *lines, rest = (self._partial_line + data).split(b"\n")
        rest = rest.lstrip(_WAKE_BYTE)
        self._partial_line = rest if len(rest) <= LINE_MAX else b""
        requests = []
        for line in (each.strip(_WAKE_BYTE) for each in lines):
            # A line that was cut short is ignored, because its sender knows and merges itself.
            with suppress(ValueError, TypeError, CorruptLogError):
                requests += [MergeRequest.parse(line)] if line else []
        return requests


class KeeperMerger:
    """Merges for the owner of a log, in a thread that starts with the first request.

    Args:
        generation: the generation of the owner.
        tell: called with each answer.
    """

    def __init__(
        self, folder: str, generation: int, tell: Callable[[MergeProposal], None], files: Files
    ) -> None:
        self._folder, self._generation = folder, generation
        self._parts = os.path.join(folder, FOLDERS[PART])
        self._tell, self._files = tell, files
        self._news = threading.Condition()
        self._queue: deque[MergeRequest] = deque()  # guarded by `_news`, with the next two
        self._stopped = False
        self._thread: threading.Thread | None = None

    def ask(self, requests: Iterable[MergeRequest]) -> None:
        """Queues merges, which run one after the other."""
        with self._news:
            self._queue.extend(requests)
            if self._queue and self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._run, name="merge", daemon=True)
                self._thread.start()
            self._news.notify_all()

    def end(self, wait_s: float) -> None:
        """Stops the thread after the current range, and waits at most `wait_s` for it.

        The files of an unfinished merge are deleted.
        """
        with self._news:
            self._stopped = True
            self._news.notify_all()
        if self._thread is not None:
            self._thread.join(wait_s)

    def _run(self) -> None:
        parallel.single_threaded()  # the other cores are for the committing process
        while True:
            with self._news:
                self._news.wait_for(lambda: self._queue or self._stopped)
                if self._stopped:
                    return
                request = self._queue.popleft()
            self._tell(self.merged(request))

    def merged(self, request: MergeRequest) -> MergeProposal:
        """Merges files; returns the list of the results, or the reason of a failure.

        Never raises, because the log stays valid without the merge.
        """
        written: list[PartRef] = []
        try:
            source = LogSource(self._folder, self._generation, files=self._files)
            try:
                self._merge(request, source, written)
            finally:
                source.close()
        except Exception as error:
            for ref in written:  # safe, because their names were never sent to the owner
                with suppress(DurabilityError):
                    self._files.unlink(checked_path_within(self._parts, ref.path, PART))
            return MergeProposal(request.merge, done=True, why=str(error) or type(error).__name__)
        return MergeProposal(request.merge, done=True, files=tuple(written))

    def _merge(self, request: MergeRequest, source: LogSource, written: list[PartRef]) -> None:
        """Writes the result range by range, and adds the files to `written`.

        Raises if the owner has ended or another one has taken over. Checksums are verified, because
        otherwise the merge would write damaged rows with a valid checksum.
        """
        layers = [
            [
                open_part(self._parts, ref, request.layout, files=self._files, checked=True)
                for ref in r
            ]
            for r in request.layers
        ]
        for batch in each_range(request.layout, layers):
            source.check()
            if self._stopped:
                raise DurabilityError("the owner that requested the merge has ended")
            written += write_parts(self._parts, [batch], request.stem, files=self._files)
            self._tell(MergeProposal(request.merge))
        source.check()
