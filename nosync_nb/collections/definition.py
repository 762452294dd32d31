"""The definition of a stage as data: operators, expressions and schemas, in parts.

A `Definition` can be written to the log, compared by fingerprint and compiled again after a
restart. Only the user's Python functions are not data. They are stored beside it in the state in
which they were given, and identified by `nosync_nb.collections.functions.fingerprint`.

The nesting of a definition depends on its author, and a definition may come from a log. The depth
of Python's stack depends on the caller. So functions that follow the nesting yield the calls that
they need, and `run_trampoline` runs these at one depth of the stack.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from keyword import iskeyword
from typing import Any, TypeVar

from nosync_nb.collections.functions.closure import CapturedFunction, Function
from nosync_nb.collections.functions.fingerprint import definition_fingerprint
from nosync_nb.errors import SchemaError, StageError
from nosync_nb.rows import Field, Schema

SEMANTICS = 2  # incremented when an operator changes its results

OPERATORS_MAX = 10_000
"""The most operators in a definition; only generated definitions reach thousands."""

NO_LEVELS: frozenset[int] = frozenset()


class Definition:
    """One operator over its inputs; immutable.

    A definition that is used twice is one part. All methods are iterative, so the depth of a
    definition affects the time and not the stack.

    Args:
        op: the operator's word, e.g. "filter"; "ref" refers to an input or stage by name.
        schema: the schema of the output.
        inputs: the input definitions.
        params: the operator's parameters, as JSON values.
        functions: the user's functions among the operator's arguments.

    Attributes:
        size: the number of its operators.
        levels: the levels of the loops whose variables it uses without being the loop itself.

    Raises:
        StageError: if it has more than `OPERATORS_MAX` operators.
    """

    __slots__ = (
        "__weakref__",
        "_captures",
        "_known",
        "_names",
        "_refs",
        "_uses",
        "captured",
        "inputs",
        "levels",
        "op",
        "params",
        "schema",
        "size",
    )

    def __init__(
        self,
        op: str,
        schema: Schema,
        inputs: tuple[Definition, ...] = (),
        params: Mapping[str, Any] | None = None,
        functions: tuple[Function | CapturedFunction, ...] = (),
    ) -> None:
        self.op = op
        self.schema = schema
        self.inputs = inputs
        self.params = dict(params or {})
        self.captured = tuple(
            f if isinstance(f, CapturedFunction) else CapturedFunction(f) for f in functions
        )
        self.levels = self._free()
        self._names: tuple[str, ...] | None = None
        self._refs: tuple[Definition, ...] | None = None
        self._uses: dict[int, int] | None = None
        self._captures: tuple[CapturedFunction, ...] | None = None
        self._known: tuple[tuple[str, ...], dict[int, str]] | None = None
        if len(inputs) < 2:
            self.size: int = 1 + sum(each.size for each in inputs)
        else:
            self.size = sum(1 for _ in self.walk())
        if self.size > OPERATORS_MAX:
            raise StageError(
                f"{op}: a description of {self.size} operators is more than {OPERATORS_MAX}",
                hint="name an intermediate step, which other collections can share:"
                " session.stage('step', ...)",
            )

    def _free(self) -> frozenset[int]:
        """The levels of loops whose variables are used."""
        if self.op == "variable":
            return frozenset((self.params["level"],))
        parts = [each.levels for each in self.inputs]
        if not any(parts):
            return NO_LEVELS
        if self.op == "iterate":  # sources, then bodies
            bodies = len(parts) // 2
            parts[bodies:] = [each - {self.params["level"]} for each in parts[bodies:]]
        return NO_LEVELS.union(*parts)

    def then(
        self,
        op: str,
        schema: Schema | None = None,
        params: Mapping[str, Any] | None = None,
        functions: tuple[Function, ...] = (),
    ) -> Definition:
        """An operator over this one, with the same columns unless `schema` is given."""
        return Definition(op, self.schema if schema is None else schema, (self,), params, functions)

    def columns(self, places: Sequence[int]) -> Definition:
        """Some of the columns, by place."""
        schema = Schema([self.schema.fields[i] for i in places])
        return self.then("select", schema, {"outputs": list(places)})

    @property
    def functions(self) -> tuple[Function, ...]:
        """The user's functions."""
        return tuple(c.function for c in self.captured)

    @property
    def is_ref(self) -> bool:
        """True if it refers to a named collection."""
        return self.op == "ref"

    @property
    def name(self) -> str:
        """The name of the collection that a reference refers to."""
        return str(self.params["name"])

    @property
    def references(self) -> tuple[str, ...]:
        """The names this definition depends on directly, each once. Cost: O(size), once."""
        if self._names is None:
            self._names = tuple(dict.fromkeys(ref.name for ref in self.refs))
        return self._names

    @property
    def captures(self) -> tuple[CapturedFunction, ...]:
        """The user's functions in it, with those of all parts. Cost: O(size), once."""
        if self._captures is None:
            self._captures = tuple(each for part in self.walk() for each in part.captured)
        return self._captures

    @property
    def refs(self) -> tuple[Definition, ...]:
        """The references in it. Cost: O(size), once."""
        if self._refs is None:
            self._refs = tuple(part for part in self.walk() if part.is_ref)
        return self._refs

    @property
    def uses(self) -> Mapping[int, int]:
        """The number of times that each part is an input, by its `id`. Cost: O(size), once."""
        if self._uses is None:
            self._uses = Counter(id(each) for part in self.walk() for each in part.inputs)
        return self._uses

    def walk(self) -> Iterator[Definition]:
        """Iterates over this definition and all its parts, each once, inputs first."""
        seen: set[int] = set()
        waiting = [(self, False)]
        while waiting:
            part, below = waiting.pop()
            if below:
                yield part
            elif id(part) not in seen:
                seen.add(id(part))
                waiting.append((part, True))
                waiting.extend([(each, False) for each in reversed(part.inputs)])

    def fingerprint(self, named: Mapping[str, str]) -> str:
        """Identifies the computation; equal for equal computations, also after a restart.

        Args:
            named: the fingerprints of inputs and stages by name.

        Cost: O(size) in the first call and when an input has another fingerprint, else
        O(references).
        """
        return self.fingerprints(named)[id(self)]

    def fingerprints(self, named: Mapping[str, str]) -> Mapping[int, str]:
        """The fingerprints of this definition and of all its parts, by `id`; see `fingerprint`."""
        key = tuple([named[name] for name in self.references])
        if self._known is None or self._known[0] != key:
            prints: dict[int, str] = {}
            for part in self.walk():
                prints[id(part)] = named[part.name] if part.is_ref else part._print(prints)
            self._known = key, prints
        return self._known[1]

    def _print(self, below: Mapping[int, str]) -> str:
        return definition_fingerprint(
            {
                "op": self.op,
                "params": self.params,
                "schema": list(self.schema.fields),
                "functions": [c.identity for c in self.captured],
                "inputs": [below[id(i)] for i in self.inputs],
                "semantics": SEMANTICS,
            }
        )

    def to_json(self, functions: list[CapturedFunction]) -> list[dict[str, Any]]:
        """The parts as JSON, inputs first and referred to by number, this one last.

        Its functions are appended to `functions` and referred to by place.
        """
        number: dict[int, int] = {}
        parts: list[dict[str, Any]] = []
        for part in self.walk():
            number[id(part)] = len(parts)
            places = range(len(functions), len(functions) + len(part.captured))
            functions += part.captured
            parts.append(
                {
                    "op": part.op,
                    "schema": [list(f) for f in part.schema.fields],
                    "inputs": [number[id(i)] for i in part.inputs],
                    "params": part.params,
                    "functions": list(places),
                }
            )
        return parts

    @classmethod
    def from_json(
        cls, data: Sequence[Mapping[str, Any]], functions: list[CapturedFunction]
    ) -> Definition:
        """Reads the definition that `to_json` wrote.

        Raises:
            ValueError: if a part refers to a later part.
            StageError: if there are more than `OPERATORS_MAX`.
        """
        if not 0 < len(data) <= OPERATORS_MAX:
            raise StageError(f"a description of {len(data)} operators")
        parts: list[Definition] = []
        for each in data:
            below = each["inputs"]
            if not all(type(i) is int and 0 <= i < len(parts) for i in below):
                raise ValueError(
                    f"operator {len(parts)} reads {below!r:.40}, but may read only earlier ones"
                )
            parts.append(
                cls(
                    each["op"],
                    Schema([Field(*f) for f in each["schema"]]),
                    tuple(parts[i] for i in below),
                    each["params"],
                    tuple(functions[p] for p in each["functions"]),
                )
            )
        return parts[-1]


