"""What a stage *is*, as data: operators, expressions and schemas in a tree.

A `Definition` can be written to the log, compared by fingerprint and compiled again after a
restart. Only the user's Python functions are not data; they are kept beside it, as they were when
they were given, and identified by `nosync_nb.identity`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from keyword import iskeyword
from typing import Any

from nosync_nb import pickles
from nosync_nb.errors import SchemaError, StageError
from nosync_nb.identity import Identity, definition_fingerprint, function_fingerprint
from nosync_nb.rows import Field, Schema

SEMANTICS = 2  # raised when an operator starts to compute something else

Function = Callable[..., Any]


class Captured:
    """A function of the user as it was when it was given: code, captured values, identity.

    What runs is a private copy. Its globals, closure cells, defaults and what they hold are those
    that were identified, whatever becomes of the notebook's own, and a retraction years later
    cancels what was inserted. A copy may change what it captured: nobody else sees that, it makes
    no other stage, and it is forgotten at a restart. A function that cannot be copied runs as it
    is.

    Failure: 1. A stage keeps rows above a global LIMIT. 2. LIMIT is set to another value in a
    later cell. 3. A row is removed, judged by the new value, and does not cancel.

    Args:
        identity: if it is known, as it is for a function that came back from the log.
        text: how the log holds it in a `context`: the place that it was signed for.

    Attributes:
        found: its fingerprint and what that comes from; None for one of the log.
        pickle: the bytes of the copy, until the log has them.
        why: why there is no copy, in words for the user.
    """

    __slots__ = ("_identity", "_texts", "found", "function", "pickle", "why")

    def __init__(
        self,
        function: Function,
        identity: str | None = None,
        text: str | None = None,
        context: str = "",
    ) -> None:
        self.function = function
        self.found: Identity | None = None
        self.pickle: bytes | None = None
        self.why: str | None = None
        self._identity = identity
        self._texts = {} if identity is None else {context: text}
        if identity is None:
            self._take()

    @property
    def identity(self) -> str:
        """Equal for equal functions; one that cannot be identified is itself in this kernel."""
        if self._identity is None:
            self._take()  # what it captures may be bound by now
        if self._identity is None:
            self._identity = kernel_identity(self.function)
        return self._identity

    def _take(self) -> None:
        """Identifies the function, and from then on is a copy of it."""
        self.found = function_fingerprint(self.function)
        self._identity = self.found.fingerprint
        self.why = self.found.reason
        if self._identity is None:
            return
        try:
            data = pickles.dumps(self.function, self.found.modules)
            self.function = pickles.loads(data)
            self.pickle = data
        except Exception as error:  # whatever the user's objects raise
            self.why = f"{type(error).__name__}: {error}"

    def text(self, context: str | None, seal: Callable[[Captured, str], str | None]) -> str | None:
        """How the log holds it in a place: made once by `seal`; None if it cannot be stored.

        Args:
            context: the place; None: wherever it was, as nobody will load it.
        """
        known = self._texts
        if context is None or (known and self.sealed is None):
            return next(iter(known.values()), None)
        if context not in known:
            known[context] = seal(self, context)
            self.pickle = None
        return known[context]

    @property
    def sealed(self) -> tuple[str, str] | None:
        """A context that it was signed for, and how the log holds it there; None if nowhere."""
        return next(((where, text) for where, text in self._texts.items() if text), None)


OPERATORS_MAX = 10_000
"""How many operators a description may have; thousands are some machine's work."""


