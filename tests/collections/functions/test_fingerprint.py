"""Fingerprints of stages: equal in every process for equal code and values, else different."""

from __future__ import annotations

import functools
import importlib
import io
import itertools
import json
import linecache
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosync_nb.collections.functions.fingerprint import (
    FunctionIdentity,
    definition_fingerprint,
    function_fingerprint,
)

_cells = itertools.count()

# Each cell binds f. Everything a function may take from outside occurs in one of them.
CELLS = {
    "plain": "def f(r):\n    return r.a + 1\n",
    "lambda": "f = lambda r: (r.a, r.b * 2)\n",
    "second of two lambdas": "g, f = lambda r: r.a, lambda r: r.b\n",
    "lambda in a lambda": "f = (lambda n: lambda r: r.a + n)(3)\n",
    "global set": "KEEP = {'ab', 'cd', 'ef', 'gh', 'ij'}\ndef f(r):\n    return r.a in KEEP\n",
    "set in code": "def f(r):\n    return r.a in {'ab', 'cd', 'ef', 'gh', 'ij'}\n",
    "helper": "def h(x):\n    return x + k\nk = 4\nf = lambda r: h(r.a)\n",
    "recursion": "def f(n):\n    return n * f(n - 1) if n else 1\n",
    "mutual": "def f(n):\n    return n and g(n - 1)\ndef g(n):\n    return not n or f(n - 1)\n",
    "closure": (
        "def make(n, names):\n    def inner(r):\n        return n, names, inner\n    return inner\n"
        "f = make(2.5, frozenset({'x', 'y', 'z'}))\n"
    ),
    "partial": "from functools import partial\nf = partial(lambda r, n: r.a + n, n=3)\n",
    "cached": "import functools\n@functools.cache\ndef f(r):\n    return r\n",
    "wrapped": (
        "import functools\ndef twice(g):\n    @functools.wraps(g)\n    def w(r):\n"
        "        return g(g(r))\n    return w\n@twice\ndef f(r):\n    return r + 1\n"
    ),
    "method": (
        "class Scale:\n    '''Scales.'''\n    def __init__(self, by): self.by = by\n"
        "    def apply(self, r): return r.a * self.by\nf = Scale(3).apply\n"
    ),
    "called object": (
        "class Add:\n    n = 1\n    def __init__(self, m): self.m = m\n"
        "    def __call__(self, r): return r.a + self.n + self.m\nf = Add(7)\n"
    ),
    "super": (
        "class A:\n    def go(self, r): return r\nclass B(A):\n    x: int = 2\n"
        "    def go(self, r): return super().go(r) + self.x\nf = B().go\n"
    ),
    "dataclass": (
        "from dataclasses import dataclass, field\n@dataclass(frozen=True)\nclass P:\n"
        "    x: int = 1\n    y: list = field(default_factory=list)\n"
        "    def sum(self): return self.x\np = P(4)\nf = lambda r: p.sum() + P(r.a).x\n"
    ),
    "named tuple": (
        "from typing import NamedTuple\nfrom collections import namedtuple\n"
        "class P(NamedTuple):\n    x: int\n    y: int = 2\n    def sum(self): return self.x\n"
        "Q = namedtuple('Q', 'a b')\nq = Q(1, P(5))\nf = lambda r: (q, P(r.a).sum())\n"
    ),
    "enum": (
        "import enum\nclass Color(enum.Enum):\n    RED = 1\n    BLUE = 'b'\n"
        "    def low(self): return self.name\nlike = {Color.RED, Color.BLUE}\n"
        "f = lambda r: r.a in like or Color.RED.low()\n"
    ),
    "values": (
        "import re, uuid\nfrom datetime import *\nfrom decimal import Decimal\n"
        "from zoneinfo import ZoneInfo\nimport numpy as np, pyarrow as pa\n"
        "v = [None, True, 1, -2**70, 0.1, float('nan'), 'é', b'\\x00', Decimal('1.50'),\n"
        "  date(2013, 1, 1), datetime(2013, 1, 1, tzinfo=timezone.utc), timedelta(1),\n"
        "  datetime(2013, 1, 1, tzinfo=ZoneInfo('Europe/Berlin')), time(1), (1, [2]),\n"
        "  {'k': {1, 2}}, frozenset({'p', 'q'}), np.arange(6).reshape(2, 3).T, np.float32(2),\n"
        "  pa.table({'a': [1, None], 'b': ['x', 'y']}), re.compile('a+'), range(3), str.upper,\n"
        "  len, 'abc'.join, int, list[int], uuid.UUID(int=5), 1j]\nf = lambda r: v\n"
    ),
    "installed": (
        "import math, numpy as np\nfrom numpy import log\nfrom operator import itemgetter\n"
        "get = itemgetter(0)\ndef f(r):\n    import json\n    from os import path\n"
        "    return np.exp(math.pi) + log(2) + get(r), json, path\n"
    ),
    "functions in a dict": "D = {'a': lambda r: 1, 'b': len}\nf = lambda r: D[r](r)\n",
    "class of many parts": (
        "import abc, enum, functools\nclass B(abc.ABC):\n    __slots__ = ('x', '__dict__')\n"
        "    @abc.abstractmethod\n    def go(self): ...\n"
        "class F(enum.Flag):\n    R = 1\n    W = 2\n"
        "class A(B):\n    both = F.R | F.W\n    def __init__(self): self.x = 1\n"
        "    def go(self): return self.y, self.z(), self.w(), self.v\n"
        "    @functools.cached_property\n    def y(self): return 2\n"
        "    @classmethod\n    def z(cls): return cls\n    @staticmethod\n    def w(): return 3\n"
        "    @property\n    def v(self): return self.both\n"
        "    def __call__(self, r): return self.go()\nf = A()\n"
    ),
    "manager": "import contextlib\n@contextlib.contextmanager\ndef f(r):\n    yield r\n",
    "generated by a package": "from pyarrow.compute import add\nf = lambda r: add(r, 1)\n",
    "statements": (
        "def f(r, *more, key=3, **rest):\n    try:\n        with r as s:\n            yield s\n"
        "    except ValueError as error:\n        raise KeyError(key) from error\n"
        "    while more:\n        match r:\n            case (1, *_): break\n"
        "            case _: continue\n    yield [x for x in rest if x] or f'{r!r:>{key}}'\n"
    ),
}


