"""Tables that Spark exported: loaded again as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from checks.round_trips import CASES

import nosync_nb

pytestmark = pytest.mark.spark

LENGTH = max(len(case.values) for case in CASES.values())


def columns() -> dict[str, pa.Array]:
    """The cases as columns of one length, filled with null."""
    arrays = {name: case.array for name, case in CASES.items()}
    return {
        name: pa.concat_arrays([array, pa.nulls(LENGTH - len(array), array.type)])
        for name, array in arrays.items()
    }


def test_exported_dataframe_is_loaded_again_unchanged(spark: Any, tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        ddl = [f"c{i} {case.type}" for i, case in enumerate(CASES.values())]
        source = session.input("source", ", ".join(ddl))
        source.insert(pa.table([*columns().values()], names=source.schema.names))
        session.commit()
        frame = source.to_spark()
        assert source.set(frame) == 0
        session.discard()

        plain = [each for each in ddl if "year" not in each]  # months leave Spark in no export
        names = [each.partition(" ")[0] for each in plain]
        copy = session.input("copy", ", ".join(plain))
        copy.insert(frame.select(*names).toArrow())
        session.commit()
        assert copy.set(source.to_arrow().select(names)) == 0
