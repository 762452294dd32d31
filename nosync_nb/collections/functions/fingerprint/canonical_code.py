"""The canonical form of a function's code: its syntax tree, or its bytecode without a source text.

The syntax tree is preferred, because it depends only on the source text. Bytecode also changes with
line breaks (jumps are threaded only within a line) and with the minor version of Python. The form
omits comments, docstrings, formatting, positions, file names and the name of the function.

Failure: 1. A module is imported. 2. Its file is edited. 3. A cell is run again: the text found by
file name and line is not the code that runs. Data of the old code would be taken for data of the
new one. Hence a tree counts only if compiling its text gives exactly the code in memory; else the
form is the bytecode, without line numbers: stable on one minor version of Python.
"""

from __future__ import annotations
import __future__

import ast
import dis
import linecache
import sys
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple

_FUTURES = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})

_FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
_SKIPPED = frozenset({"type_comment", "kind", "ctx"})
_UNSTABLE = frozenset({"NOP", "CACHE", "EXTENDED_ARG", "RESUME"})
_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})


class ExternalNames(NamedTuple):
    """The names outside of a function to which its code refers.

    Args:
        names: global names, each followed by the attributes that are read from it directly.
        imports: the import statements as (level, module, names).
        assigned: the global names that the code binds or deletes.
    """

    names: frozenset[tuple[str, ...]]
    imports: frozenset[tuple[int, str, tuple[str, ...]]]
    assigned: frozenset[str]


def canonical_code(code: CodeType, module_globals: dict[str, Any]) -> str:
    """Returns the canonical text of a function's code, without its captured values."""
    node = _source_tree(code, module_globals)
    if node is not None:
        return "ast " + _function_text(node)
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"bytecode {minor} " + _bytecode_text(code)


def external_names(code: CodeType) -> ExternalNames:
    """Returns the globals and imports of a code object and of all code nested in it."""
    names: set[tuple[str, ...]] = set()
    imports: set[tuple[int, str, tuple[str, ...]]] = set()
    assigned: set[str] = set()
    for each in _nested(code):
        _add_names(each, names, imports, assigned)
    return ExternalNames(frozenset(names), frozenset(imports), frozenset(assigned))


def _add_names(
    code: CodeType,
    names: set[tuple[str, ...]],
    imports: set[tuple[int, str, tuple[str, ...]]],
    assigned: set[str],
) -> None:
    """Adds the names in the instructions of one code object."""
    instructions = [i for i in dis.get_instructions(code) if i.opname not in _UNSTABLE]
    constants: list[Any] = []
    for at, instruction in enumerate(instructions):
        name = instruction.opname
        if name in _GLOBAL:
            path = [str(instruction.argval)]
            for after in instructions[at + 1 :]:
                if after.opname not in _ATTRIBUTE:
                    break
                path.append(str(after.argval))
            names.add(tuple(path))
        elif name in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            assigned.add(str(instruction.argval))
        elif name.startswith("LOAD_CONST") or name == "LOAD_SMALL_INT":
            constants.append(instruction.argval)
        elif name == "IMPORT_NAME":
            level, wanted = constants[-2:]
            imports.add((int(level), str(instruction.argval), tuple(wanted or ())))