def define(text: str, *, source: bool = True, **names: Any) -> Any:
    """Runs a cell like a notebook and returns its f."""
    name = f"<cell {next(_cells)}>"
    if source:
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    space: dict[str, Any] = {"__name__": "__main__", **names}
    exec(compile(text, name, "exec", dont_inherit=True), space)
    return space["f"]


def identify(text: str, *, source: bool = True, **names: Any) -> str:
    """The fingerprint of a cell's f."""
    identity = function_fingerprint(define(text, source=source, **names))
    assert identity.reason is None
    assert identity.fingerprint is not None
    return identity.fingerprint


def in_process(program: str, seed: str, *arguments: str) -> Any:
    """The JSON output of a program in a new interpreter with its own hash seed."""
    here = Path(__file__).parent
    paths = f"{here}:{here.parents[1] / 'support'}:{here.parents[2]}"
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return json.loads(result.stdout.splitlines()[-1])


SOME = """
import json, sys
from test_fingerprint import CELLS, define, function_fingerprint
cells = CELLS.items() if len(sys.argv) < 2 else reversed(CELLS.items())
print(json.dumps({f"{name} {source}": function_fingerprint(define(text, source=source)).fingerprint
                  for name, text in cells for source in (True, False)}))
"""


def test_fingerprints_are_equal_in_every_process_and_differ_by_function() -> None:
    one = in_process(SOME, "1")
    two = in_process(SOME, "2", "reversed")
    assert one == two
    assert None not in one.values()
    assert len(one) == 2 * len(CELLS)
    assert len(set(one.values())) == len(one)


SHELL = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in json.loads(sys.argv[1]):
    shell.run_cell(cell, store_history=True).raise_error()
from nosync_nb.collections.functions.fingerprint import function_fingerprint
f = shell.user_ns["f"]
before = function_fingerprint(f).fingerprint
for _ in range(200):
    f(2)