def reference_to(name: str, schema: Schema) -> Definition:
    """A reference to a named collection."""
    return Definition("ref", schema, (), {"name": name})


def with_replaced_parts(tree: Definition, by_id: Mapping[int, Definition]) -> Definition:
    """The tree with parts (by identity) replaced; shares the parts that did not change."""
    parts: dict[int, Definition] = {}
    for part in tree.walk():
        other = by_id.get(id(part))
        if other is None:
            inputs = tuple(parts[id(i)] for i in part.inputs)
            other = part
            if any(a is not b for a, b in zip(inputs, part.inputs, strict=True)):
                other = Definition(part.op, part.schema, inputs, part.params, part.captured)
        parts[id(part)] = other
    return parts[id(tree)]


def check_name(name: str, what: str) -> str:
    """Returns a valid name of an input or stage.

    Raises:
        SchemaError: if it is not an identifier.
    """
    if not isinstance(name, str) or not name.isidentifier() or iskeyword(name):
        raise SchemaError(
            f"{what} {name!r}: a name must be an identifier",
            hint="use letters, digits and underscores; not a digit first, and not a Python keyword",
        )
    return name


_Result = TypeVar("_Result")

SuspendedCall = Generator[Any, Any, _Result]
"""A suspended call: yields the calls whose results it needs, and receives each result."""


def run_trampoline(call: SuspendedCall[_Result]) -> _Result:
    """Returns the result of a call and runs all calls that it yields, at one depth of the stack.

    An exception ends all of them; suspended calls cannot catch it.
    """
    waiting: list[SuspendedCall[Any]] = [call]
    result: Any = None
    while waiting:
        try:
            inner = waiting[-1].send(result)
        except StopIteration as end:
            waiting.pop()
            result = end.value
        else:
            waiting.append(inner)
            result = None
    return result  # type: ignore[no-any-return]
