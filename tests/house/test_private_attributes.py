"""Private attributes: no module uses or assigns those of another object.

A private name is one with an underscore. It is foreign where the module that uses it does not
define it: not as a function, a class or a variable, nor as an attribute that a class there
declares, lists as a slot, or assigns to itself. What is asked for as `self._name` is never foreign.
An attribute that is assigned is foreign where no class of the module has it, whatever functions and
variables are called; likewise what is set by its name (`setattr`), or as an item of `vars(other)`.
The remaining uses are listed with their reasons; a new use needs a method of the owner instead.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
ENGINE = TOP / "nosync_nb"
NOTEBOOK = (TOP / "magics", TOP / "widgets")

USES_MAX = 0
"""The greatest number of uses of private attributes of another module."""

PYSPARKS = {
    "_active_session": "Connect's session of the thread; there is no public way to forget it",
    "_active_spark_context": "likewise the context of a JVM",
    "_activeSession": "likewise the classic session",
    "_builder": "where a Connect server listens",
    "_default_session": "Connect's session of the process",
    "_gateway": "the way to a JVM",
    "_instantiatedSession": "the classic session of the process",
    "_jsc": "None after the context was stopped",
    "_jsparkSession": "the JVM's session: two classic objects may stand for one, and share it",
    "_jvm": "of the gateway",
}
"""Internals of PySpark, and the one module that may use them to check a session."""

OFFERED = {
    "_exit": "of os, documented: ends a process at once",
    "_gateway": "of PySpark: there is no public way to end a JVM that it started",
    "_get_optional_actions": "of argparse: there is no public way to list options",
    "_get_positional_actions": "likewise",
    "_getframe": "of sys, documented: how deep the stack is",
    "_repr_html_": "what IPython asks of whatever it displays",
    "_repr_mimebundle_": "likewise",
    "f_trace_lines": "of frames: sys.settrace says to set it",
    "f_trace_opcodes": "likewise",
    "settings": "of a TestCase: hypothesis says to set it",
    "side_effect": "of a Mock",
    "enabled": "of traitlets' configuration",
    "colors": "likewise",
    "collect_rows": "of a session: users set it",
    "replay_rows": "likewise",
    "backlog_bytes": "likewise",
    "retain": "likewise",
    "budget": "likewise",
    "spark_off": "likewise",
    "__cause__": "of exceptions: the language has no other way than `raise`",
    "__context__": "likewise",
    "__traceback__": "likewise",
    "__class__": "of an object that is made one of another kind",
    "__module__": "of a class of the same file, which plays another's",
}
"""Attributes of other objects for tests and the bench: private only by name, or meant to be set."""

DOOR = TOP / "tests" / "support" / "internals.py"
"""The one file of tests that may use internals."""

ASSIGNED = {
    "atexit": "of weakref.finalize: documented, to leave the end to the system",
    "setattr(owner, method)": "PySpark's methods that take names: it has no hook for lookups",
}
"""The attributes of other objects that the engine assigns."""

NOTEBOOK_USES_MAX = 2
"""The same for magics and widgets: `_render_traceback_` of IPython, set and deleted."""

NOTEBOOK_ASSIGNED = {
    "setattr(error, BODY)": "a mark on Python's SyntaxError, which is raised as it is",
    "setattr(builtins, _END)": "what the lines that IPython appends to a cell call by name",
    "delattr(builtins, _END)": "and taken off again",
    "displayhook": "of sys, documented; IPython puts its own back when the cell ends",
    "error_in_exec": "of IPython's result: a cell that fails at its end has failed",
    "_render_traceback_": "what IPython asks an error for, set and taken off",
    "whitespace_split": "of shlex: documented",
    "commenters": "likewise",
    "daemon": "of threading.Timer: documented, and no argument of it",
    "replay_rows": "of a session: users set it",
    "backlog_bytes": "likewise",
    "budget": "likewise",
    "retain": "likewise",
    "spark_off": "likewise",
}
"""The attributes of other objects that magics and widgets assign."""

_OWN = {"self", "cls"}


def is_private(name: str) -> bool:
    """Returns True for a private name; `_replace` of a named tuple is public."""
    named_tuple = {"_replace", "_asdict", "_fields", "_make"}
    return name.startswith("_") and not name.startswith("__") and name not in named_tuple


def defined(tree: ast.Module) -> set[str]:
    """The names that a module defines: definitions, variables, fields and attributes."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node):
            found.add(node.attr)
        elif isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__slots__" for target in node.targets
        ):
            found.update(each.value for each in ast.walk(node.value) if is_text(each))
    return found


