"""Fingerprints of functions: their code, their captured values, and the code of their callees.

The traversal starts at the function. It follows closures, defaults, attributes and the globals that
the code names, through the user's own modules. It writes one self-delimiting text. A function or
class that was visited before is written as its number, so recursion ends. Installed code is written
as its name and version. A function has a fingerprint only if the types of all captured values are
in a closed list (`canonical_values`).

The list also has these containers and objects: tuple, list, dict, set, frozenset, their variants in
`collections`, enums, named tuples and dataclasses of the user, and callable objects of the user's
classes.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import enum
import functools
import importlib
import operator
import sys
import types
import typing
from abc import ABC
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from nosync_nb.collections.functions.fingerprint import (
    canonical_code,
    canonical_values,
    code_origin,
)
from nosync_nb.collections.functions.fingerprint.canonical_values import (
    LRU_CACHED,
    UnsupportedValue,
    definition_digest,
    framed_bytes,
)

_DYNAMIC_LOOKUPS = frozenset({"eval", "exec", "globals", "locals", "vars", "__import__"})
_STANDARD_ATTRIBUTES = frozenset(
    {"__wrapped__", "__doc__", "__name__", "__qualname__", "__module__"}
)
_NATIVE = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
)
_REDUCED = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
_PLAIN_BASES = frozenset({object, tuple, ABC, typing.Generic, typing.Protocol})
_PLAIN_METACLASSES = frozenset({"abc", "builtins", "enum", "typing"})
_BOOKKEEPING = frozenset(  # attributes that Python adds to a class
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


@dataclass(frozen=True)
class FunctionIdentity:
    """The identity of a function, by which another kernel recognises it.

    Args:
        fingerprint: a text that is equal in every kernel for equal code and captured values. `None`
            means that the function is equal only to itself, in this kernel.
        reason: the reason why there is no fingerprint, in words for the user.
        versions: the installed packages that the function uses, with their versions.
        modules: the user's modules that the function uses, except `__main__`.
    """

    fingerprint: str | None
    reason: str | None = None
    versions: dict[str, str] = field(default_factory=dict, compare=False)
    modules: tuple[str, ...] = field(default=(), compare=False)


def function_fingerprint(function: Callable[..., Any]) -> FunctionIdentity:
    """Computes the fingerprint of a function, which identifies its behaviour.

    The fingerprint depends on the code, the defaults, captured values and globals, the user's
    helper functions, and the versions of installed packages. It does not depend on comments,
    docstrings, formatting, line numbers, the names of the function and its file, or the hash seed.

    Returns: a `FunctionIdentity` without fingerprint if a captured value has an unsupported type, a
    global is not yet defined, or the code looks up names at run time (`eval`).

    Cost: milliseconds for new code, plus O(size) of the captured values.
    """
    walk = FingerprintWriter()
    try:
        walk.value(function)
    except UnsupportedValue as verdict:
        subject = f"'{'.'.join(walk.path)}'" if walk.path else "it"
        return FunctionIdentity(None, f"{subject} {verdict}")
    except RecursionError:
        return FunctionIdentity(None, f"'{'.'.join(walk.path[:1])}' is nested too deeply")
    return FunctionIdentity(
        definition_digest(b"".join(walk.out)),
        None,
        dict(sorted(walk.versions.items())),
        tuple(sorted(walk.modules - {"__main__"})),
    )


class FingerprintWriter:
    """One traversal of a function.

    Attributes:
        out: the pieces of the text.
        path: the names that lead to the current value, for errors.
        versions: the versions of the installed packages that occur.
        modules: the user's modules that occur.
    """

    def __init__(self) -> None:
        self.out: list[bytes] = []
        self.path: list[str] = []
        self.versions: dict[str, str] = {}
        self.modules: set[str] = set()
        self._numbers: dict[int, int] = {}
        self._kept_alive: list[object] = []  # prevents ids from being reused
        self._ancestors: set[int] = set()

    def write(self, tag: str, text: str = "") -> None:
        """Appends one piece."""
        self.out.append(framed_bytes(tag, text.encode("utf-8", "surrogatepass")))

    @contextmanager
    def at(self, name: str) -> Iterator[None]:
        """Adds a name to the path during a block. After an error the name stays in the path."""
        depth = len(self.path)
        self.path.append(name)
        yield
        del self.path[depth:]

    def value(self, value: Any) -> None:
        """Writes a value whose type is in the closed list.

        Raises:
            UnsupportedValue: if the type is not in the list.
        """
        piece = canonical_values.scalar_bytes(value)
        if piece is None:
            piece = canonical_values.array_bytes(value)
        if piece is not None:
            self.out.append(piece)
        elif not (self._container(value) or self._callable(value) or self._object(value)):
            kind = type(value)
            name = kind.__qualname__
            if kind.__module__ not in ("builtins", "__main__"):
                name = f"{kind.__module__}.{name}"
            raise UnsupportedValue(
                f"is an object of type '{name}', which another kernel cannot identify"
            )

    def _container(self, value: Any) -> bool:
        """Writes a container of Python or Arrow; returns False for any other value."""
        kind = type(value)
        parts: Iterable[Any]
        if kind in (tuple, list, collections.deque):
            parts = value
        elif kind in (dict, collections.OrderedDict, collections.Counter):
            parts = (part for item in value.items() for part in item)
        elif kind is collections.defaultdict:
            parts = (value.default_factory, dict(value))
        elif kind is types.MappingProxyType:
            parts = (dict(value),)
        elif kind is types.SimpleNamespace:
            parts = (vars(value),)
        elif kind is slice:
            parts = (value.start, value.stop, value.step)
        elif kind in (set, frozenset):
            self.write(kind.__name__, str(len(value)))
            self.out += sorted(self._alone(v) for v in value)
            return True
        elif (pieces := canonical_values.arrow_parts(value)) is not None:
            parts = (part for piece in pieces for part in piece)
        else:
            return False
        if id(value) in self._ancestors:
            raise UnsupportedValue("is a container that contains itself")
        self._ancestors.add(id(value))
        self.write("(" + kind.__name__)
        for part in parts:
            self.value(part)
        self.write(")")
        self._ancestors.discard(id(value))
        return True

    def _alone(self, value: Any) -> bytes:
        """Returns the text of an element of a set, independent of the other elements."""
        walk = FingerprintWriter()
        walk.value(value)
        self.versions |= walk.versions
        self.modules |= walk.modules
        return b"".join(walk.out)

    def _callable(self, value: Any) -> bool:
        """Writes a function of any kind, a class or a module; returns False for other values."""
        if isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, type):
            _write_class(self, value)
        elif isinstance(value, types.ModuleType):
            self._module(value)
        elif isinstance(value, types.MethodType):
            self.write("method")
            self.value(value.__func__)
            if not self._object(value.__self__, called=True):
                self.value(value.__self__)
        elif type(value) is functools.partial:
            self.write("partial")
            for part in (value.func, value.args, dict(sorted(value.keywords.items()))):
                self.value(part)
        elif isinstance(value, LRU_CACHED):
            self.write("cached")
            self.value(value.__wrapped__)
        elif isinstance(value, _REDUCED):
            self.write(type(value).__name__)
            self.value(value.__reduce__()[1:])
        elif isinstance(value, _NATIVE):
            self.installed(value.__objclass__.__module__, value.__qualname__)
        elif isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType):
            self._builtin(value)
        else:
            return self._named(value)
        return True

    def _builtin(self, value: Any) -> None:
        """Writes a function that is implemented in C, or a bound method of a value."""
        owner = getattr(value, "__self__", None)
        if owner is None or isinstance(owner, types.ModuleType):
            self.installed(value.__module__ or "builtins", value.__qualname__)
        else:
            self.write("bound", value.__name__)
            self.value(owner)

    def _named(self, value: Any) -> bool:
        """Writes an object that an installed module has under its own name, such as a ufunc.

        Returns False for any other object.
        """
        name = getattr(value, "__name__", None)
        module = getattr(value, "__module__", None) or type(value).__module__
        if not isinstance(name, str) or not isinstance(module, str):
            return False
        for home in (module, module.partition(".")[0]):
            if getattr(sys.modules.get(home), name, None) is value and code_origin.code_version(
                home
            ):
                self.installed(home, name)
                return True
        return False

    def _object(self, value: Any, *, called: bool = False) -> bool:
        """Writes an enum, a named tuple, a dataclass, a library function or a callable object.

        Returns False for any other object.

        Args:
            called: True if the object is the owner of a method that is called.
        """
        ours = code_origin.library_identity_of(value)
        if ours is not None:
            identity, parts = ours
            self.write("own", identity)
            self.value(parts)
            return True
        if isinstance(value, enum.Enum):
            self.write("member", str(value.name))
            self.value(type(value))
            self.value(value.value)
            return True
        state = _object_fields(value, called=called)
        if state is None:
            return False
        if self.seen(value):
            return True
        self.write("object")
        self.value(type(value))
        for name, part in state:
            self.write("field", name)
            with self.at(name):
                self.value(part)
        self.write("end")
        return True

    def seen(self, value: object) -> bool:
        """Writes the number of an object, and returns True, if the object was visited before.

        Otherwise it assigns a number to the object, and returns False.
        """
        number = self._numbers.get(id(value))
        if number is not None:
            self.write("again", str(number))
            return True
        self._numbers[id(value)] = len(self._numbers)
        self._kept_alive.append(value)
        return False

    def installed(self, module: str, name: str) -> None:
        """Writes a reference to installed code, by module, name and version."""
        version = code_origin.code_version(module)
        if version is None:
            raise UnsupportedValue(f"is '{name}' of module '{module}', whose code is not available")
        if version == "engine":
            public = code_origin.public_name(module, name)
            if public is None:
                raise UnsupportedValue(
                    f"is '{name}' of module '{module}', which is not part of the public API"
                )
            self.write("own", public)
            return
        if version != "python":
            self.versions[module.partition(".")[0]] = version
        self.write("installed", f"{module} {name} {version}")

    def _function(self, function: types.FunctionType) -> None:
        """Writes a function that is implemented in Python."""
        if self.seen(function):
            return
        module, version = code_origin.version_of_globals(function.__globals__)
        if version is not None:
            if self._named(function):
                return
            code = function.__code__
            self.installed(module, f"{code.co_qualname}:{code.co_firstlineno}")
            if "<locals>" not in code.co_qualname:
                return
        else:
            self.modules.add(module)
            self.write(
                "function", canonical_code.canonical_code(function.__code__, function.__globals__)
            )
        with self.at("defaults"):
            self.value(function.__defaults__)
            self.value(function.__kwdefaults__)
        extra = {k: v for k, v in vars(function).items() if k not in _STANDARD_ATTRIBUTES}
        if extra:
            self.value(dict(sorted(extra.items())))
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            self.write("cell", name)
            with self.at(name):
                self._cell(cell)
        if version is None:
            self._globals(function)
        self.write("end")

    def _cell(self, cell: types.CellType) -> None:
        """Writes a captured variable, which may not be bound yet."""
        try:
            content = cell.cell_contents
        except ValueError:
            self.write("empty")
        else:
            self.value(content)

    def _globals(self, function: types.FunctionType) -> None:
        """Writes the globals and imports that a function's code names."""
        used = canonical_code.external_names(function.__code__)
        for name in sorted(used.assigned):
            raise UnsupportedValue(f"assigns the global '{name}'")
        for path in sorted(used.names):
            self.write("global", ".".join(path))
            with self.at(path[0]):
                self._global(function, path)
        for level, name, wanted in sorted(used.imports):
            self.write("import", f"{level} {name}")
            with self.at(name):
                self._import(function, level, name, wanted)

    def _global(self, function: types.FunctionType, path: tuple[str, ...]) -> None:
        """Writes the value of a global; of a user's module only the attribute that is used."""
        name, *attributes = path
        space = function.__globals__
        if name not in space:
            own = function.__builtins__  # type: ignore[attr-defined, unused-ignore]
            if name in _DYNAMIC_LOOKUPS:
                raise UnsupportedValue("looks up names that are only known at run time")
            if name not in own:
                raise UnsupportedValue("is not defined yet")
            if own[name] is getattr(builtins, name, None):
                return
            self.value(own[name])
            return
        self._attribute(space[name], attributes)

    def _attribute(self, value: Any, attributes: list[str]) -> None:
        """Writes an attribute of a user's module, or the whole value if it is no such module."""
        for name in attributes:
            if (
                not isinstance(value, types.ModuleType)
                or code_origin.version_of_module(value) is not None
            ):
                break
            self.modules.add(value.__name__)
            self.path.append(name)
            if not hasattr(value, name):
                raise UnsupportedValue("is not defined yet")
            value = getattr(value, name)
        self.value(value)

    def _import(
        self, function: types.FunctionType, level: int, name: str, wanted: tuple[str, ...]
    ) -> None:
        """Writes the objects that an import statement inside a function imports."""
        if level:
            package = function.__globals__.get("__package__") or ""
            name = importlib.util.resolve_name("." * level + name, package)
        version = code_origin.code_version(name)
        if version == "engine":
            return  # because the name is part of the code that imports it
        if version is not None:
            self.installed(name, "")
            return
        try:
            module = importlib.import_module(name)
        except ImportError:
            self.write("missing")
            return
        if not wanted or "*" in wanted:
            self.value(module)
        for each in sorted(set(wanted) - {"*"}):
            self.write("from", each)
            if not hasattr(module, each):
                with suppress(ImportError):
                    importlib.import_module(f"{name}.{each}")
            self._attribute(module, [each])

    def _module(self, module: types.ModuleType) -> None:
        """Writes a module that is used as a value: an installed one by version, others in full."""
        version = code_origin.version_of_module(module)
        if version is not None:
            self.installed(module.__name__, "")
            return
        if self.seen(module):
            return
        self.modules.add(module.__name__)
        self.write("module", module.__name__)
        for name, value in sorted(vars(module).items()):
            if not (name.startswith("__") and name.endswith("__")):
                self.write("name", name)
                with self.at(name):
                    self.value(value)
        self.write("end")


