"""Arrays, maps and structs: literals, access, comparison, and functions without a lambda.

`FUNCTIONS` lists the calls. Elements of several types are cast to a common type, as in Spark. A
nested type has no common type with other types. A null without a type is not supported here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from nosync_nb.errors import SchemaError
from nosync_nb.expressions.evaluation.nested_nodes import FieldNode, RowwiseNode, key_of
from nosync_nb.expressions.evaluation.nodes import LiteralNode, ValueNode
from nosync_nb.expressions.functions.rules import Rule, check_arity
from nosync_nb.expressions.implicit_casts import cast, implicit, literal_value, only, to_common
from nosync_nb.expressions.kernels import casts, collections
from nosync_nb.expressions.kernels.kernel import NotProvedError
from nosync_nb.expressions.typing_rules import TIMES, VOID, common_type, is_decimal, is_known
from nosync_nb.rows import canonical_type
from nosync_nb.rows.ddl import INTERVALS, YEAR_MONTHS, quote
from nosync_nb.rows.types import INTEGERS, is_nested, nested_parts

_INDEXES = ("tinyint", "smallint", "int")
"""The types of an index in functions for which Spark casts no other type."""


def is_held(type_: str) -> bool:
    """Returns True if values of a type, which may be nested, are computed here."""
    if type_ == VOID:
        return False
    if not is_nested(type_):
        return is_known(type_)
    try:
        return all(is_held(inner) for _, inner in nested_parts(type_))
    except SchemaError:
        return False


def inner(node: ValueNode, kind: str = "array") -> tuple[str, ...]:
    """Returns the element type of an array, or the key and value types of a map.

    Raises:
        NotProvedError: for any other type.
    """
    if not node.type.startswith(f"{kind}<") or not is_held(node.type):
        raise NotProvedError(f"a {node.type} as {kind}")
    return tuple(type_ for _, type_ in nested_parts(node.type))


def unified(nodes: Sequence[ValueNode], *, utc: bool) -> list[ValueNode]:
    """Returns the nodes cast to their common type."""
    types = {node.type for node in nodes}
    if len(types) == 1 and is_held(nodes[0].type):
        return list(nodes)
    return to_common(list(nodes), utc=utc)


def as_element(node: ValueNode, type_: str, *, utc: bool) -> ValueNode:
    """Returns a value cast to the element type of an array, which must be their common type.

    Text and decimals are refused with elements of another kind, as in Spark.
    """
    mixed = node.type == "string" != type_ or (is_decimal(node.type) and not is_decimal(type_))
    if (
        mixed
        or node.type == VOID
        or (node.type != type_ and common_type(node.type, type_) != type_)
    ):
        raise NotProvedError(f"a {node.type} beside elements of {type_}")
    return cast(node, type_, utc=utc)


_WHOLE = {type_: i for i, type_ in enumerate((*INTEGERS, "double"))}
"""Number types of elements, from narrow to wide; integers may also be widened to doubles."""


def wider(array: ValueNode, value: str) -> ValueNode:
    """Widens the number type of an array's elements to the type of a value.

    An array whose elements have the wider type, or other types, is returned unchanged.
    """
    (type_,) = inner(array)
    if value in (type_, VOID) or _WHOLE.get(value, -1) <= _WHOLE.get(type_, 9):
        return array
    to = float if value == "double" else int
    return RowwiseNode(
        "cast",
        f"array<{value}>",
        lambda items: [None if item is None else to(item) for item in items],
        (array,),
    )


def _index(node: ValueNode, *types: str, utc: bool) -> ValueNode:
    """Returns an index cast to int, if it has one of the types that Spark accepts."""
    return cast(only(node, *types, name="an element"), "int", utc=utc)


def array(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `array(a, b, ...)`."""
    if not arguments:
        raise NotProvedError("an empty array")
    items = unified(arguments, utc=utc)
    type_ = f"array<{items[0].type}>"
    return RowwiseNode(name, type_, lambda *values: list(values), items, strict=False)


