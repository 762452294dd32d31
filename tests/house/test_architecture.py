"""The architecture page: the rooms are in the order of their imports, and named files exist."""

from __future__ import annotations

import ast
import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

TOP = next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").exists())
ENGINE = TOP / "nosync_nb"
PAGE = (TOP / "docs" / "architecture.md").read_text()
ROOMS = sorted(p.name for p in ENGINE.iterdir() if (p / "__init__.py").exists())
STARTERS = {"keeper", "replica", "verify"}  # modules that only start a command, above all rooms
DOORS = {"frontend", "log_folders"}
"""The public modules for front ends beside `nosync_nb` and its errors, above all rooms."""


def names_of(tree: ast.AST) -> set[str]:
    """The imported names in a source, at any level."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def imported(room: str) -> set[str]:
    """The rooms that a room imports, for types too."""
    names = {n for path in (ENGINE / room).rglob("*.py") for n in names_of(parsed(path))}
    found = {n.split(".")[1] for n in names if n.startswith("nosync_nb.")}
    return found & {*ROOMS, "errors"} - {room}


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_states_promises_ownership_and_imports(room: str) -> None:
    said = import_module(f"nosync_nb.{room}").__doc__ or ""
    said = " ".join(said.split())
    assert "Promises: " in said
    assert "Owns: " in said
    listed = re.search(r"Imports: ([a-z, ]+)\.$", said)
    assert listed, said
    assert set(listed[1].split(", ")) == imported(room)


class AtRuntime(ast.NodeTransformer):
    """A module without its type-checking blocks."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)


def test_services_name_session_as_type_only() -> None:
    facade = ".".join((ENGINE.name, "session", "session"))
    users = set()
    for path in (ENGINE / "session").rglob("*.py"):
        tree = AtRuntime().visit(parsed(path))
        if any(name.startswith(facade) for name in names_of(tree)):
            users.add(path.stem)
    assert users == {"copy_log", "opening"}


def test_no_module_is_imported_dynamically() -> None:
    hidden = {
        (str(path.relative_to(ENGINE)), call)
        for path in ENGINE.rglob("*.py")
        for call in (ast.unparse(n) for n in ast.walk(parsed(path)) if isinstance(n, ast.Call))
        if re.match(r"(importlib\.)?import_module\(|__import__\(", call)
    }
    lazy = "import_module(f'nosync_nb.collections.library.{name}')"
    assert {(path, call) for path, call in hidden if "nosync" in call} == {("__init__.py", lazy)}


def test_page_lists_rooms_in_order_of_imports() -> None:
    promised = re.findall(r"^\| `([a-z]+)` \|", PAGE, flags=re.M)
    assert sorted(promised) == [room for room in ROOMS if room != "files"]
    settings = tomllib.loads((TOP / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    (rooms,) = [each for each in contracts if each.get("containers") == ["nosync_nb"]]
    assert rooms["exhaustive"] is True
    order = [room for layer in rooms["layers"] for room in layer.split(" | ")]
    assert promised == [room for room in order if room in promised]


def test_picture_has_box_for_each_room() -> None:
    picture = (TOP / "docs" / "architecture" / "rooms.svg").read_text()
    boxes = re.findall(r"<title>([a-z]+)</title>\n<path", picture)
    assert sorted(boxes) == sorted({*ROOMS, "notebook"} - {"files"})


def test_files_named_on_page_exist() -> None:
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+(?:\.py)?|[a-z_]+\.py)`", PAGE)
    assert len(named) > 30
    missing = [name for name in named if not any((base / name).exists() for base in (ENGINE, TOP))]
    assert missing == []


def test_engine_consists_of_rooms_and_three_foundations() -> None:
    entries = {p.name for p in ENGINE.iterdir() if p.name != "__pycache__"}
    starters = {f"{name}.py" for name in STARTERS}
    doors = {f"{name}.py" for name in DOORS}
    foundations = {"errors.py", "former_modules.py", "__init__.py", "py.typed"}
    assert entries == {*ROOMS, *starters, *doors, *foundations}
    assert all(len((ENGINE / name).read_text().splitlines()) <= 14 for name in starters)
    assert len(ROOMS) == 10  # nine, and the files


def test_front_ends_import_public_modules_of_engine_only() -> None:
    """The contract lists every other module of the engine, new ones too, without exceptions."""
    contracts = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = [
        each
        for each in contracts["contracts"]
        if each["type"] == "forbidden" and "nosync_nb.session" in each["forbidden_modules"]
    ]
    assert contract["source_modules"] == ["nosync", "nosync_widgets"]
    assert "ignore_imports" not in contract
    others = {*ROOMS, *STARTERS}
    assert sorted(contract["forbidden_modules"]) == sorted(f"nosync_nb.{name}" for name in others)


def test_services_of_session_are_used_by_session_and_test_internals_only() -> None:
    door = TOP / "tests" / "support" / "internals.py"
    folders = [
        TOP / name for name in ("nosync_nb", "magics", "widgets", "tests", "bench", "scripts")
    ]
    paths = {path for folder in folders for path in folder.rglob("*.py")}
    users = {
        path
        for path in paths - {door}
        if (ENGINE / "session") not in path.parents
        and "nosync_nb.session.session.services_of" in names_of(parsed(path))
    }
    assert users == set()