def _write_class(walk: FingerprintWriter, cls: type) -> None:
    """Writes a class: an installed one by name and version, the user's with all attributes.

    Raises:
        UnsupportedValue: if an attribute or the metaclass is outside the closed list.
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
        walk.write("hint", f"{name} {_annotation_text(note)}")
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
        if name not in _BOOKKEEPING and not _is_generated(cls, name, value):
            walk.write("attribute", name)
            with walk.at(name):
                _write_attribute(walk, value)
    walk.write("end")


def _write_fields(walk: FingerprintWriter, cls: Any) -> None:
    """Writes the fields that the generated methods of a dataclass depend on."""
    walk.write("dataclass", repr(cls.__dataclass_params__))
    for each in dataclasses.fields(cls):
        flags = (each.init, each.repr, each.compare, each.hash, each.kw_only)
        walk.write("field", f"{each.name} {flags}")
        for given in (each.default, each.default_factory):
            if given is not dataclasses.MISSING:
                with walk.at(each.name):
                    walk.value(given)


def _write_attribute(walk: FingerprintWriter, value: Any) -> None:
    """Writes an attribute of a class; of a descriptor, its functions."""
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


def _is_generated(cls: type, name: str, value: Any) -> bool:
    """Returns True if Python generated this attribute from parts that are written already."""
    if isinstance(value, _SLOTS) or type(value).__name__ == "_tuplegetter":
        return True
    if issubclass(cls, enum.Enum):
        if name in cls.__members__ or isinstance(value, enum.property):
            return True
        if name.startswith("_") and name.endswith("_") and not _is_user_code(value):
            return True
    function = getattr(value, "__func__", value)
    function = getattr(function, "__wrapped__", function)
    if not isinstance(function, types.FunctionType):
        return False
    if issubclass(cls, tuple) and not _is_user_code(function):
        return True
    return dataclasses.is_dataclass(cls) and function.__code__.co_filename == "<string>"


def _is_user_code(function: Any) -> bool:
    """Returns True if a function of a class is in the user's code, not generated or installed."""
    if not isinstance(function, types.FunctionType):
        return False
    name, version = code_origin.version_of_globals(function.__globals__)
    return version is None and not name.startswith("namedtuple_")


def _annotation_text(note: Any) -> str:
    """Returns the text of an annotation."""
    return note if isinstance(note, str) else getattr(note, "__qualname__", repr(note))


def _object_fields(value: Any, *, called: bool = False) -> list[tuple[str, Any]] | None:
    """Returns the fields of an object that consists of its fields only; None for other objects.

    Such objects are instances of the user's classes: named tuples, dataclasses and objects with
    `__call__`.

    Args:
        called: True if the object is the owner of a method that is called, and counts as callable.
    """
    cls = type(value)
    classes = [c for c in cls.__mro__ if c not in _PLAIN_BASES]
    if not classes or any(code_origin.code_version(c.__module__) is not None for c in classes):
        return None
    if isinstance(value, tuple):
        if not hasattr(cls, "_fields"):
            return None
        return list(zip(cls._fields, value, strict=True))
    called = called or any("__call__" in vars(c) for c in classes)
    if not (called or dataclasses.is_dataclass(cls)):
        return None
    attributes = dict(getattr(value, "__dict__", {}))
    for each in classes:
        for name, slot in vars(each).items():
            if isinstance(slot, types.MemberDescriptorType) and hasattr(value, name):
                attributes[name] = getattr(value, name)
    return sorted(attributes.items())
