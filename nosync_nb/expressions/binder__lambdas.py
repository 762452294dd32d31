"""Binding what is read from the tree itself: lambdas, fields by name, structs with aliases.

`CALLS` are functions that get the trees of their arguments, `SPECIAL` further kinds of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from nosync_nb.expressions.evaluation.nested_nodes import FoldNode, LambdaBody, LambdaNode, key_of
from nosync_nb.expressions.evaluation.nodes import ColumnNode, ValueNode
from nosync_nb.expressions.functions import collections as collected
from nosync_nb.expressions.implicit_casts import NotProvedError
from nosync_nb.expressions.kernels import collections

if TYPE_CHECKING:
    from nosync_nb.expressions.binder import Binder


class Variables:
    """The variables of the lambdas around a place, behind the columns.

    Attributes:
        types: of the columns, then of the variables.
    """

    def __init__(self, types: Sequence[str]) -> None:
        self.types = list(types)
        self._names: list[tuple[str, int]] = []

    def find(self, name: str) -> ColumnNode | None:
        """The variable of a name, the innermost one."""
        for own, place in reversed(self._names):
            if own == name.lower():
                return ColumnNode(place, self.types[place])
        return None

    def body(
        self, binder: Binder, tree: Any, types: Sequence[str], least: int | None = None
    ) -> LambdaBody:
        """Binds a lambda whose variables have these types; the last ones may be left out.

        Raises:
            NotProvedError: if it is no lambda of as many variables.
        """
        least = len(types) if least is None else least
        if not isinstance(tree, exp.Lambda) or not least <= len(tree.expressions) <= len(types):
            raise NotProvedError("a lambda of other variables")
        first, known = len(self.types), len(self._names)
        for variable, type_ in zip(tree.expressions, types, strict=False):
            self._names.append((variable.name.lower(), len(self.types)))
            self.types.append(type_)
        try:
            node = binder.bind(tree.this)
            return LambdaBody(node, first, self.types)
        finally:
            del self.types[first:], self._names[known:]


def _over(binder: Binder, items: Any, tree: Any) -> tuple[ValueNode, LambdaBody, Any]:
    """An array, a lambda over its elements, perhaps with their places, and how to call it."""
    node = binder.bind(items)
    (type_,) = collected.inner(node)
    body = binder.scope.body(binder, tree, (type_, "int"), least=1)
    if len(body.types) - body.first == 1:
        return node, body, lambda place, value: (value,)
    return node, body, lambda place, value: (value, place)


def _transform(binder: Binder, name: str, arguments: Sequence[Any]) -> ValueNode:
    items, tree = _arity(name, arguments, 2)
    node, body, expand = _over(binder, items, tree)
    if not collected.is_held(body.node.type):
        raise NotProvedError(f"an array of {body.node.type}")
    made = f"array<{body.node.type}>"
    return LambdaNode(name, made, node, body, lambda own, given: given, expand)


def _predicate(body: LambdaBody) -> None:
    if body.node.type != "boolean":
        raise NotProvedError(f"a {body.node.type} as condition")


def _filter(binder: Binder, name: str, arguments: Sequence[Any]) -> ValueNode:
    items, tree = _arity(name, arguments, 2)
    node, body, expand = _over(binder, items, tree)
    _predicate(body)

    def collect(own: list[Any], given: list[Any]) -> list[Any]:
        return [value for value, keep in zip(own, given, strict=True) if keep]

    return LambdaNode(name, node.type, node, body, collect, expand)


def _any_of(binder: Binder, name: str, arguments: Sequence[Any]) -> ValueNode:
    """`exists` and `forall`, three-valued; further elements are not asked once it is settled."""
    items, tree = _arity(name, arguments, 2)
    node = binder.bind(items)
    body = binder.scope.body(binder, tree, collected.inner(node))
    _predicate(body)
    settles = name == "exists"

    def collect(own: list[Any], given: list[Any]) -> bool | None:
        if settles in given:
            return settles
        return None if None in given else not settles

    return LambdaNode(
        name, "boolean", node, body, collect, lambda place, value: (value,), settles=settles
    )


def _aggregate(binder: Binder, name: str, arguments: Sequence[Any]) -> ValueNode:
    if len(arguments) not in (3, 4):
        raise NotProvedError(f"{name} of {len(arguments)} arguments")
    items, start = binder.bind(arguments[0]), binder.bind(arguments[1])
    (type_,) = collected.inner(items)
    merge = binder.scope.body(binder, arguments[2], (start.type, type_))
    if merge.node.type != start.type or not collected.is_held(start.type):
        raise NotProvedError(f"{name} of {start.type} that becomes {merge.node.type}")
    finish = None
    if len(arguments) == 4:
        finish = binder.scope.body(binder, arguments[3], (start.type,))
    return FoldNode(items, start, merge, finish)


def _of_entries(binder: Binder, name: str, arguments: Sequence[Any]) -> ValueNode:
    """`map_filter`, `transform_values`, `transform_keys`."""
    items, tree = _arity(name, arguments, 2)
    node = binder.bind(items)
    key, value = collected.inner(node, "map")
    body = binder.scope.body(binder, tree, (key, value))
    kind = body.node.type
    if name == "map_filter":
        _predicate(body)
        made = node.type
    elif not collected.is_held(kind) or (name == "transform_keys" and kind.endswith(">")):
        raise NotProvedError(f"a map of {kind}")
    else:
        made = f"map<{key},{kind}>" if name == "transform_values" else f"map<{kind},{value}>"
    unique = collections.pairs(key_of(kind))

    def collect(own: list[Any], given: list[Any]) -> list[Any]:
        together = list(zip(own, given, strict=True))
        if name == "map_filter":
            return [entry for entry, keep in together if keep]
        if name == "transform_values":
            return [(k, new) for (k, _), new in together]
        return unique([(new, v) for (_, v), new in together])

    raises = name == "transform_keys"
    return LambdaNode(
        name, made, node, body, collect, lambda place, entry: tuple(entry), raises=raises
    )


def _struct(binder: Binder, name: str, arguments: Sequence[Any]) -> ValueNode:
    """`struct(a, f(b), c as d)`: fields are called as columns, aliases, or col1, col2, ..."""
    fields = []
    for number, tree in enumerate(arguments, 1):
        called = f"col{number}"
        if isinstance(tree, exp.Alias):
            called, tree = tree.alias, tree.this
        elif isinstance(tree, exp.Column):
            called = tree.name
            if tree.args.get("table") is not None or called not in binder.schema.names:
                raise NotProvedError("a field that is called by what is in it")
        elif isinstance(tree, exp.Identifier | exp.Dot | exp.Bracket):
            raise NotProvedError("a field that is called by what is in it")
        fields.append((called, binder.bind(tree)))
    return collected.struct(fields)


def _arity(name: str, arguments: Sequence[Any], wanted: int) -> Sequence[Any]:
    if len(arguments) != wanted:
        raise NotProvedError(f"{name} of {len(arguments)} arguments")
    return arguments


Call = Callable[["Binder", str, Sequence[Any]], ValueNode]
CALLS: dict[str, Call] = {
    "transform": _transform,
    "filter": _filter,
    "exists": _any_of,
    "forall": _any_of,
    "aggregate": _aggregate,
    "reduce": _aggregate,
    "map_filter": _of_entries,
    "transform_values": _of_entries,
    "transform_keys": _of_entries,
    "struct": _struct,
}


def _variable(binder: Binder, tree: Any) -> ValueNode:
    node = binder.scope.find(tree.name)
    if node is None:
        raise NotProvedError(f"the name {tree.name}")
    return node


def _dot(binder: Binder, tree: Any) -> ValueNode:
    if not isinstance(tree.expression, exp.Identifier):
        raise NotProvedError("a call behind a dot")
    return collected.field(binder.bind(tree.this), tree.expression.name)


def _bracket(binder: Binder, tree: Any) -> ValueNode:
    if len(tree.expressions) != 1 or isinstance(tree.expressions[0], exp.Slice):
        raise NotProvedError("a slice in brackets")
    return collected.element(
        binder.bind(tree.this), binder.bind(tree.expressions[0]), utc=binder.utc
    )


def of_column(binder: Binder, tree: exp.Column) -> ValueNode:
    """`st.x.y`: a column, and fields in it."""
    first, *fields = [part.name for part in tree.parts]
    node: ValueNode | None = binder.scope.find(first)
    if node is None:
        place = binder.schema.index(first)
        node = ColumnNode(place, binder.schema.types[place])
    for name in fields:
        node = collected.field(node, name)
    return node


SPECIAL: dict[type[exp.Expression], Callable[[Any, Any], ValueNode]] = {
    exp.Identifier: _variable,
    exp.Dot: _dot,
    exp.Bracket: _bracket,
    exp.Transform: lambda binder, tree: _transform(
        binder, "transform", (tree.this, tree.expression)
    ),
}