def _nested(code: CodeType) -> Iterator[CodeType]:
    """Yields a code object and all code objects that are nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


@lru_cache(maxsize=16)
def _parsed(text: str, flags: int) -> tuple[ast.Module, dict[tuple[int, str], list[CodeType]]]:
    """Returns the syntax tree of a source text, and its code objects by first line and name."""
    tree = ast.parse(text)
    code = compile(tree, "<text>", "exec", flags=flags, dont_inherit=True)
    index: dict[tuple[int, str], list[CodeType]] = {}
    for each in _nested(code):
        index.setdefault((each.co_firstlineno, each.co_name), []).append(each)
    return tree, index


def _source_tree(code: CodeType, module_globals: dict[str, Any]) -> _FunctionNode | None:
    """Returns the syntax tree from which exactly this code was compiled; None if unknown."""
    text = "".join(linecache.getlines(code.co_filename, module_globals))
    if not text:
        return None
    if text.startswith("%%"):
        text = "#" + text  # because a cell magic runs the body of its cell unchanged
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | (code.co_flags & _FUTURES)
    try:
        tree, index = _parsed(text, flags)
    except (SyntaxError, ValueError, RecursionError):
        return None
    if not any(_is_same_code(code, c) for c in index.get((code.co_firstlineno, code.co_name), ())):
        return None
    nodes = [node for node in ast.walk(tree) if _starts_at(node, code)]
    if len(nodes) > 1:
        nodes = _innermost(nodes, code)
    return nodes[0] if len(nodes) == 1 else None  # type: ignore[return-value]


def _is_same_code(one: CodeType, other: CodeType) -> bool:
    """Returns True if two code objects come from the same text at the same position.

    NOTE: Python's own `==` also compares the counters of code that has run (3.11).
    """
    for name in ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags"):
        if getattr(one, name) != getattr(other, name):
            return False
    if list(one.co_positions()) != list(other.co_positions()):
        return False
    if len(one.co_consts) != len(other.co_consts):
        return False
    for a, b in zip(one.co_consts, other.co_consts, strict=True):
        if isinstance(a, CodeType) and isinstance(b, CodeType):
            if not _is_same_code(a, b):
                return False
        elif _constant_text(a) != _constant_text(b):
            return False
    return True


def _starts_at(node: ast.AST, code: CodeType) -> bool:
    """Returns True if a node is a function with the name and the first line of a code object."""
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        return code.co_name == node.name and first == code.co_firstlineno
    return False


def _innermost(nodes: list[ast.AST], code: CodeType) -> list[ast.AST]:
    """Selects the innermost of several functions on a line that contains all instructions."""
    spans = [
        (line, column, end_line, end_column)
        for line, end_line, column, end_column in code.co_positions()
        if line is not None
        and end_line is not None
        and column is not None
        and end_column is not None
        and (line, column) < (end_line, end_column)
    ]
    if not spans:
        return []
    first = min(span[:2] for span in spans)
    last = max(span[2:] for span in spans)
    around = []
    for node in nodes:
        body = node.body if isinstance(node, ast.Lambda) else node
        start = (body.lineno, body.col_offset)  # type: ignore[attr-defined]
        end = (body.end_lineno, body.end_col_offset)  # type: ignore[attr-defined]
        if start <= first and last <= end:
            around.append((start, node))
    return [max(around, key=lambda pair: pair[0])[1]] if around else []


def _function_text(node: _FunctionNode) -> str:
    """Returns the text of a function: its arguments and body.

    Decorators are omitted, because their effect is in the function that they return.
    """
    kind = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    body = [_tree_text(node.body)] if isinstance(node, ast.Lambda) else _body_texts(node)
    form = "lambda" if isinstance(node, ast.Lambda) else "def"
    return f"{kind}{form}({_tree_text(node.args)})[{','.join(body)}]"


def _body_texts(node: ast.AST) -> list[str]:
    """Returns the texts of the statements of a body, without its docstring."""
    body: list[ast.stmt] = node.body  # type: ignore[attr-defined]
    first = body[0] if body else None
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        body = body[1:]
    return [_tree_text(statement) for statement in body]


def _tree_text(node: Any) -> str:
    """Returns the text of a tree like `ast.dump`, without empty fields, positions, docstrings."""
    if isinstance(node, list):
        return f"[{','.join(map(_tree_text, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    parts = []
    for field, value in ast.iter_fields(node):
        if field in _SKIPPED or value == []:
            continue
        if value is None and not isinstance(node, ast.Constant):
            continue
        if field == "body" and isinstance(node, _DOCUMENTED):
            parts.append(f"body=[{','.join(_body_texts(node))}]")
        else:
            parts.append(f"{field}={_tree_text(value)}")
    return f"{type(node).__name__}({','.join(parts)})"


def _bytecode_text(code: CodeType) -> str:
    """Returns the instructions of a code object by name, with constants and jump targets."""
    instructions = list(dis.get_instructions(code))
    number = {}
    kept: list[dis.Instruction] = []
    for instruction in instructions:
        number[instruction.offset] = len(kept)  # because a jump may target a dropped instruction
        if instruction.opname not in _UNSTABLE:
            kept.append(instruction)
    jumps = {*dis.hasjrel, *dis.hasjabs}
    lines = [
        f"arguments {code.co_argcount} {code.co_posonlyargcount} {code.co_kwonlyargcount}"
        f" {code.co_flags & 0xFF:x} {code.co_varnames!r}"
    ]
    for each in kept:
        if each.opcode in jumps:
            lines.append(f"{each.opname} -> {number.get(each.argval, each.argval)}")
        elif each.opcode in dis.hasconst:
            lines.append(f"{each.opname} {_constant_text(each.argval)}")
        else:
            lines.append(f"{each.opname} {each.argrepr or each.arg}")
    lines.append(code.co_exceptiontable.hex())
    return "\n".join(lines)


def _constant_text(value: Any) -> str:
    """Returns the text of a constant; a frozenset is sorted, because its order is not stable."""
    if isinstance(value, CodeType):
        return f"code {value.co_name} {{{_bytecode_text(value)}}}"
    if isinstance(value, frozenset):
        return f"frozenset({sorted(map(_constant_text, value))})"
    if isinstance(value, tuple):
        return f"({','.join(map(_constant_text, value))})"
    return f"{type(value).__name__} {value!r}"
