"""Import directions, seen from outside: what an import may load and do."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import json, sys, threading
before = threading.active_count()
import {module}
loaded = sorted({{name.partition(".")[0] for name in sys.modules}})
print(json.dumps([loaded, threading.active_count() - before]))
"""
NOTEBOOK = {"IPython", "ipykernel", "ipywidgets", "anywidget", "traitlets"}
SPARK = {"pyspark", "py4j", "pandas"}
ENGINE = {"nosync_nb", "pyarrow", "numpy", "sqlglot"}


def load(module: str, folder: Path) -> tuple[set[str], int]:
    """Imports a module in its own process; returns the loaded modules and started threads."""
    code = CODE.format(module=module)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded, threads = json.loads(done.stdout.splitlines()[-1])
    return set(loaded), threads


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("nosync_nb", NOTEBOOK | SPARK | {"nosync", "nosync_widgets"}),
        ("nosync_widgets", SPARK | {"nosync", "ipywidgets", "anywidget"}),
        ("nosync", SPARK | ENGINE | {"ipywidgets", "anywidget"}),
    ],
)
def test_import_loads_only_lower_layers(module: str, forbidden: set[str], tmp_path: Path) -> None:
    loaded, _ = load(module, tmp_path)
    assert loaded & forbidden == set()


EPOCHS = """
import datetime, sys
import nosync_nb

with nosync_nb.open("log") as session:
    given = session.input("given", "k string, x double, n bigint, b boolean, d date")
    names = session.input("names", "k string, name string")
    some = given.filter("x > 1 and k in ('k1', 'k2') or k like 'k%' and k >= 'k0'")
    more = some.with_columns(u="upper(k)", v="concat(k, '!')", t="cast(n as string)")
    sums = more.group_by("u", "b").agg(s="sum(x)", a="avg(x)", c="count(*)", m="min(v)")
    sums = session.stage("sums", sums)
    session.stage("joined", given.join(names, on="k", how="left").distinct())
    session.stage("best", given.group_by("k").top(2, by="x desc, n"))
    names.insert([("k1", "one")])
    day = datetime.date(2013, 1, 1)
    for count in (3, 10_000):
        rows = [(f"k{i % 7}", i * 0.5, i % 3 or None, i % 2 == 0, day) for i in range(count)]
        given.insert([*rows, (None, None, None, None, None)])
        session.commit()
    assert len(session["joined"].rows()) == session["joined"].count() > 0
    assert sums.to_arrow().num_rows == len(sums.rows()) > 0
    assert sums.changes(after=1).num_rows > 0
assert "pandas" not in sys.modules
"""


def test_epochs_in_process_need_no_pandas(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EPOCHS], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["nosync_nb", "nosync_widgets", "nosync"])
def test_import_has_no_side_effect(module: str, tmp_path: Path) -> None:
    _, threads = load(module, tmp_path)
    assert threads == 0
    assert list(tmp_path.iterdir()) == []


def test_nosync_reexports_objects_of_engine() -> None:
    """Except for `open`, which accepts notebooks as well."""
    import nosync
    import nosync_nb

    own = {*nosync.__all__, "open"}
    for name in set(nosync_nb.__all__) - own:
        assert getattr(nosync, name) is getattr(nosync_nb, name)
    assert inspect.signature(nosync.open) == inspect.signature(nosync_nb.open)
    assert "Session" in dir(nosync)
    assert not hasattr(nosync, "no_such_name")


def test_graphs_are_imported_on_demand(tmp_path: Path) -> None:
    code = """
import sys, nosync_nb
assert "nosync_nb.collections.library.graphs" not in sys.modules
assert nosync_nb.graphs.k_core is sys.modules["nosync_nb.collections.library.graphs"].k_core
assert not hasattr(nosync_nb, "grafs")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
