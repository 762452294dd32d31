"""What a stage *is*, as data: operators, expressions and schemas in a tree.

A `Definition` can be written to the log, compared by fingerprint and compiled again after a
restart. Only the user's Python functions are not data; they are kept beside it and identified by
`nosync_nb.identity`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from keyword import iskeyword
from typing import Any

from nosync_nb.errors import SchemaError
from nosync_nb.identity import definition_fingerprint, function_fingerprint
from nosync_nb.rows import Field, Schema

SEMANTICS = 1  # raised when an operator starts to compute something else

Function = Callable[..., Any]


class Captured:
    """A function of the user with the identity it had when it was first asked for.

    A function may capture a list that grows while its stage runs. That does not make another stage
    of one that is there; describing it again does.

    Args:
        identity: if it is known, as it is for a function that came back from the log.
        text: how the log holds it.
    """

    __slots__ = ("_identity", "_text", "function")

    def __init__(
        self, function: Function, identity: str | None = None, text: str | None = None
    ) -> None:
        self.function = function
        self._identity = identity
        self._text = (text,) if identity is not None else None

    @property
    def identity(self) -> str:
        """Equal for equal functions."""
        if self._identity is None:
            self._identity = identify(self.function)
        return self._identity

    def text(self, seal: Callable[[Function], str | None]) -> str | None:
        """How the log holds it: made once by `seal`; None if it cannot be stored."""
        if self._text is None:
            self._text = (seal(self.function),)
        return self._text[0]


class Definition:
    """One operator over its inputs.

    Args:
        op: the operator's word, e.g. "filter"; "ref" refers to an input or stage by name.
        schema: of the output.
        inputs: definitions below.
        params: what the operator needs, JSON-able.
        functions: the user's functions among the operator's arguments.
    """

    __slots__ = ("__weakref__", "captured", "inputs", "op", "params", "schema")

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
            found = frozenset().union(*parts)
            if tree.op == "iterate":
                found -= {tree.params["level"]}
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


_kernel_identities: dict[int, tuple[Function, str]] = {}


def identify(function: Function) -> str:
    """The identity of a function; one that cannot be identified is itself in this kernel only."""
    identity = function_fingerprint(function)
    if identity.fingerprint is not None:
        return identity.fingerprint
    held = _kernel_identities.setdefault(
        id(function), (function, f"kernel-{len(_kernel_identities)}-{id(function):x}")
    )
    return held[1]


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
