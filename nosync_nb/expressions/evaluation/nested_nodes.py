"""Nodes over arrays, maps and structs: functions of Python values, and lambdas over elements.

A nested vector is always an Arrow array, whatever the size of its frame. Its values are read as
Python lists, tuples (structs) and lists of pairs (maps), with dates and timestamps as numbers. A
lambda is evaluated once for the elements of all rows. These elements are the rows of a separate
frame, which repeats the columns of the outer frame and has the variables as further columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cmp_to_key
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nosync_nb import rows
from nosync_nb.expressions.evaluation.nodes import ValueNode, evaluate_where
from nosync_nb.expressions.kernels.kernel import InvalidError
from nosync_nb.expressions.kernels.reasons import Reason
from nosync_nb.expressions.kernels.vectors import (
    Array,
    RowError,
    Vector,
    VectorFrame,
    load_column,
    merge_nulls,
    select_rows,
    to_column,
)
from nosync_nb.rows.arrow import from_python_values, to_python_values
from nosync_nb.rows.encoding import encode
from nosync_nb.rows.types import FLOATS, is_nested


def as_lists(vector: Vector, type_: str, n: int) -> list[Any]:
    """Returns the values of a vector as Python objects, with None for nulls."""
    if isinstance(vector.values, pa.Array):
        return to_python_values(vector.values, type_)
    return to_python_values(to_column(vector, type_, n), type_)


def vector_of(values: Sequence[Any], type_: str, *, small: bool) -> Vector:
    """Returns a vector of Python values, the inverse of `as_lists`."""
    if is_nested(type_):
        array = from_python_values(values, type_)
        return Vector(array, rows.null_mask(array))
    column = rows.objects(values)
    return load_column(column, type_, small=small)


def key_of(type_: str) -> Callable[[Any], Any]:
    """Returns a function from values to keys that identify and order them; null is first."""
    if type_ in FLOATS or is_nested(type_):
        return lambda value: encode(value, type_)
    return lambda value: (False,) if value is None else (True, value)


class RowwiseNode(ValueNode):
    """A function of Python values that is called for each row.

    Args:
        function: raises `InvalidError` where Spark raises.
        strict: True if the result is null where an argument is null.
    """

    def __init__(
        self,
        name: str,
        type_: str,
        function: Callable[..., Any],
        arguments: Sequence[ValueNode],
        *,
        raises: bool = False,
        strict: bool = True,
    ) -> None:
        super().__init__(type_, arguments, raises=raises)
        self.name = name
        self.function = function
        self.strict = strict

    def evaluate(self, frame: VectorFrame) -> Vector:
        lists: list[list[Any]] = []
        nulls: Array | None = None
        for argument in self.arguments:
            if self.strict and argument.raises and nulls is not None:
                vector = evaluate_where(argument, frame, ~nulls)
            else:
                vector = argument.evaluate(frame)
            nulls = merge_nulls(nulls, vector.nulls)
            lists.append(as_lists(vector, argument.type, frame.n))
        dead = nulls.tolist() if self.strict and nulls is not None else [False] * frame.n
        results: list[Any] = []
        try:
            for null, *row in zip(dead, *lists, strict=True):
                results.append(None if null else self.function(*row))
        except InvalidError as error:
            raise frame.fail(error.reason, len(results)) from None
        return vector_of(results, self.type, small=frame.small)


class FieldNode(ValueNode):
    """A field of a struct."""

    def __init__(self, struct: ValueNode, place: int, type_: str) -> None:
        super().__init__(type_, (struct,))
        self.place = place

    def evaluate(self, frame: VectorFrame) -> Vector:
        array = self.arguments[0].evaluate(frame).values
        field = pc.struct_field(array, [self.place])
        if is_nested(self.type):
            return Vector(field, rows.null_mask(field))
        return load_column(rows.from_arrow(field, self.type), self.type, small=frame.small)


class ElementFrame(VectorFrame):
    """The elements of the rows of a frame, with one row per element.

    Args:
        owner: the row of the outer frame, for each element.
        first: the position of the first variable.
        variables: the vectors of the variables.
        types: the types of all columns and variables.
    """

    def __init__(
        self,
        outer: VectorFrame,
        owner: Array,
        first: int,
        variables: Sequence[Vector],
        types: Sequence[str],
    ) -> None:
        super().__init__((), types, len(owner))
        self.small = outer.small
        self.outer = outer
        self.owner = owner
        self.first = first
        self.variables = tuple(variables)
        self._repeated: dict[int, Vector] = {}

    def vector(self, i: int) -> Vector:
        if i >= self.first:
            return self.variables[i - self.first]
        if i not in self._repeated:
            self._repeated[i] = select_rows(self.outer.vector(i), self.owner)
        return self._repeated[i]

    def null_mask(self, i: int) -> Array | None:
        if i >= self.first:
            return self.variables[i - self.first].nulls
        mask = self.outer.null_mask(i)
        return None if mask is None else mask[self.owner]

    def raised(self, reason: Reason, row: int) -> RowError:
        return self.outer.fail(reason, int(self.owner[row]))


class LambdaBody:
    """The body of a lambda.

    Args:
        node: the expression, over the columns and the variables.
        first: the position of the first variable.
        types: the types of all columns and variables.
    """

    def __init__(self, node: ValueNode, first: int, types: Sequence[str]) -> None:
        self.node = node
        self.first = first
        self.types = tuple(types)

    def over(
        self, frame: VectorFrame, owner: Array, variables: Sequence[list[Any]]
    ) -> tuple[VectorFrame, list[Any]]:
        """Evaluates the body for each element.

        Args:
            owner: the row of `frame`, for each element.
            variables: the values of each variable, with one for each element.

        Returns:
            the frame of the elements, and the results.

        Raises:
            RowError: at the row of the first element for which the body raises.
        """
        typed = zip(variables, self.types[self.first :], strict=True)
        vectors = [vector_of(values, type_, small=frame.small) for values, type_ in typed]
        inner = ElementFrame(frame, owner, self.first, vectors, self.types)
        return inner, as_lists(self.node.evaluate(inner), self.node.type, inner.n)


class LambdaNode(ValueNode):
    """A function of an array (or map) and a lambda over its elements.

    Args:
        collect: computes the result of a row from its elements and the results of the lambda.
        expand: returns the variables for an element, given its position and its value.
        settles: the result of the lambda that decides a row, after which further elements are not
            evaluated (`exists`, `forall`); `None` means that every element is evaluated.
    """

    def __init__(
        self,
        name: str,
        type_: str,
        items: ValueNode,
        body: LambdaBody,
        collect: Callable[[list[Any], list[Any]], Any],
        expand: Callable[[int, Any], tuple[Any, ...]],
        *,
        settles: bool | None = None,
        raises: bool = False,
    ) -> None:
        super().__init__(type_, (items,), raises=raises or body.node.raises)
        self.name = name
        self.body = body
        self.collect = collect
        self.expand = expand
        self.settles = settles

    def evaluate(self, frame: VectorFrame) -> Vector:
        lists = as_lists(self.arguments[0].evaluate(frame), self.arguments[0].type, frame.n)
        try:
            given = self._all(frame, lists)
        except RowError:
            if self.settles is None:
                raise
            given = self._one_by_one(frame, lists, self.settles)
        results: list[Any] = []
        try:
            for items, each in zip(lists, given, strict=True):
                results.append(None if items is None else self.collect(items, each))
        except InvalidError as error:
            raise frame.fail(error.reason, len(results)) from None
        return vector_of(results, self.type, small=frame.small)

    def _all(self, frame: VectorFrame, lists: list[Any]) -> list[list[Any]]:
        """Returns the results of the lambda for all elements, as one list per row."""
        sizes = [0 if items is None else len(items) for items in lists]
        expanded = [self.expand(i, v) for items in lists if items for i, v in enumerate(items)]
        owner = np.arange(frame.n).repeat(sizes)
        _, flat = self.body.over(frame, owner, self._columns(expanded))
        ends = np.cumsum(sizes).tolist()
        return [flat[end - size : end] for end, size in zip(ends, sizes, strict=True)]

    def _columns(self, expanded: list[tuple[Any, ...]]) -> list[list[Any]]:
        count = len(self.body.types) - self.body.first
        return [[values[k] for values in expanded] for k in range(count)]

    def _one_by_one(self, frame: VectorFrame, lists: list[Any], settles: bool) -> list[list[Any]]:
        """Returns the results of the lambda as one list per row, up to the decisive result."""
        given: list[list[Any]] = [[] for _ in lists]
        open_ = [i for i, items in enumerate(lists) if items]
        place = 0
        while open_:
            expanded = [self.expand(place, lists[i][place]) for i in open_]
            _, flat = self.body.over(frame, np.array(open_), self._columns(expanded))
            for i, value in zip(open_, flat, strict=True):
                given[i].append(value)
            place += 1
            open_ = [i for i in open_ if given[i][-1] is not settles and place < len(lists[i])]
        return given


class FoldNode(ValueNode):
    """`aggregate(array, start, (acc, x) -> ..., acc -> ...)`; a step merges one element per row."""

    def __init__(
        self, items: ValueNode, start: ValueNode, merge: LambdaBody, finish: LambdaBody | None
    ) -> None:
        type_ = start.type if finish is None else finish.node.type
        raises = merge.node.raises or (finish is not None and finish.node.raises)
        super().__init__(type_, (items, start), raises=raises)
        self.merge = merge
        self.finish = finish

    def evaluate(self, frame: VectorFrame) -> Vector:
        items, start = self.arguments
        vector = items.evaluate(frame)
        lists = as_lists(vector, items.type, frame.n)
        keep = np.array([each is not None for each in lists], np.bool_)
        begun = evaluate_where(start, frame, keep)
        held = as_lists(begun, start.type, frame.n)
        open_ = [i for i, each in enumerate(lists) if each]
        place = 0
        while open_:
            variables = [[held[i] for i in open_], [lists[i][place] for i in open_]]
            _, merged = self.merge.over(frame, np.array(open_), variables)
            for i, value in zip(open_, merged, strict=True):
                held[i] = value
            place += 1
            open_ = [i for i in open_ if place < len(lists[i])]
        some = [i for i, each in enumerate(lists) if each is not None]
        if self.finish is not None and some:
            _, made = self.finish.over(frame, np.array(some), [[held[i] for i in some]])
            held = [None] * frame.n
            for i, value in zip(some, made, strict=True):
                held[i] = value
        results = [None if each is None else v for each, v in zip(lists, held, strict=True)]
        return vector_of(results, self.type, small=frame.small)


_COMPARED_AT_ONCE = 64
"""The most elements of an array for which the comparison is evaluated for all pairs at once."""


class SortNode(ValueNode):
    """`array_sort(array, (x, y) -> ...)`: a stable sort by a comparison.

    The comparison is evaluated for all pairs of elements at once. If a pair raises that the sort
    might not compare, the pairs are compared one by one, in the order of Java's sort: for arrays of
    fewer than 32 elements this is exactly the order of Spark.
    """

    def __init__(self, items: ValueNode, body: LambdaBody) -> None:
        super().__init__(items.type, (items,), raises=True)
        self.body = body

    def evaluate(self, frame: VectorFrame) -> Vector:
        lists = as_lists(self.arguments[0].evaluate(frame), self.type, frame.n)
        results = [
            items if items is None or len(items) < 2 else self._sorted(frame, row, items)
            for row, items in enumerate(lists)
        ]
        return vector_of(results, self.type, small=frame.small)

    def _sorted(self, frame: VectorFrame, row: int, items: list[Any]) -> list[Any]:
        n = len(items)
        signs: list[Any] | None = None
        if n <= _COMPARED_AT_ONCE:
            pairs = [
                [each for each in items for _ in items],
                [each for _ in items for each in items],
            ]
            try:
                _, signs = self.body.over(frame, np.full(n * n, row), pairs)
            except RowError:
                signs = None

        def compare(a: int, b: int) -> int:
            if signs is not None:
                sign = signs[a * n + b]
            else:
                _, (sign,) = self.body.over(frame, np.array([row]), [[items[a]], [items[b]]])
            if sign is None:
                raise frame.fail(_NO_SIGN, row)
            return int(sign)

        places = _inserted(n, compare) if n < _JAVA_RUN else _merged(n, compare)
        return [items[place] for place in places]


_JAVA_RUN = 32
_NO_SIGN = Reason(
    "COMPARATOR_RETURNS_NULL",
    "the comparison of two elements is null",
    "return 0 for equal elements, as in coalesce(x - y, 0)",
)


def _merged(n: int, compare: Callable[[int, int], int]) -> list[int]:
    return sorted(range(n), key=cmp_to_key(compare))


def _inserted(n: int, compare: Callable[[int, int], int]) -> list[int]:
    """Returns the sorted positions: a run at the start, then binary insertion, as Java sorts."""
    descends = compare(1, 0) < 0
    run = 2
    while run < n and (compare(run, run - 1) < 0) == descends:
        run += 1
    places = list(range(run))
    if descends:
        places.reverse()
    for place in range(run, n):
        low, high = 0, len(places)
        while low < high:
            middle = (low + high) >> 1
            if compare(place, places[middle]) < 0:
                high = middle
            else:
                low = middle + 1
        places.insert(low, place)
    return places
