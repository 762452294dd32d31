"""Validates a catalog as a whole before any object is made from it.

Names in a log become variables, views, folders of widgets and columns of named tuples; numbers
become offsets in files. So each name must be one that a user could have chosen, each number must be
unique and below the bound that the catalog records, and each reference must have a target.
Validation does not make a catalog trusted: see `signature`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any

from nosync_nb.collections.definition import OPERATORS_MAX, check_name
from nosync_nb.errors import CorruptLogError, SchemaError
from nosync_nb.rows import canonical_type
from nosync_nb.store import retention_policy
from nosync_nb.store.catalog import signature
from nosync_nb.store.records.payloads import NUMBERS_MAX
from nosync_nb.store.safe_decoding import guarded_decoding

_EPOCH_MAX = 2**63
_NESTED_MAX = 8


def check_catalog(data: Any, epoch: int) -> None:
    """Checks that the JSON of a catalog is complete and consistent.

    Args:
        epoch: at which it was written.

    Raises:
        CorruptLogError: names the first error, and its place.
    """
    with guarded_decoding("the catalog"):
        numbers = _number(data["numbers"], "its numbers", NUMBERS_MAX)
        frozen = {s["name"] for s in _list(data["stages"]) if s["life"]["is"] == "frozen"}
        stages = {
            each["name"]: _stage(each, epoch, numbers, frozen) for each in _list(data["stages"])
        }
        if len(stages) != len(data["stages"]):
            raise _wrong("two stages have one name")
        inputs = [each["uid"] for each in data["stages"] if "definition" not in each]
        if len(set(inputs)) != len(inputs):
            raise _wrong("two inputs are one")
        if retention_policy.KEY in data and not retention_policy.well_formed(
            data[retention_policy.KEY], epoch
        ):
            raise _wrong("which past it keeps makes no sense")
        if retention_policy.BOUNDS in data and not retention_policy.bounds_well_formed(
            data[retention_policy.BOUNDS]
        ):
            raise _wrong("what it may take makes no sense")
        nodes: dict[str, Any] = {}
        known: set[int] = set()
        for node in _list(data["nodes"]):
            _node(node, epoch, numbers)
            if node["id"] in known or node["name"] in nodes:
                raise _wrong(f"node {node['id']} is there twice")
            known.add(node["id"])
            if node["name"] is not None:
                nodes[node["name"]] = node
        if nodes.keys() != stages.keys():
            odd = sorted(nodes.keys() ^ stages.keys())[0]
            raise _wrong(f"'{odd}' is a stage without a node, or a node without a stage")
        for name, types in stages.items():
            node = nodes[name]
            layouts = [node["log_layout"], *(layout for layout, _ in node["traces"])]
            if node["log"] is None or not node["traces"]:
                raise _wrong(f"'{name}' has no log")
            if any(tuple(layout[0]) != types for layout in layouts):
                raise _wrong(f"'{name}' is logged with other columns than it has")


def check_text(value: Any, what: str) -> str:
    """Returns a label or an idempotency key out of a log.

    Raises:
        CorruptLogError: the value is no text.
    """
    if not isinstance(value, str):
        raise CorruptLogError(f"{what} is no text: {value!r:.60}")
    return value


def stage_name(name: Any, *, frozen: bool) -> str:
    """Returns the name of a stage or input out of a log, after `check_name` has accepted it.

    Raises:
        CorruptLogError: the name is invalid; that of a frozen version is `name@2`.
    """
    base, at, version = name.partition("@") if isinstance(name, str) else ("", "", "")
    if bool(at) != frozen or (frozen and not (version.isascii() and version.isdecimal())):
        raise _wrong(f"{name!r:.60} is no name of a stage")
    try:
        check_name(base, "stage")
    except SchemaError as error:
        raise _wrong(str(error)) from None
    return str(name)


def _stage(data: Any, epoch: int, numbers: int, frozen: AbstractSet[str]) -> tuple[str, ...]:
    """Checks a stage, which may read `frozen` versions; returns the types of its columns."""
    life = data["life"]
    name = stage_name(data["name"], frozen=life["is"] == "frozen")
    what = f"stage '{name}'"
    types = _schema(data["schema"], what)
    _key(data["key"], types, what)
    _number(data["version"], f"{what}: its version")
    _number(data["begin"], f"{what}: its begin", epoch)
    _number(data.get("apart", 0), f"{what}: what tells it apart")
    _number(data.get("scaled", 0), f"{what}: what replicas had of it", epoch)
    check_text(data["uid"], f"{what}: its uid")
    check_text(data["fingerprint"], f"{what}: its fingerprint")
    if not signature.is_key_id(data.get("signer", "")):
        raise _wrong(f"{what}: its signer is no key")
    _options(data["options"], what)
    _life(life, types, epoch, numbers, what)
    for lower, upper in _list(data["gaps"]):
        _number(lower, f"{what}: its gaps", _number(upper, f"{what}: its gaps", epoch + 1))
    if "definition" in data:
        functions = _list(data["functions"])
        for identity, text in functions:
            check_text(identity, f"{what}: a function's identity")
            _optional(text, f"{what}: a function")
        _definition(data["definition"], len(functions), frozen, what)
    return types


def _options(data: Any, what: str) -> None:
    check_text(data["on"], f"{what}: where it runs")
    check_text(data.get("persist", ""), f"{what}: where it is kept")
    if data.keys() - {"persist"} != {"on", "nondeterministic", "demoted"}:
        raise _wrong(f"{what}: its options are {', '.join(data):.60}")
    _bool(data["nondeterministic"])
    _bool(data["demoted"])


def _life(data: Any, types: Sequence[str], epoch: int, numbers: int, what: str) -> None:
    """Checks the state of a stage: live, stale, or a frozen version."""
    if data["is"] not in ("live", "stale", "frozen"):
        raise _wrong(f"{what} is {data['is']!r:.40}")
    if data["is"] != "live":
        _number(data["since"], f"{what}: its last epoch", epoch)
    if data["is"] == "stale":
        check_text(data["reason"], f"{what}: its reason")
    if data["is"] == "frozen":
        _key(data["key"], types, what)
        _number(data["log"], f"{what}: its log", numbers)
        _number(data["trace"], f"{what}: its trace", numbers)


def _definition(data: Any, functions: int, frozen: AbstractSet[str], what: str) -> None:
    """Checks the parts of a definition: each reads some of those before it."""
    parts = _list(data)
    if not 0 < len(parts) <= OPERATORS_MAX:
        raise _wrong(f"{what}: {len(parts)} operators")
    for number, part in enumerate(parts):
        check_text(part["op"], f"{what}: an operator")
        _schema(part["schema"], what)
        if not isinstance(part["params"], dict):
            raise _wrong(f"{what}: an operator has no parameters")
        _shallow(part["params"], _NESTED_MAX, what)
        if part["op"] == "ref":
            read = part["params"]["name"]
            stage_name(read, frozen=isinstance(read, str) and read in frozen)
        for each in _list(part["functions"]):
            _number(each, f"{what}: a function", functions - 1)
        for each in _list(part["inputs"]):
            _number(each, f"{what}: what an operator reads", number - 1)


def _shallow(data: Any, most: int, what: str) -> None:
    """Checks that lists and objects are nested no deeper than any operator needs."""
    if isinstance(data, dict | list):
        if not most:
            raise _wrong(f"{what}: what an operator is given is nested deeper than {_NESTED_MAX}")
        for each in data.values() if isinstance(data, dict) else data:
            _shallow(each, most - 1, what)


def _node(data: Any, epoch: int, numbers: int) -> None:
    what = f"node {_number(data['id'], 'a node', numbers)}"
    check_text(data["fingerprint"], f"{what}: its fingerprint")
    check_text(data["plan"], f"{what}: its plan")
    _optional(data["name"], f"{what}: its name")
    _layout(data["log_layout"], what)
    if data["log"] is not None:
        _number(data["log"], f"{what}: its log", numbers)
    elif data["traces"]:
        raise _wrong(f"{what} has no log")
    for layout, number in _list(data["traces"]):
        _layout(layout, what)
        _number(number, f"{what}: a trace", numbers)
    for number in _list(data["state"]):
        _number(number, f"{what}: a trace", numbers)
    if data["stopped"] is not None:
        _number(data["stopped"], f"{what}: its last epoch", epoch)


def _schema(data: Any, what: str) -> tuple[str, ...]:
    types = []
    for name, type_ in _list(data):
        check_text(name, f"{what}: a column")
        types.append(_type(type_))
    return tuple(types)


def _layout(data: Any, what: str) -> None:
    types, key, order = data
    types = tuple(map(_type, _list(types)))
    _key(key, types, what)
    if order is not None:
        _number(order, f"{what}: its order", len(types) - 1)


def _key(data: Any, types: Sequence[str], what: str) -> None:
    for place in _list(data) if data is not None else ():
        _number(place, f"{what}: its key", len(types) - 1)


def _type(text: Any) -> str:
    check_text(text, "a type")
    if _canonical(text) != text:
        raise _wrong(f"{text!r:.60} is no type")
    return str(text)


@lru_cache(maxsize=1024)
def _canonical(text: str) -> str:
    return canonical_type(text)


def _number(value: Any, what: str, most: int = _EPOCH_MAX) -> int:
    """Checks for an integer from 0 to `most`."""
    if type(value) is not int or not 0 <= value <= most:
        raise _wrong(f"{what}: {value!r:.40} is no number up to {most}")
    return value


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(f"{value!r:.40} is neither true nor false")
    return value


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        raise _wrong(f"{value!r:.40} is no list")
    return value


def _optional(value: Any, what: str) -> None:
    if value is not None:
        check_text(value, what)


def _wrong(said: str) -> CorruptLogError:
    return CorruptLogError(
        f"the catalog makes no sense: {said}",
        hint="restore the log from a copy; nothing was changed",
    )


def check_texts(texts: Any, what: str) -> Mapping[str, str]:
    """Checks idempotency keys and the digests of their rows.

    Raises:
        CorruptLogError: a key or a digest is no text.
    """
    with guarded_decoding(what):
        for name, text in texts.items():
            check_text(name, what)
            check_text(text, what)
    return texts  # type: ignore[no-any-return]


def check_count(value: Any, what: str) -> int:
    """Checks a count.

    Raises:
        CorruptLogError: the value is no number.
    """
    with guarded_decoding(what):
        return _number(value, what, _EPOCH_MAX)


def check_pairs(pairs: Any, what: str) -> list[tuple[int, int]]:
    """Checks numbers of frames, each with an epoch.

    Raises:
        CorruptLogError: the value is no list of pairs of numbers.
    """
    with guarded_decoding(what):
        return [(_number(a, what, _EPOCH_MAX), _number(b, what, _EPOCH_MAX)) for a, b in pairs]


def check_marks(marks: Any, epoch: int, what: str) -> Mapping[str, int]:
    """Checks labels, or idempotency keys, with their epochs.

    Raises:
        CorruptLogError: a key is no text, or a value is no epoch.
    """
    with guarded_decoding(what):
        for name, at in marks.items():
            check_text(name, what)
            _number(at, what, epoch)
    return marks  # type: ignore[no-any-return]
