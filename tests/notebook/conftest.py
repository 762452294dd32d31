"""What tests of notebooks share: a shell with the extension, and a place for its log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter.shell import Notebook


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    """A notebook in a folder of its own, whose log will be `log`; the extension is not loaded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NOSYNC_SESSION", "log")
    notebook = Notebook()
    yield notebook
    notebook.close()


@pytest.fixture
def empty(plain: Notebook) -> Notebook:
    """One with the extension loaded, and nothing in it."""
    plain.ok("%load_ext nosync")
    return plain
