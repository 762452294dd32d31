"""Each public name has an example in its docstring, and each example prints what it shows."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import public_api
import pytest
from jupyter.shell import Notebook

import nosync
from nosync_nb import Session

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "index.md"
NOTEBOOK = set(nosync.__all__)
"""The names whose examples run in a notebook."""

SPARK = {"Collection.to_spark", "Session.stream"}
"""The names whose examples start Spark."""

NAMES = public_api.names_for_users()
EXAMPLES = {public_api.docstring(name): name for name in reversed(NAMES)}
"""The names by docstring, so that aliases and inherited methods run once."""


def parameters(*, notebook: bool) -> list[Any]:
    """Returns the docstrings whose examples run in a notebook, or in a program."""
    return [
        pytest.param(text, id=name, marks=[pytest.mark.spark] if name in SPARK else [])
        for text, name in sorted(EXAMPLES.items(), key=lambda item: item[1])
        if (name in NOTEBOOK) is notebook
    ]


def test_each_public_name_has_example() -> None:
    parser = doctest.DocTestParser()
    assert [name for name in NAMES if not parser.get_examples(public_api.docstring(name))] == []


@pytest.fixture
def names(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_key: None
) -> Iterator[dict[str, Any]]:
    """The names that the examples share, defined on the first page of the reference."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    if request.node.get_closest_marker("spark"):
        names["spark"] = request.getfixturevalue("spark")
    program = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert program is not None
    exec(program[1], names)
    yield names
    for value in reversed(names.values()):
        if isinstance(value, Session):
            value.close()


@pytest.mark.parametrize("text", parameters(notebook=False))
def test_example_prints_what_it_shows(text: str, names: dict[str, Any]) -> None:
    example = doctest.DocTestParser().get_doctest(text, names, "example", None, None)
    failures: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(example, out=failures.append, clear_globs=False)
    names.update(example.globs)  # the fixture closes its sessions
    assert not failures, "".join(failures)


@pytest.mark.parametrize("text", parameters(notebook=True))
def test_notebook_example_shows_its_values(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NOSYNC_SESSION", "log")
    with closing(Notebook()) as notebook:
        notebook.ok("%load_ext nosync")
        for example in doctest.DocTestParser().get_examples(text):
            shown = notebook.ok(example.source)
            if example.want:
                assert f"{shown.value!r}\n" == example.want
