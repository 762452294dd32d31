"""Serialises the user's functions by value, with everything that they capture.

A loaded function is a private copy. It shares no globals and closure cells with its origin, no
lists, objects and classes in them, and no modules of the user. Only installed packages are stored
by reference.

Other modules sign the bytes (`signing`) and compare functions (`fingerprint`).

Failure: 1. A class is captured and pickled. 2. The user sets an attribute of it. 3. The pickle is
loaded in the same process. cloudpickle would return the same class, and reset its attribute; hence
its register of classes is not used.
"""

from __future__ import annotations

import functools
import io
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nosync_nb.collections.functions.fingerprint import LRU_CACHED, code_version

Function = Callable[..., Any]

_registering = threading.Lock()


def serialize_function(function: Function, modules: tuple[str, ...]) -> bytes:
    """Returns the bytes of a function.

    Args:
        modules: the user's modules it uses, which are stored with it.

    Raises:
        Exception: any error that a captured value raises when it is pickled.
    """
    import cloudpickle

    with io.BytesIO() as file, _by_value(cloudpickle, modules):
        _pickler_class()(file).dump(function)
        return file.getvalue()


def deserialize_function(data: bytes) -> Function:
    """Loads a function from the bytes of `serialize_function`, a new copy at each call.

    It runs code in the bytes, so the caller must have verified them.
    """
    import cloudpickle

    return cloudpickle.loads(data)  # type: ignore[no-any-return]


@functools.cache
def _pickler_class() -> Any:
    """A pickler whose classes and cached functions are copies when they are loaded."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc, name-defined, unused-ignore]
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, LRU_CACHED) and _is_user_code(value):
                return Cached, (value.__wrapped__, value.cache_parameters())
            made = super().reducer_override(value)
            if isinstance(value, type) and isinstance(made, tuple) and len(made[1]) > 2:
                *given, _, extra = made[1]  # the last but one: the class's place in the register
                made = (made[0], (*given, None, extra), *made[2:])
            return made

    return Pickler


def _is_user_code(function: Any) -> bool:
    """Returns True for a function in a module of the user."""
    return code_version(function.__module__ or "__main__") is None


class Cached:
    """A function with a cache of its own, like `functools.lru_cache`, but pickled by value.

    Args:
        parameters: the parameters of `lru_cache`.
    """

    def __init__(self, function: Function, parameters: dict[str, Any]) -> None:
        self._made = (function, parameters)
        self._call = functools.lru_cache(**parameters)(function)
        functools.update_wrapper(self, function)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._call(*given, **named)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return Cached, self._made


@contextmanager
def _by_value(cloudpickle: Any, names: tuple[str, ...]) -> Iterator[None]:
    """Makes cloudpickle store these modules of the user with the function."""
    with _registering:
        before = cloudpickle.list_registry_pickle_by_value()
        modules = [sys.modules[n] for n in names if n in sys.modules and n not in before]
        try:
            for module in modules:
                cloudpickle.register_pickle_by_value(module)
            yield
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)
