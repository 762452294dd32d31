"""Runs the body of a `%%dd` cell as if it were the cell.

The body is IPython code in the user's namespace; line 1 of the cell is the magic, so the lines of
tracebacks are those the reader sees. If it raises, the names it binds are what they were before.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nosync.names import bound_names
from nosync.shorten import BODY

_MISSING = object()


class Body:
    """The compiled body of one cell.

    Args:
        shell: the InteractiveShell.
        line: the options after `%%dd`, for the source shown in tracebacks.
        source: the cell without its first line.
        number: the cell's execution count.
    """

    def __init__(self, shell: Any, line: str, source: str, *, number: int) -> None:
        self._shell = shell
        code = shell.transform_cell(source)
        self._file = shell.compile.cache(f"%%dd {line}".rstrip() + "\n" + code, number)
        try:
            tree = shell.compile.ast_parse("\n" + code, filename=self._file)
        except SyntaxError as error:
            setattr(error, BODY, True)
            raise
        tree = shell.transform_ast(tree)
        self.names = bound_names(tree)
        last = tree.body[-1] if tree.body else None
        self._value: ast.Expression | None = None
        if isinstance(last, ast.Expr):
            self._value = ast.Expression(last.value)
            tree.body.pop()
        self._tree = tree

    def run(self) -> Any:
        """Runs the statements; returns the value of a last expression, else None."""
        __tracebackhide__ = True
        names = self._shell.user_ns
        exec(self._shell.compile(self._tree, self._file, "exec"), self._shell.user_global_ns, names)
        if self._value is None:
            return None
        code = self._shell.compile(self._value, self._file, "eval")
        return eval(code, self._shell.user_global_ns, names)

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Gives the body's names their old values back if the block raises."""
        __tracebackhide__ = True
        names = self._shell.user_ns
        before = {name: names.get(name, _MISSING) for name in self.names}
        try:
            yield
        except BaseException:
            for name, value in before.items():
                if value is _MISSING:
                    names.pop(name, None)
                else:
                    names[name] = value
            raise
