"""Builds loops from a body: a function of the loop's variable that returns its next value.

The body is called once, with a collection that represents the variable. Its result describes one
round. Each loop has a level, its depth of nesting, so that equal loops have equal definitions.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.row_expressions import aligned_schemas
from nosync_nb.collections.session_protocol import SessionBound, SessionProtocol, definition_of
from nosync_nb.errors import SchemaError, StageError
from nosync_nb.operators import user_functions
from nosync_nb.rows import Field, Schema


class _Nesting(threading.local):
    """The variables of the loops whose bodies this thread is calling, the outermost first."""

    around: Sequence[list[Definition]] = ()


_nesting = _Nesting()
Wrap = Callable[[Definition], Any]
_TAG = "_variable"
_UNNAMED = ""  # the name of the only variable of a loop
_variables: WeakKeyDictionary[Definition, tuple[Definition, ...]] = WeakKeyDictionary()
"""The variables of each loop definition that was built in this process."""


def iterate_definition(
    host: SessionProtocol,
    wrap: Wrap,
    source: Definition,
    body: Callable[[Any], Any],
    rounds: int | None,
) -> Definition:
    """Builds a loop with one variable; see `Collection.iterate`.

    Args:
        wrap: converts a definition to the collection that is passed to the body.
    """
    _check_body(body, 1, {})
    (loop,) = _trace_body(
        host, {_UNNAMED: source}, lambda v: {_UNNAMED: body(wrap(v[_UNNAMED]))}, rounds
    )
    return loop


def mutual_iterate_definitions(
    host: SessionProtocol,
    wrap: Wrap,
    sources: Mapping[str, Any],
    body: Callable[..., Any],
    rounds: int | None,
) -> list[Definition]:
    """Builds a loop with several variables; see `Session.iterate`.

    Returns: the last value of each variable, in the order of `sources`.
    """
    if isinstance(rounds, SessionBound):
        raise StageError(
            "iterate: a variable cannot be called 'rounds', the argument that limits the rounds",
            hint="rename the variable",
        )
    if not sources:
        raise StageError(
            "iterate: no variables", hint="name them: iterate(lambda a, b: ..., a=first, b=second)"
        )
    _check_body(body, 0, sources)
    definitions = {n: definition_of("iterate", each, host, n) for n, each in sources.items()}

    def step(variables: Mapping[str, Definition]) -> Mapping[str, Any]:
        return _by_name(body(**{name: wrap(each) for name, each in variables.items()}), sources)

    return _trace_body(host, definitions, step, rounds)


def _by_name(values: Any, sources: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the values that a body returned, by the names of its variables.

    Raises:
        StageError: if there is not exactly one value for each variable.
    """
    names = ", ".join(sources)
    if isinstance(values, SessionBound) and len(sources) == 1:
        return dict.fromkeys(sources, values)
    if isinstance(values, tuple | list):
        if len(values) == len(sources):
            return dict(zip(sources, values, strict=True))
        shape = f"{len(values)} values"
    elif isinstance(values, Mapping):
        unknown = [repr(name) for name in values if name not in sources]
        missing = [repr(name) for name in sources if name not in values]
        if not unknown and not missing:
            return values
        shape = "a dict"
        shape += f" with {', '.join(unknown)}" if unknown else ""
        shape += f" without {', '.join(missing)}" if missing else ""
    else:
        shape = repr(values)
    raise StageError(
        f"iterate: the body returned {shape}, not a value for each of {names}",
        hint="return a tuple in their order, or a dict by their names",
    )


def _check_body(body: Any, places: int, names: Mapping[str, Any]) -> None:
    """Raises StageError if a body is not callable, or cannot be called with its variables.

    Args:
        places: the number of variables that are passed by position.
        names: the variables that are passed by name.
    """
    wanted = f"lambda {', '.join(names) or 'value'}: ..."
    if not callable(body):
        raise StageError(f"iterate: {body!r} is not a function", hint=f"write iterate({wanted})")
    try:
        signature = inspect.signature(body)
    except (TypeError, ValueError):  # some functions written in C have no signature
        return
    try:
        signature.bind(*(None,) * places, **names)
    except TypeError as error:
        what = (
            f"its variables {', '.join(names)} by name" if names else "one argument, its variable"
        )
        title = user_functions.function_title(body)[:-2]
        raise StageError(
            f"iterate: the body {title}{signature} must accept {what}: {error}",
            hint=f"write {wanted}",
        ) from None


def refuse_inside(what: str) -> None:
    """Raises StageError if this thread is in the body of a loop, where changes are not allowed.

    Failure: a body is called once, when the loop is described. Its inserts and commits would run
    then, even if the loop is never used, and not in its rounds. So they are refused.
    """
    if _nesting.around:
        raise StageError(
            f"{what} inside the body of a loop is not possible",
            hint="the body only describes a round, and is called once; change inputs, commit and"
            " define stages outside of it",
        )


def refuse_reading(definition: Definition) -> None:
    """Raises StageError if the variable of a loop is read inside a body."""
    if _nesting.around and definition.levels:
        raise StageError(
            "the variable of a loop cannot be read in the body, which only describes a round",
            hint="use operators such as filter or join, and declare the columns of map: map(f,"
            " 'name string')",
        )


