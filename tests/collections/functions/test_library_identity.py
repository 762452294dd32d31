"""Fingerprints of the library: what it computes counts, and no module, file or line of it."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from internals import share_utc

import nosync_nb
from nosync_nb import Collection, Session, StageError
from nosync_nb.collections.definition import Definition
from nosync_nb.collections.functions.fingerprint import canonical_values, code, function_fingerprint
from nosync_nb.collections.library import asof, event_time, graphs, windows
from nosync_nb.collections.library.windows import sessions
from nosync_nb.collections.session_protocol import definition_of

PATH = re.compile(rb"nosync|\.py|<locals>|site-packages|" + re.escape(str(Path.cwd()).encode()))

pytestmark = pytest.mark.usefixtures("no_disk")

Library = dict[str, ModuleType]


def _windowed(library: Library, rows: Collection) -> dict[str, Collection]:
    window = library["windows"]
    hour = {"on": "at", "every": "1 hour"}
    return {
        "tumbling": window.tumbling(rows, **hour),
        "tumbling, retained": window.tumbling(rows, **hour, retain="1 day"),
        "sliding": window.sliding(rows, on="at", size="1 hour", every="20 minutes"),
        "sliding, retained": window.sliding(
            rows, on="at", size="1 hour", every="20 minutes", retain="1 day"
        ),
        "retained": window.retained(rows, on="at", retain="1 day", grain="1 hour"),
        "sessions": window.sessions(rows, on="at", gap="1 hour", keys="k"),
        "asof_join": library["asof"].asof_join(
            rows, rows.rename({"v": "w"}), on="k", time="at", tolerance="1 hour"
        ),
    }


def _graph_stages(library: Library, edges: Collection) -> dict[str, Collection]:
    graph = library["graphs"]
    roots = edges.select("src as node").distinct()
    return {
        "reachable": graph.reachable(edges, roots),
        "distances": graph.distances(edges, roots),
        "connected_components": graph.connected_components(edges),
        "strongly_connected_components": graph.strongly_connected_components(edges),
        "pagerank": graph.pagerank(edges),
        "triangles": graph.triangles(edges),
        "k_core": graph.k_core(edges, 2),
        "label_propagation": graph.label_propagation(edges),
    }


def _stages(session: Session, library: Library) -> dict[str, Definition]:
    """The stages of every library function, over both types of times."""
    made = {}
    for type_ in ("timestamp", "timestamp_ntz"):
        rows = session.input(f"rows_{type_}", f"k bigint, at {type_}, v double")
        for name, collection in _windowed(library, rows).items():
            made[f"{name} {type_}"] = definition_of("test", collection)
    for name, collection in _graph_stages(
        library, session.input("edges", "src int, dst int")
    ).items():
        made[name] = definition_of("test", collection)
    return made


def _fingerprints(session: Session, library: Library) -> dict[str, str]:
    stages = _stages(session, library)
    named = {name: name for tree in stages.values() for name in tree.references}
    return {name: tree.fingerprint(named) for name, tree in stages.items()}


LIBRARY: Library = {"windows": windows, "asof": asof, "graphs": graphs}


@pytest.fixture(autouse=True, params=[True, False], ids=["utc", "another zone"])
def time_zone_mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times without a zone are converted by expressions in UTC, and by library functions
    elsewhere.
    """
    monkeypatch.setattr(event_time, "_utc", lambda _: request.param)


@pytest.fixture
def relocated_library(monkeypatch: pytest.MonkeyPatch) -> Library:
    """The library's modules from other paths, each one line longer."""
    names = {"event_time": event_time, "asof": asof, "windows": windows, "graphs": graphs}
    made: Library = {}
    for name, module in names.items():
        text = Path(str(module.__file__)).read_text()
        for other in names:  # each of them uses the moved ones
            path = f"from nosync_nb.collections.library.{other} import"
            text = text.replace(path, f"from nosync_nb.moved_{other} import")
        there = f"nosync_nb.moved_{name}"
        spec = importlib.util.spec_from_loader(there, loader=None, origin=f"/elsewhere/{name}.py")
        assert spec is not None
        copy = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, there, copy)
        made[name] = copy
        exec(compile(f"# a comment\n\n{text}", f"/elsewhere/{name}.py", "exec"), vars(copy))
        if name == "event_time":
            share_utc(copy, monkeypatch)
        if name == "windows":
            assert copy.sessions.__code__.co_firstlineno != windows.sessions.__code__.co_firstlineno
    return made


def test_moved_library_has_equal_fingerprints(session: Session, relocated_library: Library) -> None:
    expected = _fingerprints(session, LIBRARY)
    assert len(expected) == 2 * 7 + 8
    assert expected == _fingerprints(session, relocated_library)


def test_fingerprints_contain_no_module_path_or_line_of_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []

    def digest(data: bytes) -> str:
        written.append(data)
        return hashlib.blake2b(data, digest_size=8).hexdigest()

    monkeypatch.setattr(canonical_values, "definition_digest", digest)
    monkeypatch.setattr(code, "definition_digest", digest)
    with nosync_nb.open(tmp_path / "log") as session:
        assert _fingerprints(session, LIBRARY)
        for tree in _stages(session, LIBRARY).values():
            for part in tree.walk():
                assert not any(c.identity.startswith("kernel-") for c in part.captured)
    assert len(written) > 50
    assert [data for data in written if PATH.search(data)] == []


@pytest.mark.parametrize(
    ("function", "written"),
    [
        (lambda row: StageError, b"StageError"),
        (lambda row: sessions, b"windows.sessions"),
        (lambda row: graphs, b"graphs"),
        (lambda row: nosync_nb, b"the package"),
    ],
)
def test_library_objects_are_named_by_public_name(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], written: bytes
) -> None:
    seen: list[bytes] = []
    monkeypatch.setattr(code, "definition_digest", lambda data: seen.append(data) or "0")
    assert function_fingerprint(function).fingerprint == "0"
    assert b"own:%d:%s;" % (len(written), written) in seen[0]


def test_private_library_objects_have_no_fingerprint() -> None:
    found = function_fingerprint(lambda row: event_time.ToMicros)
    assert found.fingerprint is None
    assert "not part of the public API" in str(found.reason)


def test_library_functions_differ_by_their_result() -> None:
    assert function_fingerprint(windows.BackFrom(3)) == function_fingerprint(windows.BackFrom(3))
    assert function_fingerprint(windows.BackFrom(3)) != function_fingerprint(windows.BackFrom(4))
    assert function_fingerprint(event_time.ToMicros(1)) != function_fingerprint(windows.BackFrom(1))