def _map(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `map(k, v, ...)`; the keys must not be nested."""
    if not arguments or len(arguments) % 2:
        raise NotProvedError(f"map of {len(arguments)} arguments")
    keys = unified(arguments[::2], utc=utc)
    values = unified(arguments[1::2], utc=utc)
    if is_nested(keys[0].type):
        raise NotProvedError("keys that are nested")
    make = collections.pairs(key_of(keys[0].type))
    flat = [node for pair in zip(keys, values, strict=True) for node in pair]
    return RowwiseNode(
        name,
        f"map<{keys[0].type},{values[0].type}>",
        lambda *given: make(list(zip(given[::2], given[1::2], strict=True))),
        flat,
        raises=True,
        strict=False,
    )


def struct(fields: Sequence[tuple[str, ValueNode]]) -> ValueNode:
    """Returns the node of a struct with the given field names and values."""
    nodes = [node for _, node in fields]
    if not fields or not all(is_held(node.type) for node in nodes):
        raise NotProvedError("a struct of these types")
    text = ",".join(f"{quote(name)}:{node.type}" for name, node in fields)
    try:
        type_ = canonical_type(f"struct<{text}>")
    except SchemaError:
        raise NotProvedError(f"a struct<{text}>") from None
    return RowwiseNode("struct", type_, lambda *values: values, nodes, strict=False)


def _named_struct(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `named_struct('a', x, ...)`."""
    names = [literal_value(node, "the name of a field") for node in arguments[::2]]
    if not all(isinstance(each, str) for each in names):
        raise NotProvedError("the name of a field that is not a string")
    if len(arguments) % 2 or len({each.lower() for each in names}) < len(names):
        raise NotProvedError("named_struct of these names")
    return struct(list(zip(names, arguments[1::2], strict=True)))


def field(node: ValueNode, name: str) -> ValueNode:
    """Returns the node of `st.x`; for an array of structs, that of the array of their fields."""
    if node.type.startswith("array<struct<"):
        (type_,) = inner(node)
        place, own = _field(type_, name)
        result_type = f"array<{own}>"
        return RowwiseNode(
            "field", result_type, lambda items: [v and v[place] for v in items], (node,)
        )
    if not node.type.startswith("struct<") or not is_held(node.type):
        raise NotProvedError(f"a field of a {node.type}")
    return FieldNode(node, *_field(node.type, name))


def _field(type_: str, name: str) -> tuple[int, str]:
    """Returns the position and the type of a field; its name is matched in any case."""
    parts = nested_parts(type_)
    places = [i for i, (own, _) in enumerate(parts) if own.lower() == name.lower()]
    if len(places) != 1:
        raise NotProvedError(f"the field {name!r} of a {type_}")
    return places[0], parts[places[0]][1]


def element(node: ValueNode, index: ValueNode, *, utc: bool) -> ValueNode:
    """Returns the node of `a[i]`, `m[k]` or `st['x']`."""
    if node.type.startswith(("struct<", "array<struct<")) and index.type == "string":
        return field(node, str(literal_value(index, "the name of a field")))
    if node.type.startswith("map<"):
        key, _ = inner(node, "map")
        return _map_lookup(
            "[]", node, index if is_nested(key) else implicit(index, key, utc=utc), utc=utc
        )
    (type_,) = inner(node)
    place = only(index, *INTEGERS, name="an element")
    return RowwiseNode("[]", type_, collections.at, (node, place), raises=True)


def _map_lookup(name: str, node: ValueNode, wanted: ValueNode, *, utc: bool) -> ValueNode:
    key, value = inner(node, "map")
    key_node = as_element(wanted, key, utc=utc)
    return RowwiseNode(name, value, collections.value_of(key_of(key)), (node, key_node))


def _element_at(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    check_arity(name, arguments, 2)
    node, index = arguments
    if node.type.startswith("map<"):
        return _map_lookup(name, node, index, utc=utc)
    (type_,) = inner(node)
    function = collections.element_at if name == "element_at" else collections.try_element_at
    place = _index(index, *_INDEXES, utc=utc)
    return RowwiseNode(name, type_, function, (node, place), raises=True)


def _get(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    check_arity(name, arguments, 2)
    (type_,) = inner(arguments[0])
    place = implicit(arguments[1], "int", utc=utc)
    return RowwiseNode(name, type_, collections.get, (arguments[0], place))


def _size(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    check_arity(name, arguments, 1)
    if not arguments[0].type.startswith("map<") or name == "array_size":
        inner(arguments[0])
    else:
        inner(arguments[0], "map")
    legacy = name != "array_size"  # because without ANSI mode the size of null is -1
    return RowwiseNode(name, "int", len, arguments, raises=legacy)


def _array_function(
    make: Callable[[collections.Key], Callable[..., Any]], result: str = "{array}"
) -> Rule:
    """Returns the rule of a function of one array.

    Args:
        make: returns the function for the key of the element type (`key_of`).
        result: the type of the result; may contain `{array}` and `{element}`, the argument's types.
    """

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 1)
        (type_,) = inner(arguments[0])
        if "map<" in type_:
            raise NotProvedError(f"{name} of maps")
        result_type = result.format(array=arguments[0].type, element=type_)
        return RowwiseNode(name, result_type, make(key_of(type_)), arguments)

    return rule


def _value(make: Callable[[collections.Key], Callable[..., Any]], result: str) -> Rule:
    """Returns the rule of a function of an array and a value that is compared with its elements."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 2)
        items = wider(arguments[0], arguments[1].type)
        (type_,) = inner(items)
        if "map<" in type_:
            raise NotProvedError(f"{name} of maps")
        value = as_element(arguments[1], type_, utc=utc)
        result_type = result.format(array=items.type)
        return RowwiseNode(name, result_type, make(key_of(type_)), (items, value))

    return rule


def _two_array_function(
    make: Callable[[collections.Key], Callable[..., Any]], result: str = "{array}"
) -> Rule:
    """Returns the rule of a function of two arrays, which are widened to one type."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 2)
        left = wider(arguments[0], *inner(arguments[1]))
        right = wider(arguments[1], *inner(left))
        (type_,) = inner(left)
        if left.type != right.type or "map<" in type_:
            raise NotProvedError(f"{name} of {arguments[0].type} and {arguments[1].type}")
        result_type = result.format(array=left.type)
        return RowwiseNode(name, result_type, make(key_of(type_)), (left, right))

    return rule


def _array_extension(function: Callable[..., Any]) -> Rule:
    """Returns the rule of `array_append` or `array_prepend`, which also add a null."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 2)
        items = wider(arguments[0], arguments[1].type)
        value = as_element(arguments[1], *inner(items), utc=utc)
        return RowwiseNode(name, items.type, function, (items, value), strict=False)

    return rule


def _insert(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    check_arity(name, arguments, 3)
    items = wider(arguments[0], arguments[2].type)
    place = _index(arguments[1], *_INDEXES, utc=utc)
    given = (items, place, as_element(arguments[2], *inner(items), utc=utc))
    return RowwiseNode(name, items.type, collections.insert, given, raises=True, strict=False)


def _sort_array(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    check_arity(name, arguments, 1, 2)
    (type_,) = inner(arguments[0])
    if "map<" in type_:
        raise NotProvedError(f"{name} of maps")
    if len(arguments) == 2 and not isinstance(literal_value(arguments[1], "a direction"), bool):
        raise NotProvedError(f"{name} in a direction that is not boolean")
    return RowwiseNode(name, arguments[0].type, collections.sort(key_of(type_)), arguments)


def _repeat(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    check_arity(name, arguments, 2)
    if not is_held(arguments[0].type):
        raise NotProvedError(f"{name} of {arguments[0].type}")
    given = (arguments[0], _index(arguments[1], "int", utc=utc))
    result_type = f"array<{arguments[0].type}>"
    return RowwiseNode(name, result_type, collections.repeat, given, raises=True, strict=False)


def _slice(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    check_arity(name, arguments, 3)
    inner(arguments[0])
    given = (arguments[0], *(implicit(node, "int", utc=utc) for node in arguments[1:]))
    return RowwiseNode(name, arguments[0].type, collections.part, given, raises=True)


def _flatten(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    check_arity(name, arguments, 1)
    (type_,) = inner(arguments[0])
    if not type_.startswith("array<"):
        raise NotProvedError(f"{name} of {arguments[0].type}")
    return RowwiseNode(name, type_, collections.flatten, arguments)


def _sequence(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `sequence(start, stop [, step])` of integers, dates or timestamps."""
    if any(node.type in TIMES for node in arguments):
        return _sequence_of_times(name, arguments, utc)
    whole = all(node.type in (*INTEGERS, "string") for node in arguments)
    texts = all(node.type == "string" for node in arguments)
    if len(arguments) not in (2, 3) or not whole or texts:
        raise NotProvedError(f"{name} of these types")
    given = unified(arguments, utc=utc)
    result_type = f"array<{given[0].type}>"
    return RowwiseNode(name, result_type, collections.sequence, given, raises=True)


def _sequence_of_times(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    ends, step = arguments[:2], arguments[2:]
    if len(arguments) not in (2, 3) or not all(n.type in TIMES or n.type == VOID for n in ends):
        raise NotProvedError(f"{name} of these types")
    if step and step[0].type not in INTERVALS:
        raise NotProvedError(f"{name} with a step that is a {step[0].type}")
    start, stop = to_common(ends, utc=utc)
    if start.type == "timestamp" and not utc:
        raise NotProvedError("timestamps in a time zone other than UTC")
    by_months = bool(step) and step[0].type in YEAR_MONTHS
    make = collections.sequence_of_times(start.type, by_months=by_months)
    return RowwiseNode(name, f"array<{start.type}>", make, (start, stop, *step), raises=True)


def zipped(names: Sequence[str], arrays: Sequence[ValueNode]) -> ValueNode:
    """Binds `arrays_zip(a, b, ...)`, whose structs have fields of these names."""
    if len({name.lower() for name in names}) < len(names):
        raise NotProvedError("arrays_zip with two fields of one name")
    fields = ",".join(
        f"{quote(name)}:{inner(array)[0]}" for name, array in zip(names, arrays, strict=True)
    )
    try:
        type_ = canonical_type(f"array<struct<{fields}>>")
    except SchemaError:
        raise NotProvedError(f"arrays_zip with the fields {fields}") from None
    return RowwiseNode("arrays_zip", type_, collections.zipped, arrays)


def _map_from_arrays(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    check_arity(name, arguments, 2)
    (key,), (value,) = (inner(node) for node in arguments)
    if is_nested(key):
        raise NotProvedError("keys that are nested")
    make = collections.map_of(key_of(key))
    return RowwiseNode(name, f"map<{key},{value}>", make, arguments, raises=True)


_REGEX_SIGNS = frozenset("\\^$.|?*+()[]{}")


def _str_to_map(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `str_to_map(text [, between [, after]])`; separators with signs are left to Spark."""
    check_arity(name, arguments, 1, 3)
    separators = [",", ":"]
    for i, node in enumerate(arguments[1:]):
        separator = literal_value(node, "a separator")
        if not isinstance(separator, str) or not separator or _REGEX_SIGNS & set(separator):
            raise NotProvedError(f"the separator {separator!r}, which is a regular expression")
        separators[i] = separator
    text = cast(only(arguments[0], "string", name=name), "string", utc=utc)
    make = collections.text_to_map(*separators)
    return RowwiseNode(name, "map<string,string>", make, (text,), raises=True)


def _array_join(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    if len(arguments) not in (2, 3) or any(node.type != "string" for node in arguments[1:]):
        raise NotProvedError(f"{name} of these types")
    (type_,) = inner(arguments[0])
    write = casts.writer(type_)
    if write is None or is_nested(type_) or (type_ == "timestamp" and not utc):
        raise NotProvedError(f"{name} of {arguments[0].type}")
    return RowwiseNode(name, "string", collections.joined(write), arguments)


def _of_map(function: Callable[[Any], Any], result: str) -> Rule:
    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 1)
        key, value = inner(arguments[0], "map")
        result_type = result.format(key=key, value=value)
        return RowwiseNode(name, result_type, function, arguments)

    return rule


def _has_key(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    check_arity(name, arguments, 2)
    key, _ = inner(arguments[0], "map")
    wanted = as_element(arguments[1], key, utc=utc)
    return RowwiseNode(name, "boolean", collections.has_key(key_of(key)), (arguments[0], wanted))


def _typeof(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `typeof(x)` to a literal, so that the argument is not evaluated."""
    check_arity(name, arguments, 1)
    if not is_held(arguments[0].type):
        raise NotProvedError(f"typeof a {arguments[0].type}")
    return LiteralNode(arguments[0].type, "string")


_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def compared(name: str, nodes: Sequence[ValueNode]) -> ValueNode:
    """Returns a comparison of arrays or structs of one type.

    Inside them, null equals null, and null is the least value.
    """
    compare = operator.eq if name == "<=>" else _COMPARED.get(name)
    type_ = nodes[0].type
    if compare is None or len(nodes) != 2 or nodes[1].type != type_ or "map<" in type_:
        raise NotProvedError(f"{name} of {' and '.join(node.type for node in nodes)}")
    if not is_held(type_):
        raise NotProvedError(f"a {type_}")
    key = key_of(type_)

    def run(a: Any, b: Any) -> bool:
        return compare(key(a), key(b))

    return RowwiseNode(name, "boolean", run, nodes, strict=name != "<=>")


sorted_nulls_last = _array_function(collections.sort_nulls_last)

FUNCTIONS: dict[str, Rule] = {
    "array": array,
    "map": _map,
    "named_struct": _named_struct,
    "size": _size,
    "cardinality": _size,
    "array_size": _size,
    "element_at": _element_at,
    "try_element_at": _element_at,
    "get": _get,
    "array_contains": _value(collections.contains, "boolean"),
    "array_position": _value(collections.position, "bigint"),
    "array_remove": _value(collections.remove, "{array}"),
    "array_max": _array_function(lambda key: collections.extreme(key, greatest=True), "{element}"),
    "array_min": _array_function(lambda key: collections.extreme(key, greatest=False), "{element}"),
    "array_distinct": _array_function(collections.without_repeats),
    "array_sort": sorted_nulls_last,
    "array_compact": _array_function(lambda key: collections.compact),
    "sort_array": _sort_array,
    "array_union": _two_array_function(collections.union),
    "array_intersect": _two_array_function(collections.intersect),
    "array_except": _two_array_function(collections.array_except),
    "arrays_overlap": _two_array_function(collections.overlap, "boolean"),
    "array_append": _array_extension(collections.append),
    "array_prepend": _array_extension(collections.prepend),
    "array_insert": _insert,
    "array_repeat": _repeat,
    "array_join": _array_join,
    "slice": _slice,
    "flatten": _flatten,
    "sequence": _sequence,
    "map_from_arrays": _map_from_arrays,
    "str_to_map": _str_to_map,
    "map_keys": _of_map(lambda pairs: [k for k, _ in pairs], "array<{key}>"),
    "map_values": _of_map(lambda pairs: [v for _, v in pairs], "array<{value}>"),
    "map_entries": _of_map(list, "array<struct<key:{key},value:{value}>>"),
    "map_contains_key": _has_key,
    "typeof": _typeof,
}
