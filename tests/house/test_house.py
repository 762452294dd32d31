"""Rules that no linter checks: exports, docstrings, one way to the disk."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

TOP = Path(__file__).resolve().parents[2]
SOURCES = {
    "nosync_nb": TOP / "nosync_nb",
    "nosync_widgets": TOP / "widgets" / "nosync_widgets",
    "nosync": TOP / "magics" / "nosync",
}
MODULES = sorted(path for folder in SOURCES.values() for path in folder.rglob("*.py"))
# What reaches the disk by itself; os.path and pure paths do not.
DISK_CALLS = {
    "os": {"open", "write", "pwrite", "fsync", "fdatasync", "rename", "replace", "unlink", "remove"}
    | {"mkdir", "makedirs", "rmdir", "truncate", "ftruncate", "link", "symlink", "listdir"}
    | {"read", "pread", "stat", "lstat", "chmod", "chown", "scandir", "walk", "mkfifo", "utime"},
    "pa": {"memory_map", "OSFile", "create_memory_map"},
}
DISK_METHODS = {"read_bytes", "read_text", "touch", "write_bytes", "write_text"}
DISK_METHODS |= {"mkdir", "rmdir", "unlink", "chmod", "symlink_to", "hardlink_to"}
DISK_LOOKS = {"exists", "lexists", "isfile", "isdir", "islink", "getsize", "getmtime", "samefile"}
DISK_MODULES = {"mmap", "shutil", "tempfile"}
DISK_OWNERS = {  # these may, each for a reason
    "nosync_nb/files/filesystem.py": "it is the disk",
    "nosync_nb/files/memory_map.py": "maps what filesystem.py has opened",
    "nosync_nb/files/user_files.py": "reads files of users, which may be links and lie anywhere",
    "nosync_nb/store/replication/restore/lazy_fetch.py": "a disk with files elsewhere",
    "nosync_nb/spark/workers.py": "packs up our own package for executors that lack it",
    "widgets/nosync_widgets/live_view.py": "reads scripts and styles out of the package",
    "magics/nosync/kernelspec.py": "Jupyter installs a kernel from a folder, which is temporary",
}


def name_of(path: Path) -> str:
    return str(path.relative_to(TOP))


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--", *patterns], cwd=TOP, capture_output=True, text=True, check=False
    )
    return [TOP / line for line in listed.stdout.splitlines() if (TOP / line).exists()]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_module_has_docstring(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("package", SOURCES)
def test_package_exports_are_sorted_and_documented(package: str) -> None:
    module = import_module(package)
    assert (SOURCES[package] / "py.typed").exists()
    assert sorted(module.__all__) == module.__all__
    for name in module.__all__:
        exported = getattr(module, name)
        if callable(exported):
            assert inspect.getdoc(exported), f"{name} has no docstring"
        if inspect.isclass(exported) and exported.__module__.startswith(package):
            assert undocumented(exported) == []


def undocumented(cls: type[Any]) -> list[str]:
    """Lists public methods and properties of a class without a docstring."""
    members = inspect.getmembers_static(
        cls, lambda m: inspect.isfunction(m) or isinstance(m, property)
    )
    return [
        f"{cls.__name__}.{name}"
        for name, member in members
        if not name.startswith("_")
        and not inspect.getdoc(member)
        and (getattr(member, "__module__", None) or cls.__module__).startswith("nosync")
    ]


def reaches_disk(node: ast.AST) -> bool:
    """Tells whether a piece of syntax reads or writes files by itself."""
    if isinstance(node, ast.Import):
        return any(alias.name in DISK_MODULES for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return node.module in DISK_MODULES
    if not isinstance(node, ast.Call):
        return False
    match node.func:
        case ast.Name(id="open"):
            return True
        case ast.Attribute(value=ast.Name(id=module), attr=name) if module in DISK_CALLS:
            return name in DISK_CALLS[module]
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="os"), attr="path"), attr=name):
            return name in DISK_LOOKS
        case ast.Attribute(value=owner, attr=name):
            through = ast.unparse(owner).rpartition(".")[2]  # files.unlink, self._files.unlink
            return name in DISK_METHODS and through not in ("files", "_files", "Files()")
    return False


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_only_one_module_accesses_disk(path: Path) -> None:
    """Otherwise its promises (plain names, no links, no blocking, privacy) do not hold."""
    found = [ast.unparse(n) for n in ast.walk(ast.parse(path.read_text())) if reaches_disk(n)]
    if name_of(path) not in DISK_OWNERS:
        assert found == []
    elif path.name not in ("disk.py", "mapping.py"):
        assert found, f"{name_of(path)} does not need to be among DISK_OWNERS"


@pytest.mark.parametrize(
    "text",
    [
        "open(path)",
        "import shutil",
        "from tempfile import mkdtemp",
        "os.unlink(path)",
        "os.open(path, 0)",
        "os.path.exists(path)",
        "Path(path).write_text('x')",
        "path.parent.mkdir()",
        "pa.memory_map(path)",
    ],
)
def test_indirect_disk_access_is_detected(text: str) -> None:
    assert any(map(reaches_disk, ast.walk(ast.parse(text))))


def test_error_kinds_are_distinct_and_survive_pickle() -> None:
    import pickle

    errors: Any = import_module("nosync_nb.errors")
    classes = [
        cls
        for _, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, errors.NosyncError)
    ]
    assert len({cls.kind for cls in classes}) == len(classes)
    for cls in classes:
        error = cls("stage 'x': 1 is not 2", hint="do this")
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), copy.hint) == (cls, str(error), "do this")
        assert copy.__notes__ == ["Hint: do this"]


def test_links_between_pages_resolve() -> None:
    pages = [*TOP.glob("*.md"), *(TOP / "docs").glob("*.md")]
    links = [
        (page, link)
        for page in pages
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text())
        if "://" not in link
    ]
    assert len(links) > 5
    assert [(p.name, link) for p, link in links if not (p.parent / link).exists()] == []


def test_version_is_in_changelog() -> None:
    version = import_module("nosync").__version__
    assert f"## [{version}]" in (TOP / "CHANGELOG.md").read_text()


def test_notebooks_are_committed_without_outputs() -> None:
    assert [p.name for p in tracked("*.ipynb") if '"output_type"' in p.read_text()] == []


def test_no_file_contains_path_of_one_machine() -> None:
    place = re.compile(r"/(root|home/[a-z]+|Users/[A-Za-z]+)/")
    own = Path(__file__)
    named = [
        name_of(path)
        for path in tracked("*.py", "*.md", "*.toml", "*.ipynb", "*.js", "Makefile", "scripts/*")
        if path != own and place.search(path.read_text())
    ]
    assert named == []