def _trace_body(
    host: SessionProtocol,
    sources: Mapping[str, Definition],
    body: Callable[[Mapping[str, Definition]], Mapping[str, Any]],
    rounds: int | None,
) -> list[Definition]:
    """Calls the body once, and returns the definition of each variable's last value.

    Args:
        sources: the first value of each variable, by its name.
        body: returns the next values of the variables, by their names.
    """
    if rounds is not None and (isinstance(rounds, bool) or not isinstance(rounds, int)):
        raise StageError(
            f"iterate: rounds={rounds!r} is not an integer", hint="use 1 or more, or None"
        )
    if rounds is not None and rounds < 1:
        raise StageError(
            f"iterate: rounds={rounds}, but the body is applied at least once",
            hint="use 1 or more, or None to repeat until nothing changes",
        )
    around = _nesting.around
    level = len(around)
    for source in sources.values():
        _check_inside(source, {id(d) for each in around for d in each})
    variables = {
        name: Definition("variable", source.schema, (), {"level": level, "index": index})
        for index, (name, source) in enumerate(sources.items())
    }
    own = tuple(variables.values())
    _nesting.around = [*around, [*own]]
    try:
        values = body(variables)
        active = {id(d) for each in _nesting.around for d in each}
    finally:
        _nesting.around = around
    results = [_next_value(host, name, values[name], source) for name, source in sources.items()]
    for name, result in zip(sources, results, strict=True):
        _check_inside(result, active)
        if level not in result.levels:
            raise StageError(
                f"iterate: the body does not use its variable{_variable_title(name, sources)}, so"
                " it repeats nothing",
                hint="use the argument of the body, or drop the loop",
            )
    return _outputs(list(sources.values()), results, level, rounds, own)


def _check_inside(tree: Definition, active: set[int]) -> None:
    """Raises StageError if a tree uses the variable of a loop that has ended.

    Args:
        active: the `id` of each variable of the enclosing loops.
    """
    seen: set[int] = set()
    waiting = [tree]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if each.op == "variable" and id(each) not in active:
            raise outside_all_loops()
        if each.op == "iterate":
            if each not in _variables:
                continue  # because a loop from a log is complete
            active = active | {id(own) for own in _variables[each]}
        if each.levels:
            waiting += each.inputs


def outside_all_loops() -> StageError:
    """Returns the error for a loop variable that is used outside of its loop."""
    return StageError(
        "the variable of a loop is used outside the loop",
        hint="use it inside the body, and outside the result of iterate(), its last value",
    )


def _next_value(host: SessionProtocol, name: str, value: Any, source: Definition) -> Definition:
    """Returns the next value of a variable, converted to the types of the variable.

    Raises:
        StageError: if the body did not return a collection of this session.
        SchemaError: if the columns differ.
    """
    if not isinstance(value, SessionBound):
        raise StageError(
            f"iterate: the body returned {value!r}{_for_variable(name)}, not a collection",
            hint="return the variable's next value, as in lambda r: r.concat(...).distinct()",
        )
    what = f"iterate: the body's value{_for_variable(name)}"
    result = definition_of(what, value, host)
    fitting = aligned_schemas(source, result, what)
    if [n.lower() for n in result.schema.names] != [n.lower() for n in source.schema.names]:
        raise SchemaError(
            f"iterate: the body returns ({result.schema.ddl}){_for_variable(name)}, its variable is"
            f" ({source.schema.ddl})",
            hint="reorder the columns with select(...), and rename them with rename(...)",
        )
    return fitting


def _for_variable(name: str) -> str:
    return f" for '{name}'" if name != _UNNAMED else ""


def _variable_title(name: str, sources: Mapping[str, Any]) -> str:
    return f" '{name}'" if len(sources) > 1 else ""


def loop_definition(source: Definition, level: int, following: Definition) -> Definition:
    """Builds a loop that repeats until nothing changes.

    Args:
        level: the number of loops around it, which is a parameter of its variables.
        following: the next value of the variable, with the schema of `source`.
    """
    (loop,) = _outputs([source], [following], level, None, _variables_of(following, level))
    return loop


def _variables_of(body: Definition, level: int) -> tuple[Definition, ...]:
    """Returns the variables of a level in the body of a loop."""
    found: dict[int, Definition] = {}
    seen: set[int] = set()
    waiting = [body]
    while waiting:
        each = waiting.pop()
        if id(each) in seen or level not in each.levels:
            continue
        seen.add(id(each))
        if each.op == "variable" and each.params["level"] == level:
            found[id(each)] = each
        waiting += each.inputs
    return tuple(found.values())


def _outputs(
    sources: list[Definition],
    results: list[Definition],
    level: int,
    rounds: int | None,
    variables: tuple[Definition, ...],
) -> list[Definition]:
    """Builds the definition of the loop, and one for the last value of each variable.

    A loop with several variables returns one collection: a tag with the number of the variable, and
    the columns of all variables.
    """
    inputs = (*sources, *results)
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