print(json.dumps([before, function_fingerprint(f).fingerprint]))
"""


def test_notebook_cell_has_one_fingerprint_wherever_it_runs() -> None:
    cells = ["k = 3", "def h(x):\n    return x * k", "f = (lambda r: h(r)); g = lambda r: r"]
    moved = ["import os", cells[1] + "  # a comment", "%time k = 3\n1", "\n\n" + cells[2]]
    one = in_process(SHELL, "1", json.dumps(cells))
    two = in_process(SHELL, "2", json.dumps(moved))
    assert one[0] == one[1]
    assert one == two


@pytest.mark.parametrize(
    "other",
    [
        "def f(r):\n    # a comment\n    return helper(r, 1)\n",
        "\n\n\ndef f(r):\n    'A docstring.'\n    return helper(r, 1)\n",
        "def f(\n    r,\n):\n\n    return (\n        helper(\n            r,\n            1,\n"
        "        )\n    )\n",
        "def f(r): return helper(r,1)\n",
        "def g(r):\n    return helper(r, 1)\nf = g\n",
        "if True:\n    def f(r):\n        return helper(r, 0x1)\n",
        "def f(r) -> 'int':\n    return helper(r, 1)\n",
    ],
)
def test_formatting_comments_and_names_do_not_change_fingerprint(other: str) -> None:
    text = "def f(r):\n    return helper(r, 1)\n"
    helper = "def helper(r, n):\n    return r + n\n"
    assert identify(helper + text) == identify(other + helper)


def test_one_line_branch_equals_block() -> None:
    head = "def f(r):\n  for x in r:\n"
    one = head + "    if x and r: y = 1\n    else: y = 2\n  return y\n"
    two = head + "    if (x\n     and r):\n      y = 1\n    else:\n      y = 2\n  return y\n"
    assert identify(one) == identify(two)


def test_moved_lines_and_docstrings_do_not_matter_without_source() -> None:
    text = "def f(r):\n    return helper(r, 1)\ndef helper(r, n):\n    return r + n\n"
    documented = text.replace("):\n", "):\n    'Says what it does.'\n\n")
    one = identify(text, source=False)
    assert one == identify("\n\n" + documented, source=False)
    assert one != identify(text.replace("r + n", "r - n"), source=False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("k = 4", "k = 5"),
        ("k = 4", "k = 4.0"),
        ("k = 4", "k = True"),
        ("x + k", "x - k"),
        ("default=1", "default=2"),
        ("only='a'", "only='b'"),
        ("inner(7)", "inner(8)"),
        ("LIMITS = {'a': 1}", "LIMITS = {'a': 2}"),
        ("rate = 0.5", "rate = 0.25"),
        ("return self.rate", "return -self.rate"),
        ("math.floor", "math.ceil"),
        ("f.note = 1", "f.note = 2"),
        ("BLUE = 'b'", "GREEN = 'b'"),
        ("BLUE = 'b'", "BLUE = 'c'"),
    ],
)
@pytest.mark.parametrize("source", [True, False])
def test_changed_values_globals_and_helpers_change_fingerprint(
    old: str, new: str, source: bool
) -> None:
    text = (
        "import enum\nimport math\nk = 4\nLIMITS = {'a': 1}\ndef helper(x):\n    return x + k\n"
        "class Rate:\n    rate = 0.5\n    def get(self):\n        return self.rate\n"
        "class Color(enum.Enum):\n    RED = 1\n    BLUE = 'b'\n"
        "def inner(n):\n    def f(r, default=1, *, only='a'):\n"
        "        return helper(r), n, LIMITS, Rate().get(), math.floor(r), Color(r).name\n"
        "    return f\n"
        "f = inner(7)\nf.note = 1\n"
    )
    assert old in text
    assert identify(text, source=source) == identify("\n" + text, source=source)
    assert identify(text, source=source) != identify(text.replace(old, new), source=source)


def test_lambdas_of_one_line_differ() -> None:
    texts = ["lambda r: r.a", "lambda r: r.b", "lambda r: (lambda s: r.a + s)(1)"]
    line = f"fs = [{', '.join(texts)}]"
    for i, text in enumerate(texts):
        assert identify(f"{line}\nf = fs[{i}]\n") == identify(f"f = {text}\n")


def test_body_of_cell_magic_is_parsed() -> None:
    name, text = "<cell of dd>", "f = lambda r: (\n  r.a)\n"
    header = "%%dd --on local\n"
    linecache.cache[name] = (0, None, (header + text).splitlines(True), name)
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile("\n" + text, name, "exec", dont_inherit=True), space)
    assert function_fingerprint(space["f"]).fingerprint == identify("f = lambda r: r.a\n")


def test_multiline_chain_is_parsed() -> None:
    text = "f = (\n  [1,\n   (lambda r:\n     r.a), # first\n   lambda r: r.b][1]\n)\n"
    assert identify(text) == identify("f = lambda r: r.a\n")


def test_stale_source_text_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file = tmp_path / "clean_rows_one.py"
    file.write_text("def clean(r):\n    return r + 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("clean_rows_one")
    before = function_fingerprint(module.clean)
    file.write_text("def clean(r):\n    return r - 1\n")
    linecache.checkcache()
    stale = function_fingerprint(module.clean)
    monkeypatch.delitem(sys.modules, "clean_rows_one")
    after = function_fingerprint(importlib.import_module("clean_rows_one").clean)
    assert len({before.fingerprint, stale.fingerprint, after.fingerprint}) == 3
    assert "clean_rows_one" in before.modules


def test_only_used_names_of_user_module_count() -> None:
    helpers = types.ModuleType("helpers")
    named = vars(helpers)
    named.update(used=1, other=1)
    text = "def f(r):\n    return helpers.used + r\n"
    before = identify(text, helpers=helpers)
    named["other"] = 2
    assert before == identify(text, helpers=helpers)
    named["used"] = 2
    assert before != identify(text, helpers=helpers)
    whole = "def f(r):\n    return getattr(helpers, r)\n"
    before = identify(whole, helpers=helpers)
    named["other"] = 3
    assert before != identify(whole, helpers=helpers)


@pytest.mark.parametrize("statement", ["from .rates import STEP", "from . import rates"])
def test_relative_imports_of_function_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    package = tmp_path / "prices_of_mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "rates.py").write_text("STEP = 1\n")
    value = "STEP" if "STEP" in statement else "rates.STEP"
    (package / "clean.py").write_text(f"def f(r):\n    {statement}\n    return r + {value}\n")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        function = importlib.import_module("prices_of_mine.clean").f
        before = function_fingerprint(function)
        assert "prices_of_mine.rates" in before.modules
        assert before.fingerprint == function_fingerprint(function).fingerprint
        monkeypatch.setattr(importlib.import_module("prices_of_mine.rates"), "STEP", 2)
        assert before.fingerprint != function_fingerprint(function).fingerprint
    finally:
        for name in [n for n in sys.modules if n.partition(".")[0] == "prices_of_mine"]:
            del sys.modules[name]


def test_installed_packages_count_by_version(monkeypatch: pytest.MonkeyPatch) -> None:
    from nosync_nb.collections.functions.fingerprint import code_origin

    text = "import numpy as np\nfrom numpy import log\nf = lambda r: np.exp(r)\n"
    before = function_fingerprint(define(text))
    assert before.versions == {"numpy": np.__version__}
    monkeypatch.setattr(code_origin, "_package_version", lambda top: "99")
    assert before.fingerprint != function_fingerprint(define(text)).fingerprint


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (io.StringIO(), "an object of type '_io.StringIO'"),
        (object(), "an object of type 'object'"),
        ([1, {"a": object()}], "an object of type 'object'"),
        (iter([1]), "list_iterator"),
        (np.array([object()]), "dtype object"),
        (type("Mine", (), {"__module__": "__main__"})(), "type 'Mine'"),
        (np.random.default_rng(0), "Generator"),
        (type("Text", (str,), {})("a"), "Text"),
    ],
)
def test_unsupported_values_have_reason_instead_of_fingerprint(value: Any, says: str) -> None:
    identity = function_fingerprint(define("f = lambda r: captured\n", captured=value))
    assert identity.fingerprint is None
    assert identity.reason is not None
    assert says in identity.reason
    assert identity.reason.startswith("'captured' is ")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("f = lambda r: later(r)\n", "'later' is not defined yet"),
        ("f = lambda r: eval('r')\n", "'eval' looks up names"),
        ("n = 0\ndef f(r):\n    global n\n    n += 1\n    return n\n", "it assigns the global 'n'"),
        ("v = []\nv.append(v)\nf = lambda r: v\n", "'v' is a container that contains itself"),
        ("class M(type): pass\nclass A(metaclass=M): pass\nf = lambda r: A\n", "metaclass is 'M'"),
    ],
)
def test_unknowable_code_has_reason_instead_of_fingerprint(text: str, says: str) -> None:
    identity = function_fingerprint(define(text))
    assert identity == FunctionIdentity(None, identity.reason)
    assert says in str(identity.reason)


def test_fingerprint_is_independent_of_execution() -> None:
    f = define("def f(r):\n    return sum(x * 2 for x in range(r)) + len(str(r))\n")
    before = function_fingerprint(f)
    for _ in range(500):
        f(5)
    assert before == function_fingerprint(f)


def test_function_and_its_partial_differ() -> None:
    f = define("def f(r, n=1):\n    return r + n\n")
    prints = [function_fingerprint(g).fingerprint for g in (f, functools.partial(f, n=1))]
    assert len(set(prints)) == 2
    assert None not in prints
    text = "f = lambda r: v\n"
    assert identify(text, v=[functools.partial(f, 1)]) != identify(text, v=[f, (1,), {}])


def test_arrow_values_do_not_depend_on_chunks_or_offsets() -> None:
    whole = pa.table({"a": [1, 2, None], "s": ["x", None, "z"]})
    pieces = pa.concat_tables([whole.slice(0, 1), whole.slice(1)])
    text = "f = lambda r: t\n"
    assert identify(text, t=whole) == identify(text, t=pieces)
    assert identify(text, t=whole) != identify(text, t=whole.slice(1))


def test_numpy_values_do_not_depend_on_memory_order() -> None:
    text = "f = lambda r: a\n"
    array = np.arange(6.0).reshape(2, 3)
    assert identify(text, a=array) == identify(text, a=np.asfortranarray(array))
    assert identify(text, a=array) != identify(text, a=array.T)
    assert identify(text, a=array) != identify(text, a=array.astype("f4"))
    assert identify(text, a=np.float64(1)) != identify(text, a=np.array(1.0))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=6,
)


@given(values, values)
def test_captured_values_are_identified_by_type_and_value(one: Any, two: Any) -> None:
    text = "f = lambda r: v\n"
    same = repr(one) == repr(two)
    assert (identify(text, v=one) == identify(text, v=two)) == same


def test_definitions_do_not_depend_on_order_of_keys() -> None:
    one = definition_fingerprint({"op": "filter", "args": [1, "é", None, 1.5]})
    assert one == definition_fingerprint({"args": [1, "é", None, 1.5], "op": "filter"})
    assert one != definition_fingerprint({"args": [1, "é", None, 1.0], "op": "filter"})
    assert len(one) == 16
    assert one == one.lower()
    int(one, 16)


@pytest.mark.parametrize("bad", [{1: 2}, {"a": [{None: 1}]}, {"a": {1, 2}}, float("nan")])
def test_definitions_that_are_not_json_are_refused(bad: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        definition_fingerprint(bad)


VALUES = ["1", "'1'", "1.0", "True", "None", "b'1'", "1j", "...", "(1,)", "[1]", "{1}", "'None'"]


@pytest.mark.parametrize("source", [True, False])
@pytest.mark.parametrize(
    "where", ["constant", "captured", "global", "default", "field", "in a set"]
)
def test_values_with_equal_text_differ_everywhere(where: str, source: bool) -> None:
    text = {
        "constant": "def f(r):\n    return r.x == {}\n",
        "captured": "def make(v):\n    def f(r):\n        return r.x == v\n    return f\n"
        "f = make({})\n",
        "global": "v = {}\ndef f(r):\n    return r.x == v\n",
        "default": "def f(r, v={}):\n    return r.x == v\n",
        "field": "from typing import Any, NamedTuple\nclass Limits(NamedTuple):\n    v: Any = {}\n"
        "def f(r):\n    return r.x == Limits().v\n",
        "in a set": "def f(r):\n    return r.x in ({}, 7)\n",
    }[where]
    names: dict[str, str] = {}
    for value in VALUES:
        if where in ("constant", "in a set") or source or "[" not in value:
            names.setdefault(identify(text.format(value), source=source), value)
    expected = [v for v in VALUES if v in names.values()]
    assert list(names.values()) == expected
    assert len(names) == len(VALUES) - (0 if where in ("constant", "in a set") or source else 1)


@pytest.mark.parametrize("kind", ["typing", "collections"])
def test_default_of_named_tuple_counts(kind: str) -> None:
    made = {
        "typing": "from typing import NamedTuple\n"
        "class T(NamedTuple):\n    a: int\n    b: int = {}\n",
        "collections": "from collections import namedtuple\n"
        "T = namedtuple('T', 'a b', defaults=[{}])\n",
    }[kind]
    text = made + "f = lambda r: T(r.a)\n"
    assert identify(text.format(1)) == identify("\n" + text.format(1))
    found = {identify(text.format(v)) for v in ("1", "2", "'1'", "1.0", "True")}
    assert len(found) == 5
