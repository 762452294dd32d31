"""Identities of this project's own functions, which do not change when their code moves.

A function that an operator of the library puts into a stage is an object of a class with a named
identity: `library_identity("back_from/1")` over a frozen dataclass. The identity of the object is
that text and its fields. The number is raised when the function changes its results. Any other
object of this project is identified by its public name, if it has one.

Failure: 1. An inner function is known by module and line. 2. A comment is inserted above it. 3.
Each user's stage that contains it is "changed" and recomputed. So identities do not depend on the
place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from types import ModuleType
from typing import Any, TypeVar

_T = TypeVar("_T", bound=type)

_PACKAGE = __name__.partition(".")[0]


def library_identity(identity: str) -> Callable[[_T], _T]:
    """Gives a frozen dataclass of this project its identity, e.g. "back_from/1"."""

    def given(cls: _T) -> _T:
        cls.__own_identity__ = identity  # type: ignore[attr-defined]
        return cls

    return given


def library_identity_of(value: Any) -> tuple[str, tuple[Any, ...]] | None:
    """The identity of an object's class, and the object's fields; None if it has none."""
    identity = vars(type(value)).get("__own_identity__")
    if identity is None:
        return None
    return str(identity), tuple(getattr(value, each.name) for each in fields(value))


def public_name(module: str, qualname: str) -> str | None:
    """The public name of an object of this project; None if it is not public.

    Args:
        qualname: "" for the module itself.
    """
    return _public().get((module, qualname))


@cache
def _public() -> dict[tuple[str, str], str]:
    """The public names by module and qualified name."""
    package = sys.modules[_PACKAGE]
    names = {(_PACKAGE, ""): "the package"}
    for name in package.__all__:
        value = getattr(package, name)
        names[_place(value)] = name
        for inner in getattr(value, "__all__", ()) if isinstance(value, ModuleType) else ():
            names.setdefault(_place(getattr(value, inner)), f"{name}.{inner}")
    return names


def _place(value: Any) -> tuple[str, str]:
    if isinstance(value, ModuleType):
        return value.__name__, ""
    return value.__module__, value.__qualname__
