"""Validates a catalog as a whole before any object is created from it.

Names in a log become variables, views, folders of widgets and columns of named tuples; numbers
become offsets in files. So each name must be one that a user could have chosen. Each number must be
unique and below the bound that the catalog records. Each reference must have a target. Validation
does not make a catalog trusted: see `signature`.
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
        epoch: the epoch at which the catalog was written.

    Raises:
        CorruptLogError: the catalog is invalid; the message names the first error and its position.
    """
    with guarded_decoding("the catalog"):
        numbers = _check_number(data["numbers"], "its numbers", NUMBERS_MAX)
        frozen = {s["name"] for s in _check_list(data["stages"]) if s["life"]["is"] == "frozen"}
        stages = {
            each["name"]: _check_stage(each, epoch, numbers, frozen)
            for each in _check_list(data["stages"])
        }
        if len(stages) != len(data["stages"]):
            raise _invalid("two stages have one name")
        inputs = [each["uid"] for each in data["stages"] if "definition" not in each]
        if len(set(inputs)) != len(inputs):
            raise _invalid("two inputs are the same node")
        if retention_policy.KEY in data and not retention_policy.well_formed(
            data[retention_policy.KEY], epoch
        ):
            raise _invalid("its retention is invalid")
        nodes: dict[str, Any] = {}
        ids: set[int] = set()
        for node in _check_list(data["nodes"]):
            _check_node(node, epoch, numbers)
            if node["id"] in ids or node["name"] in nodes:
                raise _invalid(f"node {node['id']} occurs twice")
            ids.add(node["id"])
            if node["name"] is not None:
                nodes[node["name"]] = node
        if nodes.keys() != stages.keys():
            unmatched = sorted(nodes.keys() ^ stages.keys())[0]
            raise _invalid(f"'{unmatched}' is a stage without a node, or a node without a stage")
        for name, types in stages.items():
            node = nodes[name]
            layouts = [node["log_layout"], *(layout for layout, _ in node["traces"])]
            if node["log"] is None or not node["traces"]:
                raise _invalid(f"'{name}' has no log")
            if any(tuple(layout[0]) != types for layout in layouts):
                raise _invalid(f"'{name}' is logged with other columns than it has")


def check_text(value: Any, what: str) -> str:
    """Returns a label, an idempotency key or another text from a log, after checking its type.

    Raises:
        CorruptLogError: the value is not a string.
    """
    if not isinstance(value, str):
        raise CorruptLogError(f"{what} is not a string: {value!r:.60}")
    return value


def stage_name(name: Any, *, frozen: bool) -> str:
    """Returns the name of a stage or input from a log, after `check_name` has accepted it.

    Args:
        frozen: True if the name must be that of a frozen version, `name@2`.

    Raises:
        CorruptLogError: the name is invalid.
    """
    base, at, version = name.partition("@") if isinstance(name, str) else ("", "", "")
    if bool(at) != frozen or (frozen and not (version.isascii() and version.isdecimal())):
        raise _invalid(f"{name!r:.60} is not a valid name of a stage")
    try:
        check_name(base, "stage")
    except SchemaError as error:
        raise _invalid(str(error)) from None
    return str(name)


def _check_stage(data: Any, epoch: int, numbers: int, frozen: AbstractSet[str]) -> tuple[str, ...]:
    """Checks a stage, which may read the versions in `frozen`; returns the types of its columns."""
    life = data["life"]
    name = stage_name(data["name"], frozen=life["is"] == "frozen")
    what = f"stage '{name}'"
    types = _check_schema(data["schema"], what)
    _check_key(data["key"], types, what)
    _check_number(data["version"], f"{what}: its version")
    _check_number(data["begin"], f"{what}: its begin", epoch)
    _check_number(data.get("apart", 0), f"{what}: its discriminator")
    _check_number(data.get("scaled", 0), f"{what}: its epoch at replicas", epoch)
    check_text(data["uid"], f"{what}: its uid")
    check_text(data["fingerprint"], f"{what}: its fingerprint")
    check_text(data.get("origin", ""), f"{what}: its table in Spark")
    if not signature.is_key_id(data.get("signer", "")):
        raise _invalid(f"{what}: its signer is not a key")
    _check_options(data["options"], what)
    _check_life(life, types, epoch, numbers, what)
    for lower, upper in _check_list(data["gaps"]):
        _check_number(
            lower, f"{what}: its gaps", _check_number(upper, f"{what}: its gaps", epoch + 1)
        )
    if "definition" in data:
        functions = _check_list(data["functions"])
        for identity, text in functions:
            check_text(identity, f"{what}: a function's identity")
            _check_optional_text(text, f"{what}: a function")
        _check_definition(data["definition"], len(functions), frozen, what)
    return types


def _check_options(data: Any, what: str) -> None:
    check_text(data["on"], f"{what}: where it runs")
    check_text(data.get("persist", ""), f"{what}: where it is kept")
    if data.keys() - {"persist"} != {"on", "nondeterministic", "demoted"}:
        raise _invalid(f"{what}: its options are {', '.join(data):.60}")
    _check_bool(data["nondeterministic"])
    _check_bool(data["demoted"])


def _check_life(data: Any, types: Sequence[str], epoch: int, numbers: int, what: str) -> None:
    """Checks the state of a stage: live, stale, or a frozen version."""
    if data["is"] not in ("live", "stale", "frozen"):
        raise _invalid(f"{what} is {data['is']!r:.40}")
    if data["is"] != "live":
        _check_number(data["since"], f"{what}: its last epoch", epoch)
    if data["is"] == "stale":
        check_text(data["reason"], f"{what}: its reason")
    if data["is"] == "frozen":
        _check_key(data["key"], types, what)
        _check_number(data["log"], f"{what}: its log", numbers)
        _check_number(data["trace"], f"{what}: its trace", numbers)


