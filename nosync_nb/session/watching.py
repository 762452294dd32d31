"""Watching folders: files that appear become epochs of an input, each once.

    watch("data/*.parquet", into=flights)

A file is known by its name below the pattern's folder and a digest of its bytes. With these as the
key of a load its epoch is recorded, so it is there once, whatever is killed and watched again. A
file of other bytes under an old name is another load: its rows are added, or replace those of
their keys in a keyed input.

Design
    A thread looks at the folder, at most once a second. It reads a file when that has stood still
    from one look to the next, as nobody says when a file is whole. What cannot be loaded is kept
    in mind and told to whoever commits next: in the thread nobody would see it. It is tried again
    when the file or what is defined has changed; what the disk refused, at the next look.

Failure
    A look that is interrupted, also in the middle of a file, has loaded each file or has not: the
    key stands in the epoch's own frame. A session that is closed or taken over ends the watch.

    Somebody goes back to an epoch, and the watch that runs brings all that was left again within a
    second. Hence it takes up no file twice; who watches again does, as the keys are left as well.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from nosync_nb.errors import SchemaError, StageError, one_line
from nosync_nb.files import given
from nosync_nb.files.given import FileMark
from nosync_nb.rows import tables
from nosync_nb.session.feeding import Feeder, Feeders
from nosync_nb.session.input import Input, mark_of, watches_of

if TYPE_CHECKING:
    from nosync_nb.dataflow.doing import Doing
    from nosync_nb.session.blocks import EpochBlock

EVERY_S_MIN = 1.0


class Failed(NamedTuple):
    """A file that could not be loaded, what was told of it, and the stages that there were then."""

    mark: FileMark
    text: str
    graph: object


class FolderWatch(Feeder):
    """A pattern of files that is looked at until `stop`, or until its session ends.

    Threads: any may look or stop; `_lock` is held through a look.

    Attributes:
        pattern: of the files.
    """

    def __init__(self, watches: Watches, pattern: str, into: Input, every: float) -> None:
        super().__init__(watches.listeners)
        self.pattern = pattern
        self._watches = watches
        self._into = into
        self._every = every
        self._folder = given.root(pattern)
        self._lock = threading.RLock()
        self._seen: dict[str, FileMark] = {}  # at the last look
        self._known: dict[str, FileMark | Failed] = {}  # what became of files: they are loaded, or
        # Of each file the last block that is an epoch, and one that is none yet.
        self._blocks: dict[str, tuple[EpochBlock, ...]] = {}

    @property
    def loaded(self) -> dict[str, int]:
        """By path, the epochs that this watch has made."""
        made = ((path, block) for path, own in list(self._blocks.items()) for block in own)
        return {path: block.number for path, block in made if block.number is not None}

    def look(self) -> int:
        """Loads what has appeared and stands still, now; returns how many epochs that made."""
        with self._lock:
            before, epochs = self._seen, 0
            self._seen = given.matching(self.pattern)
            self._forget_gone()
            for path, mark in self._seen.items():
                if self._ended.is_set():
                    break
                still = before.get(path) == mark or self._is_old(mark)
                if still and tables.kind_of(path) and self._is_new(path, mark):
                    epochs += self._tried(path, mark)
            return epochs

    def begin(self) -> None:
        """Looks once, and from then on in a thread."""
        self.look()
        self.tell()
        name = f"nosync watch {self.pattern}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        state = "watching" if self.running else "stopped"
        count = sum(isinstance(each, Failed) for each in list(self._known.values()))
        failed = f", {count} not loaded" if count else ""
        loaded = f"{len(self.loaded)} loaded{failed}"
        return f"<{state} {self.pattern} into {self._into.name}: {loaded}>"

    def _run(self) -> None:
        while not self._ended.wait(self._every):
            try:
                self.look()
            except Exception as error:  # of the folder: each file has its own
                self._note(f"watching '{self.pattern}': {error}")

    def _is_old(self, mark: FileMark) -> bool:
        """Whether nobody has written to a file for as long as from one look to the next."""
        return time.time() - mark.changed_ns / 1e9 > self._every

    def _is_new(self, path: str, mark: FileMark) -> bool:
        """Whether a file is to be loaded, or again if that failed and something has changed."""
        known = self._known.get(path)
        if not isinstance(known, Failed):
            return known != mark
        return known.mark != mark or known.graph is not self._watches.publisher.snapshot.graph

    def _forget_gone(self) -> None:
        for path in [path for path in self._known if path not in self._seen]:
            del self._known[path]

    def _tried(self, path: str, mark: FileMark) -> bool:
        """Loads a file; whether that made an epoch. What fails is kept in mind."""
        try:
            epoch = self._load(path, mark)
        except Exception as error:
            if self._watches.over:  # what it raised says that, and nothing of the file
                self._ended.set()
                return False
            hints = " ".join(getattr(error, "__notes__", ()))
            text = f"'{path}' was not loaded into '{self._into.name}': {error}\n{hints}"
            told = self._known.get(path)
            if not isinstance(told, Failed) or (told.mark, told.text) != (mark, text):
                self._note(text)
            # A disk that refuses may take it the next time; what is wrong with rows stays so.
            graph = None if isinstance(error, OSError) else self._watches.publisher.snapshot.graph
            self._known[path] = Failed(mark, text, graph)
            return False
        return epoch is not None

    def _load(self, path: str, mark: FileMark) -> int | None:
        """Makes an epoch of a file; None if there is one, or the file is being written."""
        watches, own = self._watches, os.path.relpath(path, self._folder)
        with watches.doing.of(f"reads {one_line(own)}", mark.size_bytes, in_bytes=True) as reading:
            data = given.content(path, mark, reading.took)
        if data is None:
            return None
        digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        into, name = self._into, self._into.name or ""
        key, kind = f"{own} {digest}", "upsert" if into.key else "insert"
        recorded = mark_of(watches.inputs.stage(name).uid, kind, key)
        epoch = None
        with watches.loading:  # a file may be of two patterns
            if not watches.loads.seen(recorded):
                what = f"decodes {one_line(own)}"
                with watches.doing.of(what, len(data), in_bytes=True) as decoding:
                    table = tables.table_of(data, path, into.schema, decoding.took)
                with watches.blocks.epoch(None, None) as block:
                    before = [b for b in self._blocks.get(path, ()) if b.number is not None]
                    self._blocks[path] = (*before[-1:], block)
                    watches.inputs.take(name, kind, table, recorded)
                epoch = block.number
        self._known[path] = mark
        return epoch

    def _is_own(self) -> bool:
        return threading.current_thread() is self._thread


class Watches(Feeders[FolderWatch]):
    """The watches of a session.

    Attributes:
        loading: held while a file is looked for among the loads and becomes one; after a look's.
    """

    def __init__(self, *of_session: Any) -> None:
        super().__init__(*of_session)
        self.loading = threading.RLock()

    @property
    def doing(self) -> Doing:
        """What is told how far a load is."""
        return self.publisher.works.doing

    def start(self, pattern: str, into: Input, every: float) -> FolderWatch:
        """Watches; who did so before with that pattern and input is stopped."""
        self._gate.writable("watch")
        key = pattern, into.name or ""
        self._stop(key)
        made = FolderWatch(self, pattern, into, every)
        try:
            made.begin()
            self._keep(key, made)
        except BaseException:
            made.stop()
            raise
        return made


def watch(pattern: Any, into: Input, *, every: float = EVERY_S_MIN) -> FolderWatch:
    """Loads files that a pattern names into an input: each becomes an epoch, once.

    Those that are there are loaded before it returns, others when they appear, until `.stop()` or
    until the session ends. Parquet, CSV with a header, JSON lines, by the ending of the name;
    other files are left alone. What a rewind leaves is loaded again when it is watched again, not
    by a watch that runs.

    Args:
        pattern: `"data/*.parquet"`; `**` for folders in folders.
        into: rows are inserted; into a keyed input they are upserted.
        every: seconds between looks, at least 1.

    Raises:
        SchemaError: no file of such a name is read.
        StageError: `into` is no input.
    """
    text = os.fspath(pattern)
    if not isinstance(into, Input):
        raise StageError(
            f"watch('{text}'): into={into!r} is no input",
            hint="give one: watch('data/*.parquet', into=session.input('flights', ...))",
        )
    ending = os.path.splitext(text)[1]
    if ending and "*" not in ending and tables.kind_of(text) is None:
        raise SchemaError(
            f"watch('{text}'): files that end with {ending} are not read",
            hint=f"those are read that end with {', '.join(tables.KINDS)}",
        )
    start: Callable[..., FolderWatch] = watches_of(into).start
    return start(text, into, max(every, EVERY_S_MIN))
