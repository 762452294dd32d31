"""Captures functions of the user in their current state, and represents functions that are lost.

A captured function is serialised by value, with everything that it captures. Loading it creates a
private copy. The copy shares nothing with the original: no globals, closure cells, objects, classes
or modules of the user. Only installed packages are stored by reference.

The package `fingerprint` compares functions, and `signing` signs their bytes.

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
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from nosync_nb.collections.functions.fingerprint import (
    LRU_CACHED,
    FunctionIdentity,
    code_version,
    function_fingerprint,
)
from nosync_nb.errors import TrustError

Function = Callable[..., Any]

_registering = threading.Lock()


def serialize_function(function: Function, modules: tuple[str, ...]) -> bytes:
    """Returns the bytes of a function.

    Args:
        modules: the user's modules that the function uses; they are stored with it.

    Raises:
        Exception: any error that a captured value raises when it is pickled.
    """
    import cloudpickle

    with io.BytesIO() as file, _by_value(cloudpickle, modules):
        _pickler_class()(file).dump(function)
        return file.getvalue()


def deserialize_function(data: bytes) -> Function:
    """Loads a function from the bytes of `serialize_function`; each call creates a new copy.

    Loading runs code in the bytes, so the caller must have verified them.
    """
    import cloudpickle

    return cloudpickle.loads(data)  # type: ignore[no-any-return]


@functools.cache
def _pickler_class() -> Any:
    """Returns a class of picklers.

    A class or cached function that is pickled with it is loaded as a new copy.
    """
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc, name-defined, unused-ignore]
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, LRU_CACHED) and _is_user_code(value):
                return Cached, (value.__wrapped__, value.cache_parameters())
            made = super().reducer_override(value)
            if isinstance(value, type) and isinstance(made, tuple) and len(made[1]) > 2:
                # The omitted item is the key of the class in cloudpickle's register. With it,
                # loading would return the original class.
                *given, _, extra = made[1]
                made = (made[0], (*given, None, extra), *made[2:])
            return made

    return Pickler


def _is_user_code(function: Any) -> bool:
    """Returns True if a function belongs to a module of the user."""
    return code_version(function.__module__ or "__main__") is None


class Cached:
    """A function with its own cache, like that of `functools.lru_cache`, but pickled by value.

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
    """In a `with` block, cloudpickle stores these modules of the user by value."""
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


class CapturedFunction:
    """A captured function of the user: code, captured values, identity.

    Operators call a private copy of the function. Its globals, closure cells and defaults stay as
    they were when the function was identified, even if the notebook changes its own. So a later
    retraction cancels the row that was inserted. The copy may change the values that it captured.
    Such a change is invisible to other code, does not affect the identity of the stage, and is lost
    at a restart. If a function cannot be copied, operators call the original.

    Failure: 1. A stage selects rows above a global LIMIT. 2. LIMIT is set to another value in a
    later cell. 3. A row is removed, judged by the new value, and does not cancel. So a copy is
    captured.

    Args:
        identity: the identity of a function from the log; `None` means that it is computed.
        text: the function as recorded in the log.
        context: the context for which `text` was signed.

    Attributes:
        function: the copy, or the original if there is no copy.
        recognition: the result of fingerprinting; None for a function from the log.
        pickle: the bytes of the copy, until they are logged.
        why: the reason why there is no copy, in words for the user; None if there is one.
    """

    __slots__ = ("_identity", "_texts", "function", "pickle", "recognition", "why")

    def __init__(
        self,
        function: Function,
        identity: str | None = None,
        text: str | None = None,
        context: str = "",
    ) -> None:
        self.function = function
        self.recognition: FunctionIdentity | None = None
        self.pickle: bytes | None = None
        self.why: str | None = None
        self._identity = identity
        self._texts = {} if identity is None else {context: text}
        if identity is None:
            self._capture()

    @property
    def identity(self) -> str:
        """The identity; it is equal for equal functions.

        A function that has no fingerprint is equal only to itself.
        """
        if self._identity is None:
            self._capture()  # because a global that was undefined may be defined now
        if self._identity is None:
            self._identity = kernel_identity(self.function)
        return self._identity

    def _capture(self) -> None:
        """Computes the identity of the function, and replaces the function by a copy."""
        self.recognition = function_fingerprint(self.function)
        self._identity = self.recognition.fingerprint
        self.why = self.recognition.reason
        if self._identity is None:
            return
        try:
            data = serialize_function(self.function, self.recognition.modules)
            self.function = deserialize_function(data)
            self.pickle = data
        except Exception as error:  # objects of the user may raise any error
            self.why = f"{type(error).__name__}: {error}"

    def text(
        self, context: str | None, seal: Callable[[CapturedFunction, str], str | None]
    ) -> str | None:
        """Returns the function as recorded in the log for a context; None if it cannot be stored.

        Args:
            context: the context, such as the fingerprint of the definition. `None` means any
                context, for a text from which the function will not be loaded.
            seal: creates the text; called once for each context.
        """
        known = self._texts
        if context is None or (known and self.sealed is None):
            return next(iter(known.values()), None)
        if context not in known:
            known[context] = seal(self, context)
            self.pickle = None
        return known[context]

    @property
    def sealed(self) -> tuple[str, str] | None:
        """A context for which the function is signed, and the text; None if it is not signed."""
        return next(((where, text) for where, text in self._texts.items() if text), None)


class UnavailableFunction:
    """Represents a function of the log that is not loaded; a call raises TrustError.

    Args:
        why: the reason why it may not or cannot be loaded.
    """

    def __init__(self, why: str) -> None:
        self.why = why
        self.__name__ = "function"

    def __call__(self, *_: Any) -> Any:
        raise TrustError(
            f"a function of this stage was not restored: {self.why}",
            hint="run the cell that defines the stage",
        )


_kernel_identities: dict[int, tuple[Callable[[], Function | None], str]] = {}
_kernel_numbers = count()


def kernel_identity(function: Function) -> str:
    """Returns the identity of a function without a fingerprint, valid in this kernel only."""
    known = _kernel_identities.get(id(function))
    if known is None or known[0]() is not function:
        name = f"kernel-{next(_kernel_numbers)}-{id(function):x}"
        known = _kernel_identities[id(function)] = _reference(function), name
    return known[1]


def _reference(function: Function) -> Callable[[], Function | None]:
    """Returns a weak reference to a function, or a strong one if weak ones are not supported."""
    key = id(function)
    try:
        return weakref.ref(function, lambda gone: _forget(key, gone))
    except TypeError:  # some callables support no weak references
        return lambda: function


def _forget(key: int, gone: object) -> None:
    """Removes the entry of a deleted function, unless another function already has its `id`."""
    if key in _kernel_identities and _kernel_identities[key][0] is gone:
        del _kernel_identities[key]
