"""Rebasing: a definition over the present columns of what it reads, decided purely.

Operators refer to columns by place, expressions by name, functions as they like. A column that is
gone matters if somebody uses it: an expression, a key, a place in a `select`, any function of a
row. What only passes it on passes it on no longer, and its output has a column less. What has
columns more does not see them.

A column that is there with another type is gone for this purpose, but must not pass for it: if it
would reach the output, or decide which rows are equal, the definition does not fit any more.

What stands between a definition and columns that were added or moved is a `select` marked *fitted*.
It is ours, not the user's: it uses nothing, and the next edit makes it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from nosync_nb.collections.definition import Definition, reference
from nosync_nb.dataflow.flat import Call, flat
from nosync_nb.dataflow.graph import Stage
from nosync_nb.errors import NosyncError, StageError
from nosync_nb.expressions import Types, compile_aggregates, compile_expression, of_params
from nosync_nb.rows import Schema


class Lost(NamedTuple):
    """A column that is not what it was: why, and whether it is there with another type."""

    why: str
    retyped: bool


class Fitted(NamedTuple):
    """A definition over present columns.

    Attributes:
        places: where the columns that are left were before.
        lost: those that are not there any more, by place.
    """

    tree: Definition
    places: list[int]
    lost: dict[int, Lost]

    def moved(self, places: Iterable[int]) -> list[int]:
        """Where columns are now.

        Raises:
            _UsedError: if one of them is lost.
        """
        now = {place: i for i, place in enumerate(self.places)}
        for place in places:
            if place in self.lost:
                raise _UsedError(self.lost[place].why)
        return [now[place] for place in places]


class _UsedError(Exception):
    """A lost column is used; says which."""


def rebased(stage: Stage, catalog: Mapping[str, Stage], types: Types | None) -> Stage:
    """The stage over the present columns of what it reads; if it uses missing ones, it is stale.

    Raises:
        StageError: if something that it reads is not there.
    """
    tree = stage.definition
    assert tree is not None
    for name in tree.references:
        if name not in catalog:
            raise StageError(
                f"stage '{stage.name}' reads '{name}', which is not there",
                hint=f"define '{name}' first",
                stage=stage.name,
            )
    if all(catalog[ref.name].schema == ref.schema for ref in tree.refs):
        return stage
    try:
        fitted = flat(_Fitter(catalog, types).fit(tree))
        _same(fitted.lost)
    except _UsedError as error:
        return replace(stage, reason=str(error))
    return replace(stage, definition=fitted.tree, schema=fitted.tree.schema)


def _read(tree: Definition) -> Definition | None:
    """The collection that a part is, with the columns that a definition knows of; None if none."""
    if tree.params.get("fitted"):
        return reference(tree.inputs[0].name, tree.schema)
    return tree if tree.is_ref else None


def _same(lost: Mapping[int, Lost]) -> None:
    """Raises if a column with another type would be taken for one that is gone."""
    for each in lost.values():
        if each.retyped:
            raise _UsedError(each.why)


def _without(schema: Schema, lost: Iterable[int]) -> Schema:
    gone = set(lost)
    return Schema([f for i, f in enumerate(schema.fields) if i not in gone])


class _Fitter:
    """Fits the parts of one definition; parts that are shared stay so."""

    def __init__(self, catalog: Mapping[str, Stage], types: Types | None) -> None:
        self.catalog = catalog
        self.types = types
        self.known: dict[int, Fitted] = {}

    def fit(self, tree: Definition) -> Call[Fitted]:
        """A part over present columns."""
        known = self.known.get(id(tree))
        if known is None:
            source = _read(tree)
            known = self._source(source) if source is not None else (yield self._part(tree))
            self.known[id(tree)] = known
        return known

    def _source(self, ref: Definition) -> Fitted:
        """What is left of the columns of a collection."""
        schema = self.catalog[ref.name].schema
        every = list(range(len(ref.schema)))
        if schema == ref.schema:
            return Fitted(ref, every, {})
        held = {f.name: (i, f.type) for i, f in enumerate(schema.fields)}
        lost = {}
        for i, field in enumerate(ref.schema.fields):
            have = held.get(field.name, (0, None))[1]
            if have != field.type:
                why = (
                    f"it reads column '{field.name}' ({field.type}) of '{ref.name}',"
                    f" which now has {have or 'no such column'}"
                )
                lost[i] = Lost(why, have is not None)
        if len(lost) == len(every):
            raise _UsedError(lost[0].why)
        places = [i for i in every if i not in lost]
        outputs = [held[ref.schema.names[i]][0] for i in places]
        fresh = (reference(ref.name, schema),)
        params = {"outputs": outputs, "fitted": True}
        columns = Definition("select", _without(ref.schema, lost), fresh, params)
        return Fitted(columns, places, lost)

    def _part(self, tree: Definition) -> Call[Fitted]:
        if tree.op == "top":
            yield self._beside(tree)
        inputs: list[Fitted] = []
        for each in tree.inputs:
            inputs.append((yield self.fit(each)))
        if not any(each.lost for each in inputs):
            if all(a.tree is b for a, b in zip(inputs, tree.inputs, strict=True)):
                return Fitted(tree, list(range(len(tree.schema))), {})
            return _made(tree, inputs, tree.params, {})
        if tree.captured and tree.op != "threshold":  # whose function sees counts, not rows
            _none(inputs)
        return _RULES.get(tree.op, _unknown)(self, tree, inputs)

    def _beside(self, tree: Definition) -> Call[None]:
        """Fits what a top computes to order by: it stands beside columns that are passed on."""
        width, below = tree.params["width"], tree.inputs[0].inputs[0]
        if width == len(below.schema):
            return  # it orders by columns alone
        source: Fitted = yield self.fit(below.inputs[0])
        if source.lost:
            computed = below.params["outputs"][width:]
            for sql in computed:
                source.moved(self._used(sql, below))
            there = source.moved([i for i in range(width) if i not in source.lost])
            outputs = {**below.params, "outputs": [*there, *computed]}
            self.known[id(below)] = _made(below, [source], outputs, source.lost)

    def order(self, tree: Definition, inputs: list[Fitted]) -> Fitted:
        """Needs what it orders by; passes on the rest."""
        return _made(tree, inputs, {"by": _by(tree, inputs[0])}, inputs[0].lost)

    def top(self, tree: Definition, inputs: list[Fitted]) -> Fitted:
        """Needs its keys and its order; compares rows, where that leaves them equal."""
        _same(inputs[0].lost)
        keys = inputs[0].moved(tree.params["keys"])
        width = tree.params["width"] - len(inputs[0].lost)
        params = {**tree.params, "keys": keys, "by": _by(tree, inputs[0]), "width": width}
        return _made(tree, inputs, params, inputs[0].lost)

    def _used(self, sql: str, tree: Definition) -> Iterable[int]:
        """The places of the columns that an expression of a definition reads."""
        schema, settings = tree.inputs[0].schema, of_params(tree.params)
        try:
            return compile_expression(sql, schema, types=self.types, settings=settings).columns
        except NosyncError as error:
            raise _UsedError(str(error)) from error

    def filter(self, tree: Definition, inputs: list[Fitted]) -> Fitted:
        """Passes on what its predicate does not use."""
        inputs[0].moved(self._used(tree.params["predicate"], tree))
        return _made(tree, inputs, tree.params, inputs[0].lost)

    def select(self, tree: Definition, inputs: list[Fitted]) -> Fitted:
        """Needs what it names: columns by place, and those in expressions."""
        outputs: list[Any] = []
        for each in tree.params["outputs"]:
            if isinstance(each, int):
                outputs += inputs[0].moved([each])
            else:
                inputs[0].moved(self._used(each, tree))
                outputs.append(each)
        return _made(tree, inputs, {**tree.params, "outputs": outputs}, {})

    def aggregate(self, tree: Definition, inputs: list[Fitted]) -> Fitted:
        """Needs its keys and what its aggregates read."""
        schema = tree.inputs[0].schema
        keys = inputs[0].moved(tree.params["keys"])
        names = [schema.names[i] for i in tree.params["keys"]]
        settings = of_params(tree.params)
        try:
            found = compile_aggregates(
                tree.params["named"], schema, names, types=self.types, settings=settings
            )
        except NosyncError as error:
            raise _UsedError(str(error)) from error
        for call in found.calls:
            if call.argument is not None:
                inputs[0].moved(call.argument.columns)
        return _made(tree, inputs, {**tree.params, "keys": keys}, {})

    def join(self, tree: Definition, inputs: list[Fitted]) -> Fitted:
        """Needs its keys; passes on the rest."""
        params = tree.params
        left, right = inputs[0].moved(params["left"]), inputs[1].moved(params["right"])
        outputs, lost = [], {}
        for i, (side, place) in enumerate(params["outputs"]):
            gone = inputs[side].lost.get(place)
            if gone is None:
                outputs.append([side, *inputs[side].moved([place])])
            else:
                lost[i] = gone
        return _made(tree, inputs, {"left": left, "right": right, "outputs": outputs}, lost)

    def row(self, tree: Definition, inputs: list[Fitted]) -> Fitted:
        """Passes on rows as they are."""
        return _made(tree, inputs, tree.params, inputs[0].lost)

    def whole(self, tree: Definition, inputs: list[Fitted]) -> Fitted:
        """Compares rows, or adds those of several inputs, which must have lost the same."""
        for each in inputs:
            _same(each.lost)
            if each.lost.keys() != inputs[0].lost.keys():
                _none(inputs)
        return _made(tree, inputs, tree.params, inputs[0].lost)


def _made(
    tree: Definition, inputs: list[Fitted], params: Mapping[str, Any], lost: dict[int, Lost]
) -> Fitted:
    """An operator over what is left of its inputs."""
    below = tuple(each.tree for each in inputs)
    made = Definition(tree.op, _without(tree.schema, lost), below, params, tree.captured)
    return Fitted(made, [i for i in range(len(tree.schema)) if i not in lost], lost)


def _by(tree: Definition, given: Fitted) -> list[list[Any]]:
    """What an operator orders by, as its columns are placed now."""
    return [[*given.moved([place]), *how] for place, *how in tree.params["by"]]


def _none(inputs: list[Fitted]) -> None:
    """Raises for the first column that is lost."""
    raise _UsedError(next(lost.why for each in inputs for lost in each.lost.values()))


def _unknown(_: _Fitter, __: Definition, inputs: list[Fitted]) -> Fitted:
    """An operator of which it is not known what it needs."""
    _none(inputs)
    raise AssertionError


_RULES: dict[str, Callable[[_Fitter, Definition, list[Fitted]], Fitted]] = {
    "filter": _Fitter.filter,
    "select": _Fitter.select,
    "aggregate": _Fitter.aggregate,
    "join": _Fitter.join,
    "order": _Fitter.order,
    "top": _Fitter.top,
    **dict.fromkeys(("negate", "widen", "pad"), _Fitter.row),
    **dict.fromkeys(("distinct", "consolidate", "multiplicity", "threshold"), _Fitter.whole),
    **dict.fromkeys(("concat", "except_all", "subtract"), _Fitter.whole),
}
