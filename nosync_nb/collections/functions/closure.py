"""Captures functions of the user in their current state, and represents functions that are lost.

Other modules compare functions (`fingerprint`), serialise them (`serializer`) and sign them
(`signing`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from itertools import count
from typing import Any

from nosync_nb.collections.functions import serializer
from nosync_nb.collections.functions.fingerprint import FunctionIdentity, function_fingerprint
from nosync_nb.errors import TrustError

Function = Callable[..., Any]


class CapturedFunction:
    """A captured function of the user: code, captured values, identity.

    A private copy runs. Its globals, closure cells, defaults and their contents are those that were
    identified, whatever the notebook does with its own. So a retraction years later cancels the row
    that was inserted. A copy may change the values that it captured. No other code sees such a
    change, it does not affect the identity of the stage, and it is lost at a restart. A function
    that cannot be copied runs itself.

    Failure: 1. A stage selects rows above a global LIMIT. 2. LIMIT is set to another value in a
    later cell. 3. A row is removed, judged by the new value, and does not cancel. So a copy is
    captured.

    Args:
        identity: if it is known, as for a function from the log.
        text: the function as recorded in the log for a `context`: the place that it was signed for.

    Attributes:
        recognition: its fingerprint and the basis of it; None for a function from the log.
        pickle: the bytes of the copy, until they are logged.
        why: why there is no copy, in words for the user.
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
        """Equal for equal functions; a function that cannot be identified equals only itself."""
        if self._identity is None:
            self._capture()  # a name that was unbound may be bound now
        if self._identity is None:
            self._identity = kernel_identity(self.function)
        return self._identity

    def _capture(self) -> None:
        """Identifies the function, and replaces it by a copy of it."""
        self.recognition = function_fingerprint(self.function)
        self._identity = self.recognition.fingerprint
        self.why = self.recognition.reason
        if self._identity is None:
            return
        try:
            data = serializer.serialize_function(self.function, self.recognition.modules)
            self.function = serializer.deserialize_function(data)
            self.pickle = data
        except Exception as error:  # objects of the user may raise any error
            self.why = f"{type(error).__name__}: {error}"

    def text(
        self, context: str | None, seal: Callable[[CapturedFunction, str], str | None]
    ) -> str | None:
        """The function as recorded in the log for a context; None if it cannot be stored.

        `seal` makes the text once for each context.

        Args:
            context: the place; None: any place, if the function will not be loaded.
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
        """A context that it was signed for, with the recorded text; None if there is none yet."""
        return next(((where, text) for where, text in self._texts.items() if text), None)


class UnavailableFunction:
    """Represents a function of the log that may not or cannot be loaded; calling it raises."""

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
    """The identity of a function that is recognised in this kernel only."""
    known = _kernel_identities.get(id(function))
    if known is None or known[0]() is not function:
        name = f"kernel-{next(_kernel_numbers)}-{id(function):x}"
        known = _kernel_identities[id(function)] = _reference(function), name
    return known[1]


def _reference(function: Function) -> Callable[[], Function | None]:
    """A weak reference to a function, or a strong one if it supports no weak references."""
    key = id(function)
    try:
        return weakref.ref(function, lambda gone: _forget(key, gone))
    except TypeError:  # some callables support no weak references
        return lambda: function


def _forget(key: int, gone: object) -> None:
    """Forgets a deleted function, unless its id is already used by another one."""
    if key in _kernel_identities and _kernel_identities[key][0] is gone:
        del _kernel_identities[key]
