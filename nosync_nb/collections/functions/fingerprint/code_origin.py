"""The origin of code: the user's own modules, installed packages, Python, or this project.

Installed code is identified by its version, and the user's code by its text. A module outside of
site-packages is the user's, even if its package is installed in editable mode.

This project's own functions have identities that do not change when their code moves. A function
that the library puts into a stage is an instance of a frozen dataclass with an explicit identity,
such as `library_identity("back_from/1")`. The identity of the instance is that text together with
its fields. The number is incremented when the function changes its results. Any other object of
this project is identified by its public name, if it has one.

Failure: 1. An inner function is known by module and line. 2. A comment is inserted above it. 3.
Each user's stage that contains it is "changed" and recomputed. So identities do not depend on the
place.
"""

from __future__ import annotations

import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from types import ModuleType
from typing import Any, TypeVar

_ENGINE = frozenset({"nosync", "nosync_nb", "nosync_widgets"})


def code_version(module: str, file: str | None = None) -> str | None:
    """Returns the version that identifies a module's code; None if the code is the user's.

    Returns: "python" for the standard library; "engine" for this project, because each definition
    records the version of its semantics; "unknown" for a package without a version.

    Args:
        file: the file of the module; by default it is looked up.
    """
    top = module.partition(".")[0]
    if top == "__main__" or module == "__mp_main__":
        return None
    if top in _ENGINE:
        return "engine"
    if file is None:
        file = _file(module)
    if file is None or file in ("built-in", "frozen"):
        return "python" if top in sys.stdlib_module_names else None
    path = os.path.realpath(file)
    if any(path.startswith(folder) for folder in _site_folders()):
        return _package_version(top)
    if any(path.startswith(folder) for folder in _python_folders()):
        return "python"
    return None


def version_of_globals(namespace: Mapping[str, Any]) -> tuple[str, str | None]:
    """Returns the name of the module with these globals, and its version; see `code_version`."""
    name = str(namespace.get("__name__") or "__main__")
    file = namespace.get("__file__")
    return name, code_version(name, file if isinstance(file, str) else None)


def version_of_module(module: ModuleType) -> str | None:
    """Returns the version of a module object; see `code_version`."""
    file = getattr(module, "__file__", None)
    return code_version(module.__name__, file if isinstance(file, str) else None)


def _file(module: str) -> str | None:
    """Returns the file of a module, or the folder of a namespace package, without an import."""
    loaded = sys.modules.get(module)
    if loaded is not None:
        file = getattr(loaded, "__file__", None)
        if isinstance(file, str):
            return file
        folders = list(getattr(loaded, "__path__", ()))
        return os.path.join(folders[0], "") if folders else None
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    if spec.origin is None and spec.submodule_search_locations:
        return os.path.join(next(iter(spec.submodule_search_locations)), "")
    return spec.origin


@cache
def _site_folders() -> tuple[str, ...]:
    """Returns the folders into which packages are installed."""
    paths = sysconfig.get_paths()
    folders = {paths["purelib"], paths["platlib"], *site.getsitepackages()}
    if site.ENABLE_USER_SITE:
        folders.add(site.getusersitepackages())
    folders |= {p for p in sys.path if os.path.basename(p) in ("site-packages", "dist-packages")}
    return tuple(sorted({os.path.join(os.path.realpath(f), "") for f in folders}))


@cache
def _python_folders() -> tuple[str, ...]:
    """Returns the folders of the standard library."""
    paths = sysconfig.get_paths()
    return tuple(os.path.join(os.path.realpath(paths[n]), "") for n in ("stdlib", "platstdlib"))


@cache
def _package_version(top: str) -> str:
    """Returns the version of the distribution that contains a top-level module."""
    from importlib import metadata  # slow to import, seldom needed

    try:
        return metadata.version(top)
    except metadata.PackageNotFoundError:
        pass
    stated = getattr(sys.modules.get(top), "__version__", None)
    if isinstance(stated, str):
        return stated
    names = metadata.packages_distributions().get(top)
    return metadata.version(min(names)) if names else "unknown"


_T = TypeVar("_T", bound=type)

_PACKAGE = __name__.partition(".")[0]


def library_identity(identity: str) -> Callable[[_T], _T]:
    """Returns a decorator that sets the identity of a frozen dataclass, e.g. "back_from/1"."""

    def decorate(cls: _T) -> _T:
        cls.__own_identity__ = identity  # type: ignore[attr-defined]
        return cls

    return decorate


def library_identity_of(value: Any) -> tuple[str, tuple[Any, ...]] | None:
    """Returns the identity of an object's class and the object's fields; None without one."""
    identity = vars(type(value)).get("__own_identity__")
    if identity is None:
        return None
    return str(identity), tuple(getattr(value, each.name) for each in fields(value))


def public_name(module: str, qualname: str) -> str | None:
    """Returns the public name of an object of this project; None if it is not public.

    Args:
        qualname: the qualified name of the object; empty for the module itself.
    """
    return _public().get((module, qualname))


@cache
def _public() -> dict[tuple[str, str], str]:
    """Returns the public names, by module and qualified name."""
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
