"""The memo of a notebook: the report names the cell that ran when the kernel died."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from jupyter.kernels import Kernel
from jupyter.shell import Notebook

import nosync
from nosync.cells.source import is_import, read_cell
from nosync.log.location import MEMO
from nosync.log.notebook_memo import NotebookMemo, RunningCell


def same(text: str) -> str:
    return text


@pytest.mark.parametrize(
    ("source", "bound", "loops", "imports"),
    [
        ("a = b = 1\nc: int = 2", "a b c", "", {}),
        ("import os.path", "os", "", {"os": "import os.path"}),
        ("import numpy as np, re", "np re", "", {"np": "import numpy as np", "re": "import re"}),
        (
            "from .x import y as z, w",
            "z w",
            "",
            {"z": "from .x import y as z", "w": "from .x import w"},
        ),
        ("from x import *", "", "", {}),
        ("from x import t, u\nt = t[0]", "t u", "", {"u": "from x import u"}),
        ("for i, (j, k) in x:\n    t = i", "i j k t", "i j k", {}),
        ("for i in x:\n    pass\ni = 5", "i", "", {}),
        ("for i in x:\n    for j in y:\n        pass", "i j", "i j", {}),
        ("def f(x):\n    for q in x:\n        y = 1\nclass K:\n    z = 1", "f K", "", {}),
        ("x = [q for q in y]", "x", "", {}),
        ("x = {q: [p for p in q] for q in {i for i in y}}", "x", "", {}),
        ("%%time\nx = 1", "x", "", {}),
        ("x = (", "", "", {}),
        ("\x00", "", "", {}),
    ],
)
def test_cell_source_gives_names_loops_and_imports(
    source: str, bound: str, loops: str, imports: dict[str, str]
) -> None:
    cell = read_cell(source, same)
    assert sorted(bound.split()) == sorted(cell.bound)
    assert sorted(loops.split()) == sorted(cell.loops)
    assert imports == cell.imports


@pytest.mark.parametrize(
    ("source", "names", "line"),
    [
        ("# why\nimport os\n\nx = 1\ny = 2", ["y"], "y = 2"),
        ("# why\nimport os\n\nx = 1", [], "x = 1"),
        ("%%dd\nslow = x", [], "slow = x"),
        ("import os", [], "import os"),
        ("x = '" + "long" * 20 + "'", [], "x = '" + ("long" * 20)[:38] + "…"),
        ("x = 1\npassword = 2", ["x", "password"], ""),
        ("x = connect(token='t')", [], ""),
    ],
)
def test_cell_is_identified_by_line_without_secret(
    source: str, names: list[str], line: str
) -> None:
    assert line == read_cell(source, same).line(names)


def test_cell_mentions_whole_words() -> None:
    cell = read_cell("x = pd.read(npy)\ny.np", same)
    assert cell.mentions("pd")
    assert not cell.mentions("np")
    assert not cell.mentions("read")


def test_only_single_import_statements_are_imports() -> None:
    assert is_import("import a.b as c")
    assert is_import("from a import b")
    for text in ("import a, b", "import a; f()", "f()", "", "x = 1", "import"):
        assert not is_import(text)


def test_insert_without_key_is_not_repeatable() -> None:
    assert not read_cell("x.insert(rows)", same).repeatable
    assert read_cell("x.insert(rows, once=1)", same).repeatable
    assert read_cell("x.set(rows)", same).repeatable


def test_outcome_of_interrupted_cell_names_next_step() -> None:
    cell = RunningCell("In[5]: load()", 3, True)
    assert cell.outcome_text(3) == "In[5]: load() — nothing was committed: run it again"
    assert cell.outcome_text(2) == "In[5]: load() — nothing was committed: run it again"
    assert cell.outcome_text(4) == "In[5]: load() — epoch 4 is committed: run it again"
    assert cell.outcome_text(9) == "In[5]: load() — epochs 4 to 9 are committed: run it again"
    assert "no once=" in cell._replace(repeatable=False).outcome_text(9)


@pytest.fixture
def key_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "keys" / "key"))
    from nosync_nb.collections.functions.signing import user_key

    user_key()
    (tmp_path / "log").mkdir()
    return tmp_path


def test_imports_are_trusted_only_in_signed_memo(
    key_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = key_folder / "log"
    NotebookMemo(imports={"js": "import json as js"}).write(log)
    assert NotebookMemo.read(log).imports == {"js": "import json as js"}
    known = json.loads((log / MEMO).read_text())

    (key_folder / "other").mkdir()
    (key_folder / "other" / MEMO).write_text(json.dumps(known))
    assert NotebookMemo.read(key_folder / "other").imports == {}
    (log / MEMO).write_text(json.dumps({**known, "imports": {"js": "import evil as js"}}))
    assert NotebookMemo.read(log).imports == {}
    (log / MEMO).write_text(json.dumps({**known, "signed": ""}))
    assert NotebookMemo.read(log).imports == {}
    (log / MEMO).write_text(json.dumps({**known, "signed": 5}))
    assert NotebookMemo.read(log).imports == {}
    NotebookMemo(imports={"x": "x = __import__('os').abort()"}).write(log)
    assert NotebookMemo.read(log).imports == {}
    (log / MEMO).write_text(json.dumps(known))
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(key_folder / "elsewhere" / "key"))
    assert NotebookMemo.read(log).imports == {}


def test_name_never_bound_again_is_reported_twice() -> None:
    memo = NotebookMemo(names={"x": "In[1]: x = 1", "y": "In[2]: y = 2"})
    memo.missed({"x": "", "y": ""})
    memo.missed({"x": "", "y": ""})
    memo.bound("y")
    memo.names["y"] = "In[1]: y = 3"
    memo.missed({"x": "", "y": ""})
    assert memo.names == {"y": "In[1]: y = 3"}


@pytest.fixture
def notebook(plain: Notebook) -> Notebook:
    plain.ok("early = 1\nimport json as js")
    plain.ok("%load_ext nosync")
    return plain


def test_report_lists_lost_variables_and_omits_restored_ones(notebook: Notebook) -> None:
    notebook.ok("import collections as co\nfrom collections import Counter\nrng = 5")
    notebook.ok("for i in range(3):\n    last = i")
    notebook.ok('flights = nosync.input("flights", "carrier string")\na, b = 1, 2')
    notebook.ok("%%dd\ndelays = flights.group_by('carrier').agg(n='count(*)')")
    notebook.close()
    with closing(Notebook()) as again:
        again.ok("a = 5")
        shown = again.ok("%load_ext nosync\nprint(Counter('x'), co.Counter, js.dumps(1))\nlast = 1")
        assert "not running" not in shown
        report = nosync.session().recovery
        assert report.running == ""
        assert report.inputs == ["flights"]
        facts = [text for what, text in report.facts() if what == "not restored"]
        missed = ["early — In[1]: early = 1", "rng — In[3]: rng = 5", "b — In[5]: a, b = 1, 2"]
        assert sorted(facts) == sorted(missed)
        assert ("read", "flights, delays") in report.facts()
        assert "i (" not in shown
        assert "Counter({'x': 1})" in shown


FLIGHTS = (
    "import json as js\n"
    'flights = nosync.input("flights", "carrier string, delay int")\n'
    'flights.insert([("AA", 10)], once="first")'
)
LOOP = (
    "for day in range(5):\n    with nosync.epoch(once=day):\n"
    '        flights.insert([("AA", day)])\n'
    '    if day == 2 and wait:\n        print("there", flush=True)\n        signal.pause()'
)


@pytest.mark.fault(1)
def test_report_names_killed_cell_and_committed_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "keys" / "key"))
    with closing(Kernel(tmp_path)) as kernel:
        kernel.run(FLIGHTS)
        kernel.run("import signal\nwait, total = True, 5")
        kernel.begin(LOOP)
        kernel.wait_for_text("there")
        kernel.kill()
        shown = kernel.run("wait = False\nprint(js.dumps(['imported']))")
        assert "In[3]: for day in range(5): — epochs 2 to 4 are committed: run it again" in shown
        assert "total — In[2]: wait, total = True, 5" in shown
        assert '["imported"]' in shown
        assert "wait" not in shown.text.partition("total — In[2]")[0]
        again = kernel.run(LOOP)
        assert "3 loads were already committed; epochs 5 to 6 committed" in again
        kernel.restart()
        shown = kernel.run("wait = False")
        assert "(closed properly)" in shown
        assert "running" not in shown


@pytest.mark.spark
def test_cell_after_restart_has_spark_with_its_views(tmp_path: Path) -> None:
    with closing(Kernel(tmp_path)) as kernel:
        kernel.run(FLIGHTS)
        kernel.run("%%dd --on spark\nlate = flights.filter('delay > 5')", timeout=180)
        show = "print(spark.table('late').collect())"
        assert "delay=10" in kernel.run(show, timeout=60)
        kernel.restart()
        shown = kernel.run(f"# no spark here\n{show}", timeout=180)
        assert "(closed properly)" in shown
        assert "starts again with its settings when a cell needs it" in shown
        assert "delay=10" in shown