def class_attributes(tree: ast.Module) -> set[str]:
    """The attributes of the classes of a module."""
    found: set[str] = set()
    for each in ast.walk(tree):
        if isinstance(each, ast.ClassDef):
            body = [node for node in each.body if not isinstance(node, ast.FunctionDef)]
            found |= {node.name for node in each.body if isinstance(node, ast.FunctionDef)}
            found |= defined(ast.Module([*body], []))
            found |= {
                node.attr
                for node in ast.walk(each)
                if isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and is_own(node)
            }
    return found


def is_own(node: ast.Attribute) -> bool:
    """Returns True if an attribute belongs to the object or class of its method."""
    return isinstance(node.value, ast.Name) and node.value.id in _OWN


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def foreign(tree: ast.Module) -> Iterator[ast.Attribute]:
    """The used attributes of other objects that this module does not define."""
    own = defined(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not is_own(node) and node.attr not in own:
            yield node


def uses(text: str) -> int:
    """The number of uses of private attributes in a module, reads and assignments."""
    return sum(is_private(node.attr) for node in foreign(ast.parse(text)))


def _named(node: ast.AST) -> tuple[ast.expr, str] | None:
    """The object and name of an assignment by name, such as `setattr`; None for other calls."""
    if not isinstance(node, ast.Call | ast.Subscript):
        return None
    if isinstance(node, ast.Call):
        called, _, verb = ast.unparse(node.func).rpartition(".")
        if called in ("", "object") and verb.strip("_") in ("setattr", "delattr"):
            return node.args[0], f"{verb}({', '.join(map(ast.unparse, node.args[:2]))})"
        if not isinstance(node.func, ast.Attribute) or verb not in _CHANGES:
            return None
        names = node.func.value
    else:
        if isinstance(node.ctx, ast.Load):
            return None
        names = node.value
    if isinstance(names, ast.Attribute) and names.attr == "__dict__":
        return names.value, ast.unparse(names)
    if isinstance(names, ast.Call) and ast.unparse(names.func) == "vars" and names.args:
        return names.args[0], ast.unparse(names)
    return None


_CHANGES = {"update", "pop", "popitem", "clear", "setdefault", "__setitem__", "__delitem__"}


def assigned(text: str) -> list[str]:
    """The foreign attributes that a module assigns or deletes."""
    tree = ast.parse(text)
    own, found = class_attributes(tree), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            if node.attr not in own and not is_own(node):
                found.append(node.attr)
        elif (named := _named(node)) is not None:
            owner, what = named
            if not isinstance(owner, ast.Name) or owner.id not in _OWN:
                found.append(what)
    return found


def assignments(text: str) -> int:
    """The number of foreign assignments in a module."""
    return len(assigned(text))


def test_one_module_uses_listed_pyspark_internals() -> None:
    tree = ast.parse((ENGINE / "spark" / "launch.py").read_text())
    assert {node.attr for node in foreign(tree) if is_private(node.attr)} == PYSPARKS.keys()


def receivers(tree: ast.Module) -> list[str]:
    """The functions with a session parameter."""
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        if each.annotation and re.search(r"\bSession\b", ast.unparse(each.annotation))
    ]


def test_nothing_below_session_receives_one() -> None:
    paths = [p for p in ENGINE.rglob("*.py") if (ENGINE / "session") not in p.parents]
    assert [(p.name, name) for p in paths for name in receivers(ast.parse(p.read_text()))] == []
    assert receivers(ast.parse("def read(a: int, *, session: Session | None): ...")) == ["read"]


def most_uses(counted: Counter[str]) -> str:
    """The ten modules with the most uses."""
    lines = [f"{number:5} {name}" for name, number in counted.most_common(10)]
    return "\n".join([f"{counted.total()} in all; most in", *lines])


