"""Proposals: large layers that a keeper merges for its owner, who takes the files or leaves them.

A merge of many rows in the process that commits takes turns of the interpreter and of memory away
from epochs. So the owner asks his keeper for it, in a line of the pipe that wakes it; the keeper
reads the files of the layers, writes others that add up to the same, and says in a line of its
output which they are. It is asked by nobody else: what lies in a log makes no keeper merge.

IMPORTANT: nothing of the log is changed by it: no frame, no frontier, no file that anybody knows
of. Its files have names that nobody else gives, and are on the disk before he hears of them; they
count when a checkpoint of the owner names them, and until then whoever opens the log next sweeps
them as he does those of any merge that came to nothing. What it does not finish, since it cannot,
or its owner has ended, or another one has taken over, it takes back itself.

Memory: the rows of one range of key hashes; see `merging`.
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
from nosync_nb.trace.merge import each_range
from nosync_nb.trace.parts.part_file import PartRef, open_part, refs_from_json, write_parts

LINE_MAX = 1 << 15
"""The most bytes of a line in which a merge is asked for: a pipe takes them at once."""

_NEWS = b"."


class MergeRequest(NamedTuple):
    """A merge that an owner asks for.

    Attributes:
        merge: tells it from others that he asks for.
        stem: how the names of its files begin.
        layers: the files of each, oldest first.
    """

    merge: int
    stem: str
    layout: Layout
    layers: tuple[tuple[PartRef, ...], ...]

    @property
    def line(self) -> bytes:
        """What is written to a keeper; before it ends what was cut short."""
        return b"\n" + json.dumps(self).encode() + b"\n"

    @classmethod
    def told_in(cls, line: bytes) -> MergeRequest:
        """What stands in a line of an owner.

        Raises:
            ValueError, TypeError, CorruptLogError: it is none.
        """
        merge, stem, layout, layers = json.loads(line)
        every = tuple(refs_from_json(refs) for refs in layers)
        return cls(int(merge), checked_file_name(stem), Layout.from_json(layout), every)


class MergeProposal(NamedTuple):
    """What a keeper says of a merge.

    Attributes:
        merge: as it was asked for.
        done: it says nothing more of it.
        files: those that it has written, ascending in key hash; none if it could not.
        why: it could not, in words.
    """

    merge: int
    done: bool = False
    files: tuple[PartRef, ...] = ()
    why: str = ""

    @classmethod
    def of(cls, said: dict[str, Any]) -> MergeProposal:
        """A proposal as JSON has it.

        Raises:
            TypeError, CorruptLogError: it is none.
        """
        made = cls(**said)
        return made._replace(files=refs_from_json(made.files))


class MergeRequests:
    """What an owner writes to his keeper, taken apart: lines are merges, all else is only news."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, data: bytes) -> list[MergeRequest]:
        """Takes bytes as they come; returns the merges that have been asked for in full."""
        *lines, rest = (self._rest + data).split(b"\n")
        rest = rest.lstrip(_NEWS)
        self._rest = rest if len(rest) <= LINE_MAX else b""
        asked = []
        for line in (each.strip(_NEWS) for each in lines):
            # What was cut short is no merge: who asked for it knows, and does it himself.
            with suppress(ValueError, TypeError, CorruptLogError):
                asked += [MergeRequest.told_in(line)] if line else []
        return asked


class KeeperMerger:
    """Merges for the owner of a log, in a thread that begins when he asks for the first time.

    Args:
        generation: the owner's.
        tell: called with what is to be said to him.
    """

    def __init__(
        self, folder: str, generation: int, tell: Callable[[MergeProposal], None], files: Files
    ) -> None:
        self._folder, self._generation = folder, generation
        self._parts = os.path.join(folder, FOLDERS[PART])
        self._tell, self._files = tell, files
        self._news = threading.Condition()
        self._asked: deque[MergeRequest] = deque()  # with `_news`, as what follows
        self._ended = False
        self._thread: threading.Thread | None = None

    def ask(self, asked: Iterable[MergeRequest]) -> None:
        """Has merges done, one after the other."""
        with self._news:
            self._asked.extend(asked)
            if self._asked and self._thread is None and not self._ended:
                self._thread = threading.Thread(target=self._run, name="merge", daemon=True)
                self._thread.start()
            self._news.notify_all()

    def end(self, wait_s: float) -> None:
        """Ends it after the range that it merges; what it has not told of goes."""
        with self._news:
            self._ended = True
            self._news.notify_all()
        if self._thread is not None:
            self._thread.join(wait_s)

    def _run(self) -> None:
        parallel.single_threaded()  # the other ones are for who commits
        while True:
            with self._news:
                self._news.wait_for(lambda: self._asked or self._ended)
                if self._ended:
                    return
                asked = self._asked.popleft()
            self._tell(self.merged(asked))

    def merged(self, asked: MergeRequest) -> MergeProposal:
        """Merges files, and says which hold the result, or why there is none.

        Nothing that it meets is raised: the owner does without.
        """
        written: list[PartRef] = []
        try:
            source = LogSource(self._folder, self._generation, files=self._files)
            try:
                self._merge(asked, source, written)
            finally:
                source.close()
        except Exception as error:
            for ref in written:  # he was never told of them
                with suppress(DurabilityError):
                    self._files.unlink(checked_path_within(self._parts, ref.path, PART))
            return MergeProposal(asked.merge, done=True, why=str(error) or type(error).__name__)
        return MergeProposal(asked.merge, done=True, files=tuple(written))

    def _merge(self, asked: MergeRequest, source: LogSource, written: list[PartRef]) -> None:
        """Adds to what was written range by range, while the owner is one and wants it.

        The files are compared with their checksums: what went bad would be proven good for ever.
        """
        layers = [
            [
                open_part(self._parts, ref, asked.layout, files=self._files, checked=True)
                for ref in r
            ]
            for r in asked.layers
        ]
        for batch in each_range(asked.layout, layers):
            source.check()
            if self._ended:
                raise DurabilityError("whom it was merged for has ended")
            written += write_parts(self._parts, [batch], asked.stem, files=self._files)
            self._tell(MergeProposal(asked.merge))
        source.check()
