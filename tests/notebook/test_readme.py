"""The README: its first five minutes run without Java, and again after a kill."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest
from jupyter.kernels import Kernel

README = Path(__file__).resolve().parents[2] / "README.md"


def quick_start() -> list[str]:
    """Returns the cells of the first five minutes, without the one that kills the kernel."""
    section = README.read_text().split("\n## The first five minutes\n")[1].split("\n## ")[0]
    cells = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    return [cell for cell in cells if "SIGKILL" not in cell][:4]


@pytest.mark.fault(1)
def test_quick_start_of_readme_runs_and_survives_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))  # so that no JVM can be started
    cells = quick_start()
    assert len(cells) == 4
    assert len("".join(cells).splitlines()) <= 20
    with closing(Kernel(tmp_path)) as kernel:
        for run in range(2):
            if run:
                kernel.kill()
            shown = [kernel.run(cell) for cell in cells]
            assert [each.status for each in shown] == ["ok"] * 4, shown
            epochs, rows = "epochs 2 to 3 committed", "late at epoch 3"
            if not run:  # what a cell did stands above its value, once
                assert 0 <= shown[2].text.find(epochs) < shown[2].text.find(rows)
                assert shown[2].text.count("committed") == 1
            assert "AA" in kernel.run('print(late.rows(at="day 2"))')
            assert "3" in kernel.run("print(nosync.session().now)")