def modules(*folders: Path) -> list[Path]:
    """The modules of some folders, without the one that uses PySpark's internals."""
    paths = sorted(path for folder in folders for path in folder.rglob("*.py"))
    return [path for path in paths if path != ENGINE / "spark" / "launch.py"]


@pytest.mark.parametrize(
    ("folders", "most"),
    [((ENGINE,), USES_MAX), (NOTEBOOK, NOTEBOOK_USES_MAX)],
    ids=["engine", "notebook"],
)
def test_private_attributes_in_use_do_not_grow(folders: tuple[Path, ...], most: int) -> None:
    counted = Counter({str(p.relative_to(TOP)): uses(p.read_text()) for p in modules(*folders)})
    assert counted.total() <= most, most_uses(counted)


@pytest.mark.parametrize(
    ("folders", "listed"),
    [((ENGINE,), ASSIGNED), (NOTEBOOK, NOTEBOOK_ASSIGNED)],
    ids=["engine", "notebook"],
)
def test_foreign_assignments_are_listed(folders: tuple[Path, ...], listed: dict[str, str]) -> None:
    found = {p.relative_to(TOP): assigned(p.read_text()) for p in modules(*folders)}
    assert {path: some for path, each in found.items() if (some := [*set(each) - {*listed}])} == {}
    assert {what for each in found.values() for what in each} == {*listed}, "not needed any more"


def test_tests_and_bench_use_internals_module_only() -> None:
    paths = {path for folder in ("tests", "bench") for path in (TOP / folder).rglob("*.py")}
    found = {
        (str(path.relative_to(TOP)), node.lineno, ast.unparse(node)): node.attr
        for path in sorted(paths - {DOOR})
        for node in foreign(ast.parse(path.read_text()))
        if is_private(node.attr) or not isinstance(node.ctx, ast.Load)
    }
    assert [where for where, name in found.items() if name not in OFFERED] == []
    assert OFFERED.keys() - set(found.values()) == set(), "nobody needs these any more"
    assert uses(DOOR.read_text()) > 0


@pytest.mark.parametrize(
    ("text", "used", "assigned"),
    [
        ("session._graph", 1, 0),
        ("session._graph.named", 1, 0),
        ("session._graph._nodes", 2, 0),
        ("session._graph = graph", 1, 1),
        ("session._stats += 1", 1, 1),
        ("del session._graph", 1, 1),
        ("layer.claimed = True", 0, 1),
        ("first._graph, second.claimed = 1, 2", 1, 2),
        ("self._graph = cls._graph", 0, 0),
        ("session.__class__; found._replace(a=1)", 0, 0),
        ("class Own:\n    def __init__(self): self._a = 1\n    def eq(self, o): return o._a", 0, 0),
        ("class Own:\n    __slots__ = ('_a',)\ndef of(o): return o._a", 0, 0),
        ("class Own:\n    claimed: bool = False\ndef claim(o): o.claimed = True", 0, 0),
        ("import os\nos._exit(1)", 1, 0),
        ("def of(o):\n    claimed = o.claimed = True\n    return claimed", 0, 1),
        ("def claimed(o): o.claimed = True", 0, 1),
        ("class Own:\n    def claimed(self, o): o.claimed = self", 0, 0),
        ("class Own:\n    def of(self, o): claimed = o.claimed = self", 0, 1),
        ("setattr(layer, 'claimed', True); delattr(layer, 'claimed')", 0, 2),
        ("object.__setattr__(layer, 'claimed', True)", 0, 1),
        ("class Own:\n    def of(self): object.__setattr__(self, 'a', 1)", 0, 0),
        ("vars(layer)['claimed'] = True; vars(layer).update(claimed=True)", 0, 2),
        ("layer.__dict__['claimed'] = True; del layer.__dict__['claimed']", 0, 2),
        ("class Own:\n    def of(self): vars(self)['a'] = self.__dict__.pop('b')", 0, 0),
        ("vars(layer)['claimed'] + layer.__dict__['claimed']", 0, 0),
    ],
)
def test_foreign_uses_are_counted(text: str, used: int, assigned: int) -> None:
    assert (uses(text), assignments(text)) == (used, assigned)