def _check_definition(data: Any, functions: int, frozen: AbstractSet[str], what: str) -> None:
    """Checks the operators of a definition; each may read only operators before it."""
    parts = _check_list(data)
    if not 0 < len(parts) <= OPERATORS_MAX:
        raise _invalid(f"{what}: {len(parts)} operators")
    for number, part in enumerate(parts):
        check_text(part["op"], f"{what}: an operator")
        _check_schema(part["schema"], what)
        if not isinstance(part["params"], dict):
            raise _invalid(f"{what}: an operator has no parameters")
        _check_nesting(part["params"], _NESTED_MAX, what)
        if part["op"] == "ref":
            read = part["params"]["name"]
            stage_name(read, frozen=isinstance(read, str) and read in frozen)
        for each in _check_list(part["functions"]):
            _check_number(each, f"{what}: a function", functions - 1)
        for each in _check_list(part["inputs"]):
            _check_number(each, f"{what}: the inputs of an operator", number - 1)


def _check_nesting(data: Any, most: int, what: str) -> None:
    """Raises CorruptLogError if lists and objects are nested more than `most` levels deep."""
    if isinstance(data, dict | list):
        if not most:
            raise _invalid(
                f"{what}: the parameters of an operator are nested deeper than {_NESTED_MAX}"
            )
        for each in data.values() if isinstance(data, dict) else data:
            _check_nesting(each, most - 1, what)


def _check_node(data: Any, epoch: int, numbers: int) -> None:
    what = f"node {_check_number(data['id'], 'a node', numbers)}"
    check_text(data["fingerprint"], f"{what}: its fingerprint")
    check_text(data["plan"], f"{what}: its plan")
    _check_optional_text(data["name"], f"{what}: its name")
    _check_layout(data["log_layout"], what)
    if data["log"] is not None:
        _check_number(data["log"], f"{what}: its log", numbers)
    elif data["traces"]:
        raise _invalid(f"{what} has no log")
    for layout, number in _check_list(data["traces"]):
        _check_layout(layout, what)
        _check_number(number, f"{what}: a trace", numbers)
    for number in _check_list(data["state"]):
        _check_number(number, f"{what}: a trace", numbers)
    if data["stopped"] is not None:
        _check_number(data["stopped"], f"{what}: its last epoch", epoch)


def _check_schema(data: Any, what: str) -> tuple[str, ...]:
    types = []
    for name, type_ in _check_list(data):
        check_text(name, f"{what}: a column")
        types.append(_check_type(type_))
    return tuple(types)


def _check_layout(data: Any, what: str) -> None:
    types, key, order = data
    types = tuple(map(_check_type, _check_list(types)))
    _check_key(key, types, what)
    if order is not None:
        _check_number(order, f"{what}: its order", len(types) - 1)


def _check_key(data: Any, types: Sequence[str], what: str) -> None:
    for position in _check_list(data) if data is not None else ():
        _check_number(position, f"{what}: its key", len(types) - 1)


def _check_type(text: Any) -> str:
    check_text(text, "a type")
    if _canonical(text) != text:
        raise _invalid(f"{text!r:.60} is not a type")
    return str(text)


@lru_cache(maxsize=1024)
def _canonical(text: str) -> str:
    return canonical_type(text)


def _check_number(value: Any, what: str, most: int = _EPOCH_MAX) -> int:
    """Checks for an integer from 0 to `most`."""
    if type(value) is not int or not 0 <= value <= most:
        raise _invalid(f"{what}: {value!r:.40} is not a number up to {most}")
    return value


def _check_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _invalid(f"{value!r:.40} is neither true nor false")
    return value


def _check_list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        raise _invalid(f"{value!r:.40} is not a list")
    return value


def _check_optional_text(value: Any, what: str) -> None:
    if value is not None:
        check_text(value, what)


def _invalid(why: str) -> CorruptLogError:
    return CorruptLogError(
        f"the catalog is invalid: {why}", hint="restore the log from a copy; nothing was changed"
    )


def check_texts(texts: Any, what: str) -> Mapping[str, str]:
    """Returns idempotency keys with the digests of their rows, after checking their types.

    Raises:
        CorruptLogError: a key or a digest is not a string.
    """
    with guarded_decoding(what):
        for name, text in texts.items():
            check_text(name, what)
            check_text(text, what)
    return texts  # type: ignore[no-any-return]


def check_count(value: Any, what: str) -> int:
    """Returns a count, after checking that it is an integer of at least 0.

    Raises:
        CorruptLogError: the value is not such a number.
    """
    with guarded_decoding(what):
        return _check_number(value, what, _EPOCH_MAX)


def check_pairs(pairs: Any, what: str) -> list[tuple[int, int]]:
    """Returns pairs of a frame number and an epoch, after checking their types.

    Raises:
        CorruptLogError: the value is not a list of pairs of numbers.
    """
    with guarded_decoding(what):
        return [
            (_check_number(a, what, _EPOCH_MAX), _check_number(b, what, _EPOCH_MAX))
            for a, b in pairs
        ]


def check_marks(marks: Any, epoch: int, what: str) -> Mapping[str, int]:
    """Returns labels, or idempotency keys, with their epochs, after checking both.

    Args:
        epoch: the last epoch.

    Raises:
        CorruptLogError: a key is not a string, or a value is not an epoch.
    """
    with guarded_decoding(what):
        for name, at in marks.items():
            check_text(name, what)
            _check_number(at, what, epoch)
    return marks  # type: ignore[no-any-return]
