"""Reports the names that Spark looks up, so that only these stages get a temp view.

Creating a view takes Spark about 0.1 s. PySpark offers no hook for a table that it does not find.
So the methods of PySpark that take a query or the name of a table are wrapped, once in a process
and for all sessions: `sql` and `table` of a session, `table` of a reader, and the methods of a
catalog. Each wrapper calls the watchers of its Spark session with the names in its arguments, and
then calls the original method.

The wrappers do not see a name that reaches the JVM in another way, for example from a Scala
library. After `spark.catalog.listTables()` every stage has a view.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakMethod, WeakSet

from nosync_nb.spark.launch import is_same

Watcher = Callable[[frozenset[str] | None], None]
"""A function that is called with the lower-case names that may be tables; None means all tables."""

_CLASSES = (
    ("pyspark.sql.session", "SparkSession", ("sql", "table")),
    ("pyspark.sql.readwriter", "DataFrameReader", ("table",)),
    ("pyspark.sql.catalog", "Catalog", ()),
    ("pyspark.sql.connect.session", "SparkSession", ("sql", "table")),
    ("pyspark.sql.connect.readwriter", "DataFrameReader", ("table",)),
    ("pyspark.sql.connect.catalog", "Catalog", ()),
)
"""Modules, their classes and the wrapped methods; a catalog has those of `_NAMED` and `_EVERY`."""

_NAMED = (
    *("tableExists", "getTable", "listColumns", "isCached", "cacheTable", "uncacheTable"),
    *("refreshTable", "dropTempView", "dropView", "dropTable", "getCreateTableString"),
    *("getTableProperties", "listPartitions", "createTable", "createExternalTable"),
)
_EVERY = ("listTables", "listViews")
_WORD = re.compile(r"\w+")

_mutex = threading.Lock()
_watchers: list[tuple[Any, WeakMethod[Watcher]]] = []
_wrappers: WeakSet[Any] = WeakSet()


class _Unwatched(threading.local):
    """The number of nested `unwatched` blocks of this thread."""

    depth = 0

    def enter(self) -> None:
        self.depth += 1

    def leave(self) -> None:
        self.depth -= 1


_unwatched = _Unwatched()


def watch(spark: Any, watcher: Watcher) -> None:
    """Registers a method that is called before a Spark session looks up names.

    The registration ends when the object of the method is deleted.
    """
    with _mutex:
        _wrap_methods()
        _watchers.append((spark, WeakMethod(watcher)))


def unwatch(watcher: Watcher) -> None:
    """Unregisters a method."""
    with _mutex:
        _watchers[:] = [each for each in _watchers if each[1]() not in (None, watcher)]


@contextmanager
def unwatched() -> Iterator[None]:
    """In a `with` block, lookups of this thread call no watcher."""
    _unwatched.enter()
    try:
        yield
    finally:
        _unwatched.leave()


def _wrap_methods() -> None:
    for module, name, methods in _CLASSES:
        owner = getattr(sys.modules.get(module), name, None)
        if owner is None:  # because there is no session of this kind
            continue
        for method in methods or (*_NAMED, *_EVERY):
            own = owner.__dict__.get(method)
            if own is not None and not _is_wrapped(own):
                setattr(owner, method, _wrapped(own))


def _is_wrapped(method: Any) -> bool:
    """Returns True for a wrapper of this module, even if another library has wrapped it again."""
    return inspect.unwrap(method, stop=_wrappers.__contains__) in _wrappers


def _wrapped(method: Any) -> Any:
    every = method.__name__ in _EVERY

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _watchers and not _unwatched.depth:
            _report(self, None if every else _words_in((args, kwargs)))
        return method(self, *args, **kwargs)

    _wrappers.add(call)
    return call


def lowercase_words(text: str) -> frozenset[str]:
    """Returns the words of a text in lower case; a query of a stage has all words of its name."""
    return frozenset(_WORD.findall(text.lower()))


def _words_in(value: Any) -> frozenset[str]:
    """Returns the words of all texts among some arguments."""
    if isinstance(value, str):
        return lowercase_words(value)
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        return frozenset().union(*map(_words_in, value))
    return frozenset()


def _report(asked: Any, names: frozenset[str] | None) -> None:
    spark = asked
    for attribute in ("_spark", "_sparkSession", "_client"):  # of readers and catalogs
        owner = getattr(asked, attribute, None)
        if type(owner).__name__ == "SparkSession":
            spark = owner
            break
    with unwatched():
        for own, weak in tuple(_watchers):
            watcher = weak()
            if watcher is not None and is_same(own, spark):
                watcher(names)
