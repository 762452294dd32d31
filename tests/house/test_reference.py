"""The reference page: it says what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "reference.py"


def reference() -> ModuleType:
    """The script that writes the page."""
    spec = importlib.util.spec_from_file_location("reference", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_code_says() -> None:
    module = reference()
    assert module.PAGE.read_text() == module.page(), "run `make reference`"


def test_everything_has_its_row() -> None:
    import nosync
    import nosync_nb
    from nosync.commands.dispatch import COMMANDS
    from nosync.magic import NoSync

    page = reference().PAGE.read_text()
    for name in COMMANDS:
        assert f"### `%dd {name}" in page
    for name in NoSync.class_traits(config=True):
        assert f"| `{name}` |" in page
    for name in {*nosync.__all__, *nosync_nb.__all__}:
        assert f"`{name}" in page
    for method in ("upsert(rows)", "iterate(body", "branch(name", "asof_join("):
        assert f"| `{method}" in page


def test_no_more_expressions_wait_for_spark() -> None:
    """Each that is computed in process spares a user the start of a JVM."""
    assert len(reference().waiting()) <= 10


def test_of_the_ordinary_expressions_few_wait_and_each_has_its_reason() -> None:
    module = reference()
    still = module.waiting()
    assert len(module.ORDINARY.read_text().splitlines()) == 239
    assert len(still) <= 31
    assert all(still.values())
