"""Binds a syntax tree to nodes: columns become positions, operators and calls become table entries.

`bind` raises `NotProvedError` where the table has no entry; then Spark evaluates the expression.
Lambdas, struct fields by name and structs with aliases are bound directly from the tree, because
their arguments are not plain values. `_TREE_CALLS` lists such functions, and `_NESTED` such tree
nodes. Numbers and types are bound according to their spelling in the expression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any

from sqlglot import exp

from nosync_nb.errors import SchemaError
from nosync_nb.expressions.evaluation.nested_nodes import (
    FoldNode,
    LambdaBody,
    LambdaNode,
    SortNode,
    key_of,
)
from nosync_nb.expressions.evaluation.nodes import (
    ColumnNode,
    LiteralNode,
    ValueNode,
    is_shared_operand,
)
from nosync_nb.expressions.functions import (
    collections,
    comparisons,
    datetimes,
    intervals,
    nondeterministic,
    patterns,
)
from nosync_nb.expressions.functions.registry import FUNCTIONS, OPERATORS, RESULTS
from nosync_nb.expressions.functions.rules import Function, check_arity
from nosync_nb.expressions.implicit_casts import cast, try_cast
from nosync_nb.expressions.kernels import collections as collection_kernels
from nosync_nb.expressions.kernels.kernel import NotProvedError
from nosync_nb.expressions.non_ansi import has_non_ansi_cast, same_without_ansi
from nosync_nb.expressions.non_ansi_types import non_ansi_operands
from nosync_nb.expressions.syntax.parser import Unsigned, listed_patterns
from nosync_nb.expressions.typing_rules import DIGITS_MAX, TIMES, VOID
from nosync_nb.rows import Schema, canonical_type
from nosync_nb.rows.ddl import INTERVALS
from nosync_nb.rows.types import INTEGERS, is_nested, nested_parts

CAST_TYPES = {
    "BOOLEAN": "boolean",
    "TINYINT": "tinyint",
    "SMALLINT": "smallint",
    "INT": "int",
    "BIGINT": "bigint",
    "FLOAT": "float",
    "DOUBLE": "double",
    "TEXT": "string",
    "BINARY": "binary",
    "DATE": "date",
    "TIMESTAMPTZ": "timestamp",
    "TIMESTAMPLTZ": "timestamp",
    "TIMESTAMPNTZ": "timestamp_ntz",
}
"""The types that a cast may name, by their names in sqlglot."""


def cast_type(tree: Any) -> str:
    """Returns the type that a cast names.

    Raises:
        NotProvedError: if casts to the type are not evaluated here.
    """
    written: str = tree.sql("spark").lower()
    if tree.this.name == "DECIMAL":
        parts = [int(part.name) for part in tree.expressions]
        precision, scale = (*parts, *(10, 0)[len(parts) :])
        if 0 <= scale <= precision <= DIGITS_MAX:
            return f"decimal({precision},{scale})"
    if isinstance(tree.this, exp.Interval) and written in INTERVALS:
        return written
    type_ = CAST_TYPES.get(tree.this.name)
    if type_ is None:
        raise NotProvedError(f"cast to {written}")
    return type_


def _nested_cast(node: ValueNode, tree: Any) -> ValueNode:
    """Returns a null of a nested type, or a node that has the type already.

    Raises:
        NotProvedError: if values must be converted.
    """
    try:
        type_ = canonical_type(tree.sql("spark"))
    except SchemaError:
        raise NotProvedError(f"cast to {tree.sql('spark').lower()}") from None
    if node.type == type_:
        return node
    if isinstance(node, LiteralNode) and node.value is None and collections.is_held(type_):
        return LiteralNode(None, type_)
    raise NotProvedError(f"cast of {node.type} to {type_}")


def number(text: str) -> LiteralNode:
    """Returns the literal as Spark reads it: int, bigint, decimal, or double if it has an exponent.

    Raises:
        NotProvedError: if the number exceeds the range of its type, or has an exponent without
            digits.
    """
    if "e" in text.lower():
        try:
            value = float(text)
        except ValueError:
            raise NotProvedError(f"{text}, which is not a number") from None
        if abs(value) == float("inf"):
            raise NotProvedError("a number beyond double")
        return LiteralNode(value, "double")
    if "." not in text:
        whole = int(text)
        if -(2**31) <= whole < 2**31:
            return LiteralNode(whole, "int", written=True)
        if -(2**63) <= whole < 2**63:
            return LiteralNode(whole, "bigint", written=True)
    exact = Decimal(text)
    _, digits, exponent = exact.as_tuple()
    scale = -exponent if isinstance(exponent, int) else 0
    if max(len(digits), scale) > DIGITS_MAX:
        raise NotProvedError("a decimal of more than 38 digits")
    return LiteralNode(exact, f"decimal({max(len(digits), scale)},{scale})")


class LambdaScope:
    """The variables of the enclosing lambdas, numbered after the columns.

    Attributes:
        types: the types of the columns, followed by those of the variables.
    """

    def __init__(self, types: Sequence[str]) -> None:
        self.types = list(types)
        self._names: list[tuple[str, int]] = []

    def find(self, name: str) -> ColumnNode | None:
        """Returns the innermost variable with a name; None if there is none."""
        for own, place in reversed(self._names):
            if own == name.lower():
                return ColumnNode(place, self.types[place])
        return None

    def body(
        self, binder: Binder, tree: Any, types: Sequence[str], least: int | None = None
    ) -> LambdaBody:
        """Binds a lambda whose variables have the given types.

        Args:
            least: the smallest allowed number of variables; `None` means all of `types`.

        Raises:
            NotProvedError: if the tree is not a lambda, or has another number of variables.
        """
        least = len(types) if least is None else least
        if not isinstance(tree, exp.Lambda) or not least <= len(tree.expressions) <= len(types):
            raise NotProvedError("a lambda of other variables")
        first, names_count = len(self.types), len(self._names)
        for variable, type_ in zip(tree.expressions, types, strict=False):
            self._names.append((variable.name.lower(), len(self.types)))
            self.types.append(type_)
        try:
            node = binder.bind(tree.this)
            return LambdaBody(node, first, self.types)
        finally:
            del self.types[first:], self._names[names_count:]


def _bind_lambda(binder: Binder, items: Any, tree: Any) -> tuple[ValueNode, LambdaBody, Any]:
    """Binds an array, and a lambda over its elements and perhaps their positions.

    Returns:
        the array, the body of the lambda, and a function from the position and the value of an
        element to the variables of the lambda.
    """
    node = binder.bind(items)
    (type_,) = collections.inner(node)
    body = binder.scope.body(binder, tree, (type_, "int"), least=1)
    if len(body.types) - body.first == 1:
        return node, body, lambda place, value: (value,)
    return node, body, lambda place, value: (value, place)


def _transform(binder: Binder, name: str, arguments: Sequence[Any]) -> ValueNode:
    check_arity(name, arguments, 2)
    items, tree = arguments
    node, body, expand = _bind_lambda(binder, items, tree)
    if not collections.is_held(body.node.type):
        raise NotProvedError(f"an array of {body.node.type}")
    type_ = f"array<{body.node.type}>"
    return LambdaNode(name, type_, node, body, lambda own, given: given, expand)


def _predicate(body: LambdaBody) -> None:
    if body.node.type != "boolean":
        raise NotProvedError(f"a condition of type {body.node.type}")


def _filter(binder: Binder, name: str, arguments: Sequence[Any]) -> ValueNode:
    check_arity(name, arguments, 2)
    items, tree = arguments
    node, body, expand = _bind_lambda(binder, items, tree)
    _predicate(body)

    def collect(own: list[Any], given: list[Any]) -> list[Any]:
        return [value for value, keep in zip(own, given, strict=True) if keep]

    return LambdaNode(name, node.type, node, body, collect, expand)


def _any_of(binder: Binder, name: str, arguments: Sequence[Any]) -> ValueNode:
    """Binds `exists` and `forall`, three-valued; evaluation stops at the first decisive element."""
    check_arity(name, arguments, 2)
    items, tree = arguments
    node = binder.bind(items)
    body = binder.scope.body(binder, tree, collections.inner(node))
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
    check_arity(name, arguments, 3, 4)
    items, start = binder.bind(arguments[0]), binder.bind(arguments[1])
    (type_,) = collections.inner(items)
    merge = binder.scope.body(binder, arguments[2], (start.type, type_))
    if merge.node.type != start.type or not collections.is_held(start.type):
        raise NotProvedError(f"{name} of {start.type} that becomes {merge.node.type}")
    finish = None
    if len(arguments) == 4:
        finish = binder.scope.body(binder, arguments[3], (start.type,))
    return FoldNode(items, start, merge, finish)


def _of_entries(binder: Binder, name: str, arguments: Sequence[Any]) -> ValueNode:
    """Binds `map_filter`, `transform_values` and `transform_keys`."""
    check_arity(name, arguments, 2)
    items, tree = arguments
    node = binder.bind(items)
    key, value = collections.inner(node, "map")
    body = binder.scope.body(binder, tree, (key, value))
    kind = body.node.type
    if name == "map_filter":
        _predicate(body)
        result_type = node.type
    elif not collections.is_held(kind) or (name == "transform_keys" and kind.endswith(">")):
        raise NotProvedError(f"a map of {kind}")
    else:
        result_type = f"map<{key},{kind}>" if name == "transform_values" else f"map<{kind},{value}>"
    unique = collection_kernels.pairs(key_of(kind))

    def collect(own: list[Any], given: list[Any]) -> list[Any]:
        together = list(zip(own, given, strict=True))
        if name == "map_filter":
            return [entry for entry, keep in together if keep]
        if name == "transform_values":
            return [(k, new) for (k, _), new in together]
        return unique([(new, v) for (_, v), new in together])

    raises = name == "transform_keys"
    return LambdaNode(
        name, result_type, node, body, collect, lambda place, entry: tuple(entry), raises=raises
    )


def _struct(binder: Binder, name: str, arguments: Sequence[Any]) -> ValueNode:
    """Binds `struct(a, f(b), c as d)`; fields are named by columns, aliases, or col1, col2, ..."""
    fields = []
    for position, tree in enumerate(arguments, 1):
        called = f"col{position}"
        if isinstance(tree, exp.Alias):
            called, tree = tree.alias, tree.this
        elif isinstance(tree, exp.Column):
            called = tree.name
            if tree.args.get("table") is not None or called not in binder.schema.names:
                raise NotProvedError("a field whose name is computed")
        elif isinstance(tree, exp.Identifier | exp.Dot | exp.Bracket):
            raise NotProvedError("a field whose name is computed")
        fields.append((called, binder.bind(tree)))
    return collections.struct(fields)


def _array_sort(binder: Binder, name: str, arguments: Sequence[Any]) -> ValueNode:
    """Binds `array_sort(a [, (x, y) -> ...])`."""
    check_arity(name, arguments, 1, 2)
    items = binder.bind(arguments[0])
    if len(arguments) == 1:
        return collections.sorted_nulls_last(name, [items], binder.utc)
    (type_,) = collections.inner(items)
    body = binder.scope.body(binder, arguments[1], (type_, type_))
    if body.node.type != "int":
        raise NotProvedError(f"a comparison of type {body.node.type}")
    return SortNode(items, body)


def _arrays_zip(binder: Binder, name: str, arguments: Sequence[Any]) -> ValueNode:
    """Binds `arrays_zip(a, f(b))`; fields are named by columns, or by their position from 0."""
    names, arrays = [], []
    for position, tree in enumerate(arguments):
        is_named = isinstance(tree, exp.Column | exp.Alias)
        names.append(tree.alias_or_name if is_named else str(position))
        arrays.append(binder.bind(tree.this if isinstance(tree, exp.Alias) else tree))
    if not arrays:
        raise NotProvedError("arrays_zip without arguments")
    return collections.zipped(names, arrays)


_TreeCall = Callable[["Binder", str, Sequence[Any]], ValueNode]
_TREE_CALLS: dict[str, _TreeCall] = {
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
    "array_sort": _array_sort,
    "arrays_zip": _arrays_zip,
}


def _variable(binder: Binder, tree: Any) -> ValueNode:
    node = binder.scope.find(tree.name)
    if node is None:
        raise NotProvedError(f"the name {tree.name}")
    return node


def _dot(binder: Binder, tree: Any) -> ValueNode:
    if not isinstance(tree.expression, exp.Identifier):
        raise NotProvedError("a call behind a dot")
    return collections.field(binder.bind(tree.this), tree.expression.name)


def _bracket(binder: Binder, tree: Any) -> ValueNode:
    if len(tree.expressions) != 1 or isinstance(tree.expressions[0], exp.Slice):
        raise NotProvedError("a slice in brackets")
    return collections.element(
        binder.bind(tree.this), binder.bind(tree.expressions[0]), utc=binder.utc
    )


def _bind_column(binder: Binder, tree: exp.Column) -> ValueNode:
    """Binds `st.x.y`: a column, then fields of structs."""
    first, *fields = [part.name for part in tree.parts]
    node: ValueNode | None = binder.scope.find(first)
    if node is None:
        place = binder.schema.index(first)
        node = ColumnNode(place, binder.schema.types[place])
    for name in fields:
        node = collections.field(node, name)
    return node


_NESTED: dict[type[exp.Expression], Callable[[Any, Any], ValueNode]] = {
    exp.Identifier: _variable,
    exp.Dot: _dot,
    exp.Bracket: _bracket,
    exp.Transform: lambda binder, tree: _transform(
        binder, "transform", (tree.this, tree.expression)
    ),
}


_BINARY: dict[type[exp.Expression], str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.IntDiv: "div",
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
    exp.And: "and",
    exp.Or: "or",
    exp.DPipe: "||",
    exp.BitwiseAnd: "&",
    exp.BitwiseOr: "|",
    exp.BitwiseXor: "^",
    exp.BitwiseLeftShift: "<<",
    exp.BitwiseRightShift: ">>",
}


class Binder:
    """Binds one expression.

    Args:
        schema: the columns.
        utc: True if timestamps are in UTC.
        ansi: False to cast the operands of operators as without ANSI mode.
        typed: True if calls that only Spark computes also become nodes. Such nodes have the type
            of the result (`functions/registry.py`), but cannot be evaluated.

    Attributes:
        scope: the variables of the enclosing lambdas.
        mixes: True if values of different types are combined, so that their common type depends on
            ANSI mode.
        apart: True if the common type is known to differ without ANSI mode.
        first: the operands that Spark evaluates before the expression (`evaluation/nodes.py`).
    """

    def __init__(
        self, schema: Schema, *, utc: bool, ansi: bool = True, typed: bool = False
    ) -> None:
        self.schema = schema
        self.utc = utc
        self.ansi = ansi
        self.typed = typed
        self.mixes = False
        self.apart = False
        self.first: list[ValueNode] = []
        self.scope = LambdaScope(schema.types)

    def bind(self, tree: exp.Expression) -> ValueNode:
        """Returns the node of a tree.

        Raises:
            NotProvedError: if the table has no entry for a part of the tree.
        """
        operator = _BINARY.get(type(tree))
        if operator == ">>" and isinstance(tree.expression, Unsigned):
            return self._call("shiftrightunsigned", tree.this, tree.expression.this)
        if operator is not None:
            return self._operator(operator, tree.this, tree.expression)
        special = _SPECIAL.get(type(tree))
        if special is None:
            raise NotProvedError(f"{type(tree).__name__.lower()}")
        return special(self, tree)

    def _operator(self, name: str, *operands: Any) -> ValueNode:
        nodes = [self.bind(operand) for operand in operands]
        if any(is_nested(node.type) for node in nodes):
            return collections.compared(name, nodes)
        nodes = self._operands(name, nodes)
        between = name == "-" and all(node.type in TIMES for node in nodes)
        if name not in _PLAIN and not between:
            self._record_types(node.type for node in nodes)
        return OPERATORS[name](name, nodes, self.utc)

    def _operands(self, name: str, nodes: list[ValueNode]) -> list[ValueNode]:
        """Returns the operands of a call, cast to each other's types as without ANSI mode."""
        return nodes if self.ansi else non_ansi_operands(name, nodes, utc=self.utc)

    def _record_types(self, types: Iterable[str]) -> None:
        """Records if the common type of several types depends on ANSI mode."""
        kinds = {_kind(type_) for type_ in types} - {VOID}
        if len(kinds) > 1 and not any(map(INTERVALS.__contains__, kinds)):
            self.mixes = self.apart = True

    def _record_cast(self, source: str, target: str, *, written: bool = False) -> None:
        """Records if a cast depends on ANSI mode; `written` is False for an implicit one."""
        if len({_kind(source), _kind(target)} - {VOID}) > 1:
            self.mixes = True
            known = has_non_ansi_cast if written else same_without_ansi
            self.apart |= not known(source, target)

    def _call(self, name: str, *arguments: Any) -> ValueNode:
        type_ = RESULTS.get(name.lower()) if self.typed else None
        if type_ is not None:
            return ValueNode(type_, [self.bind(argument) for argument in arguments])
        return self._computed(name, *arguments)

    def _computed(self, name: str, *arguments: Any) -> ValueNode:
        shift = intervals.UNIT_CALLS.get(name.lower())
        unit = arguments[0].name.lower() if arguments else ""
        if shift is not None and len(arguments) == 3 and unit in intervals.UNITS:
            nodes = [self.bind(argument) for argument in arguments[1:]]
            return shift(name.lower(), unit, nodes, self.utc)
        of_trees = _TREE_CALLS.get(name.lower())
        if of_trees is not None:
            return of_trees(self, name.lower(), arguments)
        entry = FUNCTIONS.get(name.lower())
        if entry is None:
            raise NotProvedError(f"function {name}")
        nodes = [self.bind(argument) for argument in arguments]
        if isinstance(entry, Function):
            for node, wanted in zip(nodes, entry.parameters, strict=False):
                self._record_cast(node.type, wanted)
            return entry.bind(name.lower(), nodes, self.utc)
        lower = name.lower()
        nodes = self._operands(lower, nodes)
        if lower not in _PLAIN:
            types = [node.type for node in (nodes[1:] if lower in _CHOICES else nodes)]
            if lower in _TYPE_NAMES:
                for type_ in types:
                    self._record_cast(type_, lower, written=True)
            elif lower == "map":
                self._record_types(types[::2])
                self._record_types(types[1::2])
            else:
                self._record_types(types)
        if lower == "nullif" and arguments:
            self._record_shared_operand(arguments[0].parent, arguments[0])
        return entry(lower, nodes, self.utc)

    def _record_shared_operand(self, call: Any, operand: Any) -> None:
        """Records an operand if Spark evaluates it before the expression, and it may raise."""
        if is_shared_operand(call, operand, self.scope.find):
            node = self.bind(operand)
            self.first += [node] if node.raises else []

    def _column(self, tree: Any) -> ValueNode:
        if isinstance(tree.this, exp.Star):
            raise NotProvedError("a field of a struct")
        try:
            if tree.args.get("table") is not None:
                return _bind_column(self, tree)
            variable = self.scope.find(tree.name)
            if variable is not None:
                return variable
            place = self.schema.index(tree.name)
        except SchemaError:  # columns were checked earlier, so this is a call without parentheses
            return nondeterministic.call_without_arguments(tree.name, utc=self.utc)
        return ColumnNode(place, self.schema.types[place])

    def _literal(self, tree: Any) -> ValueNode:
        return LiteralNode(tree.this, "string") if tree.is_string else number(tree.this)

    def _bytes(self, tree: Any) -> ValueNode:
        digits = str(tree.this)
        return LiteralNode(bytes.fromhex(digits.zfill(len(digits) + len(digits) % 2)), "binary")

    def _negative(self, tree: Any) -> ValueNode:
        inner = tree.this
        if isinstance(inner, exp.Literal) and not inner.is_string:
            return number("-" + inner.this)
        return self._operator("neg", inner)

    def _cast(self, tree: Any) -> ValueNode:
        if tree.args.get("format"):
            raise NotProvedError("cast with a format")
        node = self.bind(tree.this)
        if tree.to.args.get("nested"):
            return _nested_cast(node, tree.to)
        type_ = cast_type(tree.to)
        if tree.args.get("safe"):
            return try_cast(node, type_, utc=self.utc)
        self._record_cast(node.type, type_, written=True)
        return cast(node, type_, utc=self.utc)

    def _is(self, tree: Any) -> ValueNode:
        if isinstance(tree.expression, exp.Null):
            return comparisons.is_null("is null", [self.bind(tree.this)], self.utc)
        if isinstance(tree.expression, exp.Boolean):
            return self._operator(f"is {str(tree.expression.this).lower()}", tree.this)
        raise NotProvedError("is")

    def _in(self, tree: Any) -> ValueNode:
        if any(v for k, v in tree.args.items() if k not in ("this", "expressions")):
            raise NotProvedError("in a subquery or array")
        return self._operator("in", tree.this, *tree.expressions)

    def _between(self, tree: Any) -> ValueNode:
        if tree.args.get("symmetric"):
            raise NotProvedError("between symmetric")
        low = self._operator(">=", tree.this, tree.args["low"])
        high = self._operator("<=", tree.this, tree.args["high"])
        self._record_shared_operand(tree, tree.this)
        return OPERATORS["and"]("and", [low, high], self.utc)

    def _like(self, tree: Any) -> ValueNode:
        name = "ilike" if isinstance(tree, exp.ILike) else "like"
        if isinstance(tree.expression, exp.Any | exp.All):
            return self._like_several(name, tree)
        node = self._operator(name, tree.this, tree.expression)
        return comparisons.not_("not", [node], self.utc) if tree.args.get("negate") else node

    def _like_several(self, name: str, tree: Any) -> ValueNode:
        """Binds `x [not] like any | all (...)`: a comparison with each pattern."""
        compared = []
        for pattern in listed_patterns(tree.expression):
            node = self._operator(name, tree.this, pattern)
            if tree.args.get("negate"):
                node = comparisons.not_("not", [node], self.utc)
            compared.append(node)
        connective = "and" if isinstance(tree.expression, exp.All) else "or"
        return reduce(lambda a, b: OPERATORS[connective](connective, [a, b], self.utc), compared)

    def _escape(self, tree: Any) -> ValueNode:
        """Binds `like ... escape '/'`, in which `escape` is the outer node of the tree."""
        like, sign = tree.this, tree.expression
        lower = isinstance(like, exp.ILike)
        if not isinstance(like, exp.Like | exp.ILike):
            raise NotProvedError("escape")
        if not isinstance(sign, exp.Literal) or len(sign.this) != 1 or sign.this in "%_":
            raise NotProvedError("an escape that is not a character")
        nodes = [self.bind(like.this), self.bind(like.expression)]
        self._record_types(node.type for node in nodes)
        node = patterns.like_rule(sign.this, lower=lower)("like", nodes, self.utc)
        return comparisons.not_("not", [node], self.utc) if like.args.get("negate") else node

    def _matches(self, tree: Any) -> ValueNode:
        return self._call("rlike", tree.this, tree.expression)

    def _joined_strings(self, tree: Any) -> ValueNode:
        """Binds adjacent string literals as one string."""
        if not all(isinstance(part, exp.Literal) and part.is_string for part in tree.expressions):
            raise NotProvedError("adjacent strings")
        return LiteralNode("".join(part.this for part in tree.expressions), "string")

    def _if(self, tree: Any) -> ValueNode:
        parts = [tree.this, tree.args.get("true"), tree.args.get("false")]
        return self._call("if", *(part for part in parts if part is not None))

    def _case(self, tree: Any) -> ValueNode:
        branches = []
        for branch in tree.args["ifs"]:
            if tree.this is None:
                condition = self.bind(branch.this)
            else:
                condition = self._operator("=", tree.this, branch.this)
            branches.append((condition, self.bind(branch.args["true"])))
        default = tree.args.get("default")
        last = None if default is None else self.bind(default)
        results = [*(result for _, result in branches), *([] if last is None else [last])]
        results = self._operands("case", results)
        self._record_types(result.type for result in results)
        branches = [(test, result) for (test, _), result in zip(branches, results, strict=False)]
        return comparisons.case(branches, None if last is None else results[-1], self.utc)

    def _extract(self, tree: Any) -> ValueNode:
        return datetimes.extracted(tree.this.name, self.bind(tree.expression), self.utc)


