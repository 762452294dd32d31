"""Loops as users write them: a body that gets the loop's variable and returns its next value.

The body is called once, with a collection that stands for the variable, and what it returns is the
description of a round. Levels number loops by nesting, so that equal loops have equal definitions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from nosync_nb.collection import Collection
from nosync_nb.definition import Definition, free_levels
from nosync_nb.errors import SchemaError, StageError
from nosync_nb.rows import Field, Schema

_nesting = threading.local()
_TAG = "_variable"
_variables: WeakKeyDictionary[Definition, tuple[Definition, ...]] = WeakKeyDictionary()
"""The variables of each loop, so that those of another loop are told apart from them."""


def iterate(source: Collection, body: Callable[[Any], Any], rounds: int | None) -> Collection:
    """Repeats a body on one variable; see `Collection.iterate`."""
    _check_body(body)
    (found,) = _traced({"value": source}, lambda values: {"value": body(values["value"])}, rounds)
    return Collection(source._session, found)


def iterate_together(
    body: Callable[..., Any], rounds: int | None, sources: Mapping[str, Any]
) -> dict[str, Collection]:
    """Repeats a body on several variables; see `Session.iterate`."""
    _check_body(body)
    if not sources:
        raise StageError(
            "iterate: no variables", hint="name them: iterate(lambda a, b: ..., a=first, b=second)"
        )
    for name, source in sources.items():
        if not isinstance(source, Collection):
            raise StageError(f"iterate: {name}={source!r} is not a collection")
    session = next(iter(sources.values()))._session

    def called(values: Mapping[str, Collection]) -> Mapping[str, Any]:
        made = body(**values)
        if isinstance(made, tuple | list) and len(made) == len(sources):
            return dict(zip(sources, made, strict=True))
        if isinstance(made, Mapping) and set(made) == set(sources):
            return made
        raise StageError(
            f"iterate: the body returned {type(made).__name__}, not a value for each of"
            f" {', '.join(sources)}",
            hint="return a tuple in their order, or a dict by their names",
        )

    found = _traced(sources, called, rounds)
    return {n: Collection(session, d) for n, d in zip(sources, found, strict=True)}


def _check_body(body: Any) -> None:
    if not callable(body):
        raise StageError(
            f"iterate: {body!r} is no function", hint="write iterate(lambda value: ...)"
        )


def _traced(
    sources: Mapping[str, Collection], body: Callable[[Any], Mapping[str, Any]], rounds: int | None
) -> list[Definition]:
    """Calls the body once on variables; the definition of each variable's last value."""
    if rounds is not None and (isinstance(rounds, bool) or not isinstance(rounds, int)):
        raise StageError(f"iterate: rounds={rounds!r} is no number", hint="use 1 or more, or None")
    if rounds is not None and rounds < 1:
        raise StageError(
            f"iterate: rounds={rounds}, but the body is applied at least once",
            hint="use 1 or more, or None to go on until nothing changes",
        )
    around: list[list[Definition]] = getattr(_nesting, "around", [])
    level = len(around)
    for source in sources.values():
        _check_inside(source._definition, {id(d) for each in around for d in each})
    variables = {}
    for index, (name, source) in enumerate(sources.items()):
        definition = Definition("variable", source.schema, (), {"level": level, "index": index})
        variables[name] = Collection(source._session, definition)
    _nesting.around = [*around, [v._definition for v in variables.values()]]
    try:
        values = body(variables)
        active = {id(d) for each in _nesting.around for d in each}
    finally:
        _nesting.around = around
    results = [_result(name, values[name], source) for name, source in sources.items()]
    for name, result in zip(sources, results, strict=True):
        _check_inside(result, active)
        if level not in free_levels(result):
            raise StageError(
                f"iterate: the body does not use its variable{_of(name, sources)}, so it repeats"
                " nothing",
                hint="use what the body is given, or leave the loop out",
            )
    own = tuple(v._definition for v in variables.values())
    return _outputs(list(sources.values()), results, level, rounds, own)


def _check_inside(tree: Definition, active: set[int]) -> None:
    """Raises if a tree uses the variable of a loop that is over."""
    known: dict[int, frozenset[int]] = {}
    seen: set[int] = set()
    waiting = [tree]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if each.op == "variable" and id(each) not in active:
            raise outside()
        if each.op == "iterate":
            if each not in _variables:
                continue  # it came out of a log, whole
            active = active | {id(own) for own in _variables[each]}
        if free_levels(each, known):
            waiting += each.inputs


def outside() -> StageError:
    """The error for a loop variable that is used where its loop is not."""
    return StageError(
        "the variable of a loop is used outside of it",
        hint="use it inside the function that iterate() calls; its last value is what iterate()"
        " returns",
    )


def _result(name: str, value: Any, source: Collection) -> Definition:
    """The next value of a variable, of its own schema."""
    if not isinstance(value, Collection):
        raise StageError(
            f"iterate: the body returned {value!r}, not a collection",
            hint="return the variable's next value, as in lambda r: r.concat(...).distinct()",
        )
    found: Collection = source._aligned(value, "iterate")
    if [n.lower() for n in value.schema.names] != [n.lower() for n in source.schema.names]:
        raise SchemaError(
            f"iterate: the body returns ({value.schema.ddl}), its variable is"
            f" ({source.schema.ddl})",
            hint="bring the columns in order with select(...), and rename(...) them",
        )
    return found._definition


def _of(name: str, sources: Mapping[str, Any]) -> str:
    return f" '{name}'" if len(sources) > 1 else ""


def _outputs(
    sources: list[Collection],
    results: list[Definition],
    level: int,
    rounds: int | None,
    variables: tuple[Definition, ...],
) -> list[Definition]:
    """The loop's definition; several variables leave it as one collection, tagged."""
    inputs = (*(s._definition for s in sources), *results)
    params = {"level": level, "rounds": rounds}
    if len(sources) == 1:
        loop = Definition("iterate", sources[0].schema, inputs, params)
        _variables[loop] = variables
        return [loop]
    fields = [Field(_TAG, "int")]
    for number, source in enumerate(sources):
        fields += [Field(f"{number}_{i}", t) for i, t in enumerate(source.schema.types)]
    both = Definition("iterate", Schema(fields), inputs, params)
    _variables[both] = variables
    outputs = []
    at = 1
    for number, source in enumerate(sources):
        chosen = Definition("filter", both.schema, (both,), {"predicate": f"{_TAG} = {number}"})
        places = list(range(at, at + len(source.schema)))
        outputs.append(Definition("select", source.schema, (chosen,), {"outputs": places}))
        at += len(source.schema)
    return outputs
