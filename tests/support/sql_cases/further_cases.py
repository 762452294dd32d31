"""The cases of further modules of the table, each a module of its own beside this one.

They are held against Spark as those of expression_cases.py are, all of them in soaks and some in
each run; what is computed here must be what was held against Spark. Run as a program, it records
what is computed; do so only if test_functions_further.py has passed with all of them.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from nosync_nb.expressions import Expression, compile_expression
from sql_cases import datetime_cases, number_format_cases
from sql_cases.expression_cases import Case
from sql_cases.expression_frames import Mask, digest, evaluated, values

MODULES = (datetime_cases, number_format_cases)
RECORD = Path(__file__).parents[2] / "data" / "expressions_further.json"


def further() -> list[Case]:
    """Every case once."""
    return list(dict.fromkeys(Case(*case) for module in MODULES for case in module.every()))


@cache
def computed() -> list[tuple[Case, Expression, Any, Mask | None]]:
    """The cases that are evaluated here, with their values and the rows that do not raise."""
    own = values()
    made = [(c, compile_expression(c.sql, own.schema, types=lambda *_: ["int"])) for c in further()]
    return [(case, e, *evaluated(e, own.columns, own.n)) for case, e in made if e.local]


def digests_of_further() -> dict[str, str]:
    """For each case its type and a digest of its values and of the rows that raise."""
    made = {case.sql: "left to Spark" for case in further()}
    return made | {case.sql: digest(e, column, fine) for case, e, column, fine in computed()}


if __name__ == "__main__":
    RECORD.write_text(json.dumps(digests_of_further(), indent=0, ensure_ascii=False) + "\n")
