"""Which names the body of a `%%dd` cell binds at its top level.

Pure: from source trees to names. Loops, branches, `with`, tuples and the walrus bind in the cell;
functions, classes and comprehensions keep their names to themselves.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator


def bound_names(tree: ast.AST) -> list[str]:
    """Names bound by the statements of a module, in order of first appearance."""
    return list(dict.fromkeys(_bound(tree)))


def _bound(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
            for outer in _evaluated_outside(node):
                yield from _bound(outer)
        case ast.Lambda(args=arguments):
            yield from _bound_in_all([*arguments.defaults, *filter(None, arguments.kw_defaults)])
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            yield from _walrus(node)
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            for alias in names:
                yield (alias.asname or alias.name).split(".")[0]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
            yield name
            yield from _bound_in_all(ast.iter_child_nodes(node))
        case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            yield name
            yield from _bound_in_all(ast.iter_child_nodes(node))
        case ast.Assign() | ast.For() | ast.AsyncFor():
            yield from _bound_in_all(_in_order(node))
        case _:
            yield from _bound_in_all(ast.iter_child_nodes(node))


def _bound_in_all(nodes: Iterator[ast.AST] | list[ast.expr] | list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        yield from _bound(node)


def _in_order(node: ast.Assign | ast.For | ast.AsyncFor) -> list[ast.AST]:
    """The children in the order they run: what is assigned before what it is assigned to."""
    if isinstance(node, ast.Assign):
        return [node.value, *node.targets]
    return [node.iter, node.target, *node.body, *node.orelse]


def _evaluated_outside(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef,
) -> Iterator[ast.AST]:
    """Decorators, defaults and bases: the parts of a definition that run in the cell."""
    yield from node.decorator_list
    if isinstance(node, ast.ClassDef):
        yield from node.bases
        yield from node.keywords
    else:
        yield from node.args.defaults
        yield from filter(None, node.args.kw_defaults)


def _walrus(node: ast.AST) -> Iterator[str]:
    """Names a comprehension leaks: the targets of `:=`, not of `for`."""
    for child in ast.walk(node):
        if isinstance(child, ast.NamedExpr) and isinstance(child.target, ast.Name):
            yield child.target.id
