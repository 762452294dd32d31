"""Modules of the package that are loaded when somebody names them, not when it is imported."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

_MODULES = ("graphs", "windows")


def __getattr__(name: str) -> ModuleType:
    """The `__getattr__` of `nosync_nb`; a module found once is an attribute from then on."""
    if name not in _MODULES:
        raise AttributeError(f"module 'nosync_nb' has no attribute {name!r}")
    return import_module(f"nosync_nb.{name}")
