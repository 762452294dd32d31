"""Canonical form of the user's classes, and which objects are nothing but their fields."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from abc import ABC
from typing import TYPE_CHECKING, Any

from nosync_nb.collections.functions.fingerprint import code_origin
from nosync_nb.collections.functions.fingerprint.canonical_values import UnsupportedValue

if TYPE_CHECKING:
    from nosync_nb.collections.functions.fingerprint.code import FingerprintWriter

_PLAIN_BASES = frozenset({object, tuple, ABC, typing.Generic, typing.Protocol})
_PLAIN_METACLASSES = frozenset({"abc", "builtins", "enum", "typing"})
_BOOKKEEPING = frozenset(  # what Python keeps in a class, beside what the user wrote
    """
    __module__ __qualname__ __name__ __doc__ __dict__ __weakref__ __firstlineno__ __slots__
    __static_attributes__ __annotations__ __annotate__ __annotate_func__
    __annotations_cache__ __orig_bases__ __parameters__ __type_params__ __abstractmethods__
    _abc_impl __classcell__ __match_args__ __dataclass_fields__ __dataclass_params__
    _is_protocol _is_runtime_protocol __protocol_attrs__ __non_callable_proto_members__
    __callable_proto_members_only__ _fields _field_defaults
    """.split()  # noqa: SIM905 - a list literal of these takes a screen
)
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)


def write_class_fingerprint(walk: FingerprintWriter, cls: type) -> None:
    """Writes a class: installed ones by name and version, the user's with all they define.

    Raises:
        Unlisted: if an attribute or the metaclass is outside the closed list.
    """
    version = code_origin.code_version(cls.__module__)
    if version is not None and cls.__module__ != "__main__":
        walk.installed(cls.__module__, cls.__qualname__)
        if "<locals>" in cls.__qualname__:
            raise UnsupportedValue(f"is a class made by {cls.__module__}")
        return
    if walk.seen(cls):
        return
    if type(cls).__module__ not in _PLAIN_METACLASSES:
        raise UnsupportedValue(f"is a class whose metaclass is {type(cls).__qualname__!r}")
    walk.modules.add(cls.__module__)
    walk.write("class", cls.__name__)
    for base in cls.__bases__:
        walk.value(base)
    for name, note in sorted(vars(cls).get("__annotations__", {}).items()):
        walk.write("hint", f"{name} {_hint(note)}")
    if dataclasses.is_dataclass(cls):
        _write_fields(walk, cls)
    elif issubclass(cls, tuple) and hasattr(cls, "_fields"):
        walk.value(cls._fields)
        walk.value(cls._field_defaults)  # type: ignore[attr-defined]
    if issubclass(cls, enum.Enum):
        for name, member in cls.__members__.items():
            walk.write("member", name)
            walk.value(member.value)
    for name, value in sorted(vars(cls).items()):
        if name not in _BOOKKEEPING and not _generated(cls, name, value):
            walk.write("attribute", name)
            with walk.at(name):
                _write_attribute(walk, value)
    walk.write("end")


def _write_fields(walk: FingerprintWriter, cls: Any) -> None:
    """Writes what the generated methods of a dataclass depend on."""
    walk.write("dataclass", repr(cls.__dataclass_params__))
    for field in dataclasses.fields(cls):
        flags = (field.init, field.repr, field.compare, field.hash, field.kw_only)
        walk.write("field", f"{field.name} {flags}")
        for given in (field.default, field.default_factory):
            if given is not dataclasses.MISSING:
                with walk.at(field.name):
                    walk.value(given)


def _write_attribute(walk: FingerprintWriter, value: Any) -> None:
    """Writes an attribute of a class, looking into descriptors."""
    parts: tuple[Any, ...]
    if isinstance(value, property):
        parts = (value.fget, value.fset, value.fdel)
    elif isinstance(value, staticmethod | classmethod):
        parts = (value.__func__,)
    elif isinstance(value, functools.cached_property):
        parts = (value.func,)
    else:
        walk.value(value)
        return
    walk.write(type(value).__name__)
    for part in parts:
        walk.value(part)


def _generated(cls: type, name: str, value: Any) -> bool:
    """Whether Python made this attribute from what was already written."""
    if isinstance(value, _SLOTS) or type(value).__name__ == "_tuplegetter":
        return True
    if issubclass(cls, enum.Enum):
        if name in cls.__members__ or isinstance(value, enum.property):
            return True
        if name.startswith("_") and name.endswith("_") and not _written(value):
            return True
    function = getattr(value, "__func__", value)
    function = getattr(function, "__wrapped__", function)
    if not isinstance(function, types.FunctionType):
        return False
    if issubclass(cls, tuple) and not _written(function):
        return True
    return dataclasses.is_dataclass(cls) and function.__code__.co_filename == "<string>"


def _written(function: Any) -> bool:
    """Whether a function of a class was written by the user."""
    if not isinstance(function, types.FunctionType):
        return False
    name, version = code_origin.version_of_globals(function.__globals__)
    return version is None and not name.startswith("namedtuple_")


def _hint(note: Any) -> str:
    """The text of an annotation."""
    return note if isinstance(note, str) else getattr(note, "__qualname__", repr(note))


def object_fields(value: Any, *, called: bool = False) -> list[tuple[str, Any]] | None:
    """The fields of an object that is nothing but its fields; None for any other object.

    These are named tuples and dataclasses of the user's classes, and objects of the user's
    classes that are called: those with `__call__`, or with `called` the owner of a method.
    """
    cls = type(value)
    own = [c for c in cls.__mro__ if c not in _PLAIN_BASES]
    if not own or any(code_origin.code_version(c.__module__) is not None for c in own):
        return None
    if isinstance(value, tuple):
        if not hasattr(cls, "_fields"):
            return None
        return list(zip(cls._fields, value, strict=True))
    called = called or any("__call__" in vars(c) for c in own)
    if not (called or dataclasses.is_dataclass(cls)):
        return None
    attributes = dict(getattr(value, "__dict__", {}))
    for each in own:
        for name, slot in vars(each).items():
            if isinstance(slot, types.MemberDescriptorType) and hasattr(value, name):
                attributes[name] = getattr(value, name)
    return sorted(attributes.items())
