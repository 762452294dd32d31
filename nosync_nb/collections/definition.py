"""The definition of a stage as data: operators, expressions and schemas, in parts.

A `Definition` can be written to the log, compared by fingerprint and compiled again after a
restart. Only the user's Python functions are not data. They are stored beside the definition, in
the state in which the user passed them, and are identified by
`nosync_nb.collections.functions.fingerprint`.

A definition may be nested to any depth, even if it comes from a log, but Python's stack is limited.
So functions that follow the nesting are generators, which yield the calls that they need.
`run_trampoline` runs these calls without using more of the stack.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from keyword import iskeyword
from typing import Any, TypeVar

from nosync_nb.collections.functions.closure import CapturedFunction, Function
from nosync_nb.collections.functions.fingerprint import definition_fingerprint
from nosync_nb.errors import SchemaError, StageError
from nosync_nb.operators.constant import LABELS, constant_arguments
from nosync_nb.rows import Field, Schema
from nosync_nb.trace.batch import Updates

SEMANTICS = 2  # incremented when an operator changes its results

OPERATORS_MAX = 10_000
"""The maximum number of operators in a definition; only generated definitions have thousands."""

NO_LEVELS: frozenset[int] = frozenset()


class Definition:
    """One operator over its inputs; immutable.

    A definition that is used twice is a single, shared part. All methods are iterative, so a deeply
    nested definition takes more time, but not more of the stack.

    Args:
        op: the keyword of the operator, such as "filter"; "ref" refers to an input or stage.
        schema: the schema of the output.
        inputs: the input definitions.
        params: the operator's parameters, as JSON values.
        functions: the user's functions among the operator's arguments.

    Attributes:
        size: the number of operators, including those of all parts.
        levels: the levels of the enclosing loops whose variables the definition uses.

    Raises:
        StageError: if the definition has more than `OPERATORS_MAX` operators.
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
        """Returns the value of `levels`, from the parameters and the inputs."""
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
        """Returns an operator over this definition; it has the same columns by default."""
        return Definition(op, self.schema if schema is None else schema, (self,), params, functions)

    def columns(self, places: Sequence[int]) -> Definition:
        """Returns a projection to the columns at some positions."""
        schema = Schema([self.schema.fields[i] for i in places])
        return self.then("select", schema, {"outputs": list(places)})

    @property
    def functions(self) -> tuple[Function, ...]:
        """The user's functions among the arguments of this operator alone."""
        return tuple(c.function for c in self.captured)

    @property
    def is_ref(self) -> bool:
        """True if the definition is a reference to an input or stage."""
        return self.op == "ref"

    @property
    def name(self) -> str:
        """The name of the collection that a reference refers to."""
        return str(self.params["name"])

    @property
    def references(self) -> tuple[str, ...]:
        """The names of the inputs and stages that the definition refers to, each once.

        Cost: O(size), once.
        """
        if self._names is None:
            self._names = tuple(dict.fromkeys(ref.name for ref in self.refs))
        return self._names

    @property
    def captures(self) -> tuple[CapturedFunction, ...]:
        """The user's functions in the definition and all its parts. Cost: O(size), once."""
        if self._captures is None:
            self._captures = tuple(each for part in self.walk() for each in part.captured)
        return self._captures

    @property
    def refs(self) -> tuple[Definition, ...]:
        """The parts that are references to inputs or stages. Cost: O(size), once."""
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
        """Returns the fingerprint; it is equal for equal computations, also after a restart.

        Args:
            named: the fingerprints of inputs and stages by name.

        Cost: O(size) in the first call, and after the fingerprint of an input has changed;
        O(references) in all other calls.
        """
        return self.fingerprints(named)[id(self)]

    def fingerprints(self, named: Mapping[str, str]) -> Mapping[int, str]:
        """Returns the fingerprints of the definition and all its parts, by `id` of the part."""
        key = tuple([named[name] for name in self.references])
        if self._known is None or self._known[0] != key:
            prints: dict[int, str] = {}
            for part in self.walk():
                prints[id(part)] = named[part.name] if part.is_ref else part._print(prints)
            self._known = key, prints
        return self._known[1]

    def _print(self, below: Mapping[int, str]) -> str:
        labels = LABELS if self.op == "constant" else ()
        return definition_fingerprint(
            {
                "op": self.op,
                "params": {k: v for k, v in self.params.items() if k not in labels},
                "schema": list(self.schema.fields),
                "functions": [c.identity for c in self.captured],
                "inputs": [below[id(i)] for i in self.inputs],
                "semantics": SEMANTICS,
            }
        )

    def to_json(self, functions: list[CapturedFunction]) -> list[dict[str, Any]]:
        """Returns the parts as JSON, inputs first, and this definition last.

        Inputs are represented by the numbers of their parts. Functions are appended to `functions`,
        and represented by their positions in it.
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
            ValueError: if an input of a part is not an earlier part.
            StageError: if there are no parts, or more than `OPERATORS_MAX`.
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
    """Returns a reference to the input or stage with a name and its columns."""
    return Definition("ref", schema, (), {"name": name})


def constant_definition(schema: Schema, rows: Updates, table: str, epoch: int) -> Definition:
    """Returns a definition of rows that never change: those of a table at an epoch.

    Cost: O(n log n) for n rows.
    """
    return Definition("constant", schema, (), constant_arguments(schema.types, rows, table, epoch))


def with_replaced_parts(tree: Definition, by_id: Mapping[int, Definition]) -> Definition:
    """Returns the tree with some parts replaced, by their `id`; unchanged parts are shared."""
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
        SchemaError: if the name is not an identifier, or is a Python keyword.
    """
    if not isinstance(name, str) or not name.isidentifier() or iskeyword(name):
        raise SchemaError(
            f"{what} {name!r}: a name must be an identifier",
            hint="use letters, digits and underscores; not a digit first, and not a Python keyword",
        )
    return name


_Result = TypeVar("_Result")

SuspendedCall = Generator[Any, Any, _Result]
"""A call that yields other calls whose results it needs, and receives each of the results."""


def run_trampoline(call: SuspendedCall[_Result]) -> _Result:
    """Runs a call and all calls that it yields, without nesting them on Python's stack.

    An exception ends all of these calls; suspended calls cannot catch it.
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
