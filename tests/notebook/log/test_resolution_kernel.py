"""A log follows its notebook in real kernels: saved, renamed, moved, copied, new."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

import nbformat
import pytest
from jupyter.kernels import Kernel

FLIGHTS = 'flights = nosync.input("flights", "carrier string, delay int")'
LOAD = 'flights.insert([("AA", 10), ("UA", 5)], once="first")'
COUNT = "print('rows', flights.count())"


def save(path: Path, *cells: tuple[str, str]) -> None:
    """Saves a notebook as Jupyter does: into the existing file."""
    made = [nbformat.v4.new_code_cell(text, id=known) for known, text in cells]
    path.write_text(nbformat.writes(nbformat.v4.new_notebook(cells=made)))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "keys" / "key"))
    return tmp_path


INPUT, LOADED = "1e0b1b6a", "70f4c7d2"
CELLS = ((INPUT, FLIGHTS), (LOADED, LOAD))


def test_log_follows_notebook_in_kernel(folder: Path) -> None:
    """One life: first save, restart, the next day, the next Untitled, a copy, a move."""
    untitled, quick = folder / "Untitled.ipynb", folder / "quick.ipynb"
    save(untitled)
    with closing(Kernel(folder, notebook="Untitled.ipynb")) as kernel:
        for cell, source in CELLS:
            assert kernel.run(source, cell=cell).status == "ok"
        save(untitled, *CELLS)
        untitled.rename(quick)
        kernel.rename("quick.ipynb")
        kernel.kill()
        shown = kernel.run(COUNT, cell="count")
        assert "recovered at epoch 1" in shown
        assert "log .nosync/Untitled was renamed after its notebook: .nosync/quick" in shown
        assert "rows 2" in shown

        save(untitled)
        kernel.renew("Untitled.ipynb")
        assert kernel.run("x = 1", cell="fresh").text == ""  # a neighbour's log is not its business
        made = kernel.run(FLIGHTS, cell="fresh")
        assert made.text.strip() == "NoSync: new log .nosync/Untitled-2"
        listed = kernel.run("%dd logs", cell="logs").text
        (own,) = [line for line in listed.splitlines() if "Untitled-2" in line]
        assert "this notebook" in own
        assert ".nosync/quick       quick.ipynb" in listed

        shutil.copy(quick, folder / "copy.ipynb")
        kernel.renew("copy.ipynb")
        shown = kernel.run("x = 1", cell=INPUT)
        assert "a copy of quick.ipynb" in shown
        typed = "%dd open .nosync/quick --branch mine"
        assert f"`{typed.replace('mine', 'NAME')}`" in shown
        assert "rows 2" in kernel.run(f"{typed}\n{COUNT}", cell=INPUT)
        kernel.run('flights.insert([("B6", 1)])', cell="more")
        assert "rows 3" in kernel.run(COUNT, cell="more")

        moved = folder / "sub" / "moved.ipynb"
        moved.parent.mkdir()
        quick.rename(moved)
        kernel.renew("sub/moved.ipynb", folder="sub")
        assert "rows 2" in kernel.run(COUNT, cell="count")


def test_recreated_notebook_gets_new_log_and_may_adopt_old_one(folder: Path) -> None:
    path = folder / "flights.ipynb"
    save(path, *CELLS)
    with closing(Kernel(folder, notebook="flights.ipynb")) as kernel:
        for cell, source in CELLS:
            kernel.run(source, cell=cell)
        path.unlink()
        save(path)
        kernel.renew("flights.ipynb")
        shown = kernel.run("x = 1", cell="other")
        assert "`%dd open .nosync/flights` adopts it" in shown
        assert "recovered" not in shown
        assert "NameError" in kernel.run(COUNT, cell="other")
        assert "rows 2" in kernel.run(f"%dd open .nosync/flights\n{COUNT}", cell="other")
        record = json.loads((folder / ".nosync" / "flights" / "identity.json").read_text())
        assert record["cells"] == ["other"]
        kernel.renew("flights.ipynb")
        assert "rows 2" in kernel.run(COUNT, cell="other")


def test_notebooks_with_numbered_cells_are_no_copies(folder: Path) -> None:
    """Tools that strip notebooks for git number the cells: each notebook has a cell `0`."""
    first, second = folder / "first.ipynb", folder / "second.ipynb"
    numbered = (("0", FLIGHTS), ("1", LOAD), ("2", COUNT))
    save(first, *numbered)
    save(second, ("0", "x = 1"), ("1", "print(x)"), ("2", COUNT))
    with closing(Kernel(folder, notebook="first.ipynb")) as kernel:
        for cell, source in numbered:
            assert kernel.run(source, cell=cell).status == "ok"
        kernel.renew("second.ipynb")
        shown = kernel.run("nosync.session()", cell="0").text
        assert "copy" not in shown
        assert "new log .nosync/second" in shown
        first.rename(folder / "before")  # a checkout creates a new file
        save(first, *numbered[:2], ("2", "print('edited')"))
        (folder / "before").unlink()
        kernel.renew("first.ipynb")
        assert "rows 2" in kernel.run(COUNT, cell="2")
        first.unlink()
        kernel.renew("second.ipynb")
        shown = kernel.run("print(sorted(nosync.session().inputs))", cell="1").text
        assert "[]" in shown


def test_forged_notebook_id_opens_no_log_of_another_folder(folder: Path) -> None:
    """Before a notebook is saved, only the id of the running cell is known."""
    with closing(Kernel(folder, notebook="first.ipynb")) as kernel:
        assert kernel.run(FLIGHTS, cell="setup").status == "ok"
        assert kernel.run(LOAD, cell="load-data").status == "ok"
        (folder / "sub").mkdir()
        kernel.renew("sub/second.ipynb", folder="sub")
        shown = kernel.run("x = 1", cell="setup").text
        assert "first.ipynb, may be this notebook's: `%dd open" in shown
        assert "recovered" not in shown
        assert "[]" in kernel.run("print(sorted(nosync.session().inputs))", cell="setup").text
        kernel.renew("first.ipynb", folder=".")
        assert "rows 2" in kernel.run(COUNT, cell="setup")


def test_vscode_reports_name_in_later_cell(folder: Path) -> None:
    save(folder / "t.ipynb", *CELLS)
    told = f"__vsc_ipynb_file__ = {str(folder / 't.ipynb')!r}"
    with closing(Kernel(folder, notebook=None)) as kernel:
        kernel.run(told, hidden=True)
        for _, source in CELLS:
            assert kernel.run(source, cell="vscode-notebook-cell:/t.ipynb#W0sZ").status == "ok"
        record = json.loads((folder / ".nosync" / "t" / "identity.json").read_text())
        assert record["cells"] == [INPUT, LOADED]
        kernel.kill()
        assert "recovered" not in kernel.run(told, hidden=True)
        shown = kernel.run(COUNT, cell="vscode-notebook-cell:/t.ipynb#W1sZ")
        assert "recovered at epoch 1" in shown
        assert "rows 2" in shown
