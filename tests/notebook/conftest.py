"""Fixtures of notebook tests: a shell with the extension, and a location for its log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter.shell import Notebook


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    """A notebook in its own folder with the log `log`; the extension is not loaded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NOSYNC_SESSION", "log")
    notebook = Notebook()
    yield notebook
    notebook.close()


@pytest.fixture
def empty(plain: Notebook) -> Notebook:
    """A notebook with the extension loaded and an empty log."""
    plain.ok("%load_ext nosync")
    return plain
