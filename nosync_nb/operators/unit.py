"""One row that never changes: the source of a query without inputs."""

from __future__ import annotations

import numpy as np

from nosync_nb.expressions import Types
from nosync_nb.operators.base import Operator, Step
from nosync_nb.operators.spec import DefinitionPart, Spec, every_column
from nosync_nb.trace.batch import Layout, Updates


class Unit(Operator):
    """Returns one row in its first epoch."""

    name = "unit"
    types = ("boolean",)
    layouts = ()
    global_row = True
    spreads = False

    def step(self, step: Step) -> Updates | None:
        if not step.first:
            return None
        return Updates([np.ones(1, bool)], np.ones(1, np.int64))

    def exchange(self) -> Layout | None:
        return None


def _build(part: DefinitionPart, types: Types | None) -> Operator:
    return Unit()


SPEC = Spec("unit", every_column, build=_build)
