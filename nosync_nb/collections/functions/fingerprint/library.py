"""Identities of what is this project's own, which outlive every move of its code.

A function that an operator of the library puts into a stage is an object of a class that says what
it computes: `identified("back_from/1")` over a frozen dataclass. Its identity is that text and its
fields; the number is raised when it starts to compute something else. Everything else of this
project has the name by which it is offered to users, or none.

Failure: 1. An inner function is known by module and line. 2. A comment is written above it. 3. Each
user's stage that holds it is "changed" and computed anew.
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
    """The name by which something of this project is offered, None if it is not.

    Args:
        qualname: "" for the module itself.
    """
    return _public().get((module, qualname))


@cache
def _public() -> dict[tuple[str, str], str]:
    """What is offered: by where it is now, its name."""
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
