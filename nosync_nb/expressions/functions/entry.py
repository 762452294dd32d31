"""The entries of the table of functions that are not rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nosync_nb.expressions.evaluation.nodes import StrictNode, ValueNode
from nosync_nb.expressions.implicit_casts import NotProvedError, implicit, literal_value
from nosync_nb.expressions.kernels.kernel import Kernel, TextKernel
from nosync_nb.expressions.typing_rules import NUMBERS, TIMES, is_decimal
from nosync_nb.rows.ddl import INTERVALS

OF_BYTES = (("binary",),)
"""Types refused by functions that have a separate form for bytes."""
OF_TEXT = ((*NUMBERS, *TIMES, *INTERVALS, "decimal", "boolean", "binary"),)
"""Types refused by functions to which Spark casts nothing."""
OF_DAYS = ((), ("bigint", "float", "double", "decimal"))
"""Types refused by functions that add days to a date."""


@dataclass(frozen=True)
class Function:
    """A strict function of fixed types.

    Attributes:
        parameters: the types of its arguments, the last `optional` of which may be missing.
        literals: positions of arguments that must be literals.
        refused: for each argument the types that Spark does not cast to its parameter.
    """

    parameters: tuple[str, ...]
    result: str
    kernel: Kernel | TextKernel
    optional: int = 0
    literals: tuple[int, ...] = ()
    refused: tuple[tuple[str, ...], ...] = ()

    def bind(self, name: str, arguments: Sequence[ValueNode], utc: bool) -> ValueNode:
        """Returns the call.

        Raises:
            NotProvedError: if the arguments do not fit.
        """
        least = len(self.parameters) - self.optional
        if not least <= len(arguments) <= len(self.parameters):
            raise NotProvedError(f"{name} of {len(arguments)} arguments")
        for argument, refused in zip(arguments, self.refused, strict=False):
            if argument.type in refused or ("decimal" in refused and is_decimal(argument.type)):
                raise NotProvedError(f"{name} of a {argument.type}")
        cast = [implicit(a, p, utc=utc) for a, p in zip(arguments, self.parameters, strict=False)]
        for i in self.literals:
            if i < len(cast):
                literal_value(cast[i], f"an argument of {name}")
        return StrictNode(name, self.result, self.kernel, cast)
