"""Functions of the user as they were when they were given, and what stands for lost ones.

Not here: what makes two functions equal (`identity`), bytes (`pickles`), signatures (`trust`).
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
    """A function of the user as it was when it was given: code, captured values, identity.

    What runs is a private copy. Its globals, closure cells, defaults and what they hold are those
    that were identified, whatever becomes of the notebook's own, and a retraction years later
    cancels what was inserted. A copy may change what it captured: nobody else sees that, it makes
    no other stage, and it is forgotten at a restart. A function that cannot be copied runs as it
    is.

    Failure: 1. A stage keeps rows above a global LIMIT. 2. LIMIT is set to another value in a
    later cell. 3. A row is removed, judged by the new value, and does not cancel.

    Args:
        identity: if it is known, as it is for a function that came back from the log.
        text: how the log holds it in a `context`: the place that it was signed for.

    Attributes:
        recognition: its fingerprint and what that comes from; None for one of the log.
        pickle: the bytes of the copy, until the log has them.
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
            self._take()

    @property
    def identity(self) -> str:
        """Equal for equal functions; one that cannot be identified is itself in this kernel."""
        if self._identity is None:
            self._take()  # what it captures may be bound by now
        if self._identity is None:
            self._identity = kernel_identity(self.function)
        return self._identity

    def _take(self) -> None:
        """Identifies the function, and from then on is a copy of it."""
        self.recognition = function_fingerprint(self.function)
        self._identity = self.recognition.fingerprint
        self.why = self.recognition.reason
        if self._identity is None:
            return
        try:
            data = serializer.serialize_function(self.function, self.recognition.modules)
            self.function = serializer.deserialize_function(data)
            self.pickle = data
        except Exception as error:  # whatever the user's objects raise
            self.why = f"{type(error).__name__}: {error}"

    def text(
        self, context: str | None, seal: Callable[[CapturedFunction, str], str | None]
    ) -> str | None:
        """How the log holds it in a place: made once by `seal`; None if it cannot be stored.

        Args:
            context: the place; None: wherever it was, as nobody will load it.
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
        """A context that it was signed for, and how the log holds it there; None if nowhere."""
        return next(((where, text) for where, text in self._texts.items() if text), None)


class UnavailableFunction:
    """Stands for a function of the log that may not or cannot be loaded; calling it raises."""

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
    """A function as long as it is there, and no longer than it has to be."""
    key = id(function)
    try:
        return weakref.ref(function, lambda gone: _forget(key, gone))
    except TypeError:  # some callables cannot be held so
        return lambda: function


def _forget(key: int, gone: object) -> None:
    """Forgets a function that is gone, unless another one is there by now."""
    if key in _kernel_identities and _kernel_identities[key][0] is gone:
        del _kernel_identities[key]
