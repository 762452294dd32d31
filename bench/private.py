"""What a query of TPC-H keeps for itself, as it is written and as it is planned; a line of JSON.

Private are the rows of its parts, of what its operators remember and of its result. Shared are
those of the inputs, by every key that they are looked up by: other queries look them up, too.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import nosync_nb
from bench.r1 import IN_PROCESS
from bench.tpch import declare
from bench.tpch_data import Tables, generated, read
from bench.tpch_queries import stages
from nosync_nb.collections.definition import Definition
from nosync_nb.dataflow import compiler
from nosync_nb.session.session import owners_of


def as_written(tree: Definition, types: object) -> Definition:
    """The plan of who has none."""
    return tree


def kept(session: Any) -> dict[str, int]:
    """The rows that are private and shared in a session of one query."""
    snapshot = owners_of(session).publisher.snapshot
    rows = {"private": 0, "shared": 0}
    for node in snapshot.graph:
        of = "shared" if node.operator is None else "private"
        for number, _ in node.layouts():
            trace = snapshot.version.traces.get(number)
            rows[of] += 0 if trace is None else len(trace.consolidated())
    return rows


def loaded(name: str, tables: Tables, folder: str, *, planned: bool) -> dict[str, int]:
    """What one query keeps after the load of all tables."""
    switch: Any = mock.patch.object(compiler, "planned", as_written)
    with (
        nullcontext() if planned else switch,
        nosync_nb.open(Path(folder) / f"{name}-{planned}", spark_rows=IN_PROCESS) as session,
    ):
        query = stages(declare(session, tables))[name]
        session.stage(name, query)
        for each, table in tables.items():
            session[each].insert(table)
        session.commit()
        return kept(session)


def main() -> None:
    """Loads each query twice, and prints what it keeps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sf", type=float, default=0.1)
    parser.add_argument("--folder", type=Path, help="of the tables, instead of generated ones")
    parser.add_argument("--queries", nargs="+", default=["q3", "q5", "q10", "q18"])
    options = parser.parse_args()
    tables = read(options.folder or generated(options.sf))
    seen: dict[str, Mapping[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="nosync-bench-") as folder:
        for name in options.queries:
            written = loaded(name, tables, folder, planned=False)
            seen[name] = {
                "written": written,
                "planned": loaded(name, tables, folder, planned=True),
            }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