class Definition:
    """One operator over its inputs.

    Args:
        op: the operator's word, e.g. "filter"; "ref" refers to an input or stage by name.
        schema: of the output.
        inputs: definitions below.
        params: what the operator needs, JSON-able.
        functions: the user's functions among the operator's arguments.

    Raises:
        StageError: if it has more than `OPERATORS_MAX` operators; one that is used twice counts
            twice, so a description that doubles itself gets there in a few steps.
    """

    __slots__ = ("__weakref__", "captured", "inputs", "op", "params", "schema", "size")

    def __init__(
        self,
        op: str,
        schema: Schema,
        inputs: tuple[Definition, ...] = (),
        params: Mapping[str, Any] | None = None,
        functions: tuple[Function | Captured, ...] = (),
    ) -> None:
        self.op = op
        self.schema = schema
        self.inputs = inputs
        self.params = dict(params or {})
        self.captured = tuple(f if isinstance(f, Captured) else Captured(f) for f in functions)
        self.size: int = 1 + sum(each.size for each in inputs)
        if self.size > OPERATORS_MAX:
            raise StageError(
                f"{op}: a description of {self.size} operators is more than {OPERATORS_MAX}",
                hint="name a step in between, which is then one for those that use it: "
                "session.stage('step', ...)",
            )

    @property
    def functions(self) -> tuple[Function, ...]:
        """The user's functions."""
        return tuple(c.function for c in self.captured)

    @property
    def is_ref(self) -> bool:
        """Whether this stands for a named collection."""
        return self.op == "ref"

    @property
    def name(self) -> str:
        """The name a reference refers to."""
        return str(self.params["name"])

    def references(self) -> Iterator[str]:
        """The names this definition depends on directly, repeated if used repeatedly."""
        if self.is_ref:
            yield self.name
        for each in self.inputs:
            yield from each.references()

    def walk(self) -> Iterator[Definition]:
        """This definition and all below it, inputs first."""
        for each in self.inputs:
            yield from each.walk()
        yield self

    def fingerprint(self, named: Mapping[str, str]) -> str:
        """Identifies what is computed; equal for equal computations, also after a restart.

        Args:
            named: the fingerprints of inputs and stages by name.
        """
        if self.is_ref:
            return named[self.name]
        return definition_fingerprint(
            {
                "op": self.op,
                "params": self.params,
                "schema": list(self.schema.fields),
                "functions": [c.identity for c in self.captured],
                "inputs": [i.fingerprint(named) for i in self.inputs],
                "semantics": SEMANTICS,
            }
        )

    def to_json(self, functions: list[Captured]) -> dict[str, Any]:
        """This tree as JSON; its functions are appended to `functions` and referred to by place."""
        places = []
        for each in self.captured:
            places.append(len(functions))
            functions.append(each)
        return {
            "op": self.op,
            "schema": [list(f) for f in self.schema.fields],
            "inputs": [i.to_json(functions) for i in self.inputs],
            "params": self.params,
            "functions": places,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], functions: list[Captured]) -> Definition:
        """The tree that `to_json` wrote."""
        return cls(
            data["op"],
            Schema([Field(*f) for f in data["schema"]]),
            tuple(cls.from_json(i, functions) for i in data["inputs"]),
            data["params"],
            tuple(functions[p] for p in data["functions"]),
        )


def reference(name: str, schema: Schema) -> Definition:
    """A reference to a named collection."""
    return Definition("ref", schema, (), {"name": name})


def free_levels(tree: Definition, known: dict[int, frozenset[int]] | None = None) -> frozenset[int]:
    """The levels of the loops whose variables a tree uses without being the loop itself."""
    known = {} if known is None else known
    found = known.get(id(tree))
    if found is None:
        if tree.op == "variable":
            found = frozenset((tree.params["level"],))
        else:
            parts = [free_levels(each, known) for each in tree.inputs]
            if tree.op == "iterate":  # sources, then bodies
                bodies = len(parts) // 2
                parts[bodies:] = [each - {tree.params["level"]} for each in parts[bodies:]]
            found = frozenset().union(*parts)
        known[id(tree)] = found
    return found


def replaced(tree: Definition, by_id: Mapping[int, Definition]) -> Definition:
    """The tree with sub-trees (by identity) replaced, sharing what did not change."""
    if id(tree) in by_id:
        return by_id[id(tree)]
    inputs = tuple(replaced(i, by_id) for i in tree.inputs)
    if all(a is b for a, b in zip(inputs, tree.inputs, strict=True)):
        return tree
    return Definition(tree.op, tree.schema, inputs, tree.params, tree.captured)


_kernel_identities: dict[int, tuple[Callable[[], Function | None], str]] = {}
_kernel_numbers = count()


def kernel_identity(function: Function) -> str:
    """The identity of a function that is recognised in this kernel only."""
    held = _kernel_identities.get(id(function))
    if held is None or held[0]() is not function:
        name = f"kernel-{next(_kernel_numbers)}-{id(function):x}"
        held = _kernel_identities[id(function)] = _held(function), name
    return held[1]


def _held(function: Function) -> Callable[[], Function | None]:
    """A function as long as it is there, and no longer than it has to be."""
    key = id(function)
    try:
        return weakref.ref(function, lambda gone: _forget(key, gone))
    except TypeError:  # some callables cannot be held so
        return lambda: function


def _forget(key: int, gone: object) -> None:
    """Forgets a function that is gone, unless another one is there by now."""
    if key in _kernel_identities and _kernel_identities[key][0] is gone:
        del _kernel_identities[key]


def check_name(name: str, what: str) -> str:
    """A name of an input or stage.

    Raises:
        SchemaError: if it is not an identifier.
    """
    if not isinstance(name, str) or not name.isidentifier() or iskeyword(name):
        raise SchemaError(
            f"{what} {name!r}: a name must be an identifier",
            hint="use letters, digits and underscores; no digit first, no word of Python's own",
        )
    return name
