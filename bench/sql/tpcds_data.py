"""Writes tables and texts of TPC-DS, as DuckDB's extension `tpcds` makes them, to a folder.

The interpreter is that of the bench, in which `duckdb-extension-tpcds` and its DuckDB are
installed: nothing of it is in this repository.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import duckdb


def extension() -> Path:
    """Returns the file of the extension that belongs to this DuckDB."""
    import duckdb_extension_tpcds

    folder = Path(next(iter(duckdb_extension_tpcds.__path__)))
    return next(folder.rglob("tpcds.duckdb_extension"))


def main() -> None:
    """Makes the tables and writes them beside the 99 texts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sf", type=float, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    base = duckdb.connect(config={"allow_unsigned_extensions": True})
    base.execute(f"load '{extension()}'")
    base.execute(f"call dsdgen(sf={options.sf})")
    options.folder.mkdir(parents=True)
    for (name,) in base.execute("select table_name from information_schema.tables").fetchall():
        base.execute(f"copy {name} to '{options.folder / name}.parquet' (format parquet)")
    for number, text in base.execute("select query_nr, query from tpcds_queries()").fetchall():
        (options.folder / f"q{number:02d}.sql").write_text(text.strip().rstrip(";"))


if __name__ == "__main__":
    main()
