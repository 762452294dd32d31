"""The private rows of a query of TPC-H, as written and as planned; a line of JSON.

Private are the rows of its parts, of its operator state and of its result. An aggregate stores
several numbers of each group as so many rows, which `by groups` counts as one; rows of the result
are not counted there, because they were requested. Shared are the rows of the inputs, arranged by
every key of a lookup: other queries look them up, too. Both are shown for each query in a session
of its own, and for all in one session, where a query looks up what others have arranged.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from internals import snapshot_of

import nosync_nb
from bench.r1 import IN_PROCESS
from bench.tpch.data import Tables, generated, read
from bench.tpch.epochs import declare
from bench.tpch.queries import SQL, stages
from nosync_nb.collections.definition import Definition
from nosync_nb.dataflow import compiler


def as_written(tree: Definition, *_: object) -> Definition:
    """Returns the plan without optimisation."""
    return tree


def kept(session: Any, name: str) -> dict[str, int]:
    """Returns the private rows of a query, also by groups, and those that inputs share."""
    snapshot = snapshot_of(session)
    own, rows = snapshot.graph.only_of({name}), {"private": 0, "by groups": 0, "shared": 0}
    for node in snapshot.graph:
        for number, _ in node.layouts():
            trace = snapshot.version.traces.get(number)
            held = None if trace is None else trace.consolidated()
            count = 0 if held is None else len(held)
            rows["private"] += count if number in own else 0
            rows["shared"] += count if node.operator is None else 0
            if held is not None and number in node.state:
                count = len(np.unique(held.khash))
            result = node.name == name and number not in node.state
            rows["by groups"] += count if number in own and not result else 0
    return rows


def loaded(
    names: Sequence[str], tables: Tables, folder: str, *, planned: bool
) -> dict[str, dict[str, int]]:
    """Returns the private rows of queries after the load of all tables in one session."""
    switch: Any = mock.patch.object(compiler, "plan_definition", as_written)
    with (
        nullcontext() if planned else switch,
        nosync_nb.open(Path(folder) / f"{'-'.join(names)}-{planned}", spark_rows=IN_PROCESS) as own,
    ):
        queries = stages(declare(own, tables))
        for name in names:
            own.stage(name, queries[name])
        for each, table in tables.items():
            own[each].insert(table)
        own.commit()
        return {name: kept(own, name) for name in names}


def main() -> None:
    """Loads each query three times, and prints its rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sf", type=float, default=0.1)
    parser.add_argument("--folder", type=Path, help="of the tables, instead of generated ones")
    parser.add_argument("--queries", nargs="+", default=["q3", "q5", "q10", "q18"])
    parser.add_argument("--decimals", action="store_true", help="instead of doubles")
    options = parser.parse_args()
    tables = read(options.folder or generated(options.sf), decimals=options.decimals)
    seen: dict[str, Mapping[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="nosync-bench-") as folder:
        together = loaded([*SQL], tables, folder, planned=True)
        for name in options.queries:
            written = loaded([name], tables, folder, planned=False)
            planned = loaded([name], tables, folder, planned=True)
            seen[name] = {
                "written": written[name],
                "planned": planned[name],
                "beside others": together[name],
            }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
