"""The entries of every container that a session can reach, by place.

A place is a path of attributes, and all members of a container share one place. A list that gains
an entry per epoch is therefore a place whose count grows.
"""

from __future__ import annotations

import gc
import types
from array import array
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

_LEAVES = (str, bytes, int, float, type(None), type, np.ndarray, pa.Array, pa.DataType, memoryview)
_CODE = (types.ModuleType, types.CodeType, types.BuiltinFunctionType)


def entries(*roots: Any) -> Counter[str]:
    """How many entries the containers at each place have, all together."""
    counts: Counter[str] = Counter()
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [(type(root).__name__, root) for root in roots]
    while waiting:
        place, value = waiting.pop()
        if id(value) in seen or isinstance(value, _LEAVES + _CODE):
            continue
        seen.add(id(value))
        if isinstance(value, Mapping):
            counts[place] += len(value)
            waiting += [(f"{place}[]", each) for pair in list(value.items()) for each in pair]
        elif isinstance(value, list | tuple | set | frozenset | deque) and not _fields(value):
            counts[place] += len(value)
            waiting += [(f"{place}[]", each) for each in list(value)]
        elif isinstance(value, array | bytearray):
            counts[place] += len(value)
        else:
            name = type(value).__name__
            waiting += [(f"{place}.{key}" if key else name, each) for key, each in _parts(value)]
    return counts


def _fields(value: Any) -> Any:
    return getattr(value, "_fields", None)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an object; for a function, the values of its closure."""
    if isinstance(value, types.FunctionType):
        for cell in value.__closure__ or ():
            yield "closure", _content(cell)
        return
    if _fields(value):
        yield from zip(value._fields, value, strict=True)
        return
    if not type(value).__module__.startswith("nosync"):
        for each in gc.get_referents(value):
            if not isinstance(each, type):
                yield type(value).__name__, each
        return
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if name != "__weakref__" and hasattr(value, name):
                yield name, getattr(value, name)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None


def grown(before: Counter[str], after: Counter[str], *, spare: int = 0) -> dict[str, int]:
    """The places with more than `spare` entries more, and how many."""
    return {place: n for place, n in (after - before).items() if n > spare}