_APART = """
and or not trunc date_trunc round bround shiftleft shiftright shiftrightunsigned getbit bit_get
<< >> >>> sha2 format_number hash xxhash64 substring substr left right lpad rpad repeat
substring_index split_part locate position overlay levenshtein struct named_struct array_repeat
format_string printf regexp_extract
"""
_PLAIN = frozenset((*_APART.split(), "is true", "is false", *datetimes.FUNCTIONS))
"""Calls whose arguments have different types by design, so that they need no common type."""
_CHOICES = frozenset(("if", "nvl2"))
_TYPE_NAMES = frozenset(CAST_TYPES.values())


def _kind(type_: str) -> str:
    """Returns the kind of a type.

    Types of one kind have a common type that does not depend on ANSI mode. An array has the kind of
    its elements, and a map the kind of its keys, because elements and keys are compared with
    arguments of the call.
    """
    while type_.startswith(("array<", "map<")):
        type_ = nested_parts(type_)[0][1]
    if type_ in INTEGERS or type_ == "double" or type_.startswith("decimal("):
        return "number"
    return type_


_SPECIAL: dict[type[exp.Expression], Callable[[Binder, Any], ValueNode]] = {
    exp.Paren: lambda binder, tree: binder.bind(tree.this),
    exp.Column: Binder._column,
    exp.Literal: Binder._literal,
    exp.HexString: Binder._bytes,
    exp.Boolean: lambda binder, tree: LiteralNode(bool(tree.this), "boolean"),
    exp.Null: lambda binder, tree: LiteralNode(None, VOID),
    exp.Neg: Binder._negative,
    exp.Not: lambda binder, tree: binder._operator("not", tree.this),
    exp.BitwiseNot: lambda binder, tree: binder._operator("~", tree.this),
    exp.NullSafeNEQ: lambda binder, tree: comparisons.not_(
        "not", [binder._operator("<=>", tree.this, tree.expression)], binder.utc
    ),
    exp.Cast: Binder._cast,
    exp.TryCast: Binder._cast,
    exp.Is: Binder._is,
    exp.In: Binder._in,
    exp.Between: Binder._between,
    exp.Like: Binder._like,
    exp.ILike: Binder._like,
    exp.Escape: Binder._escape,
    exp.RegexpLike: Binder._matches,
    exp.Concat: Binder._joined_strings,
    exp.If: Binder._if,
    exp.Case: Binder._case,
    exp.Extract: Binder._extract,
    **_NESTED,
    exp.CurrentDate: lambda binder, tree: nondeterministic.call_without_arguments(
        "current_date", utc=binder.utc
    ),
    exp.CurrentTimestamp: lambda binder, tree: nondeterministic.call_without_arguments(
        "current_timestamp", utc=binder.utc
    ),
    exp.Interval: lambda binder, tree: intervals.literal(tree),
    exp.Anonymous: lambda binder, tree: binder._call(tree.name, *tree.expressions),
}
