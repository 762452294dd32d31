"""Installs the kernel "Python 3 (NoSync)", which loads the extension at its start.

So no cell has to load it after a restart. The JupyterLab extension, which highlights `%%dd sql`
cells, is installed beside it.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

NAME = "nosync"
LOGOS = Path(__file__).parent / "logos"
"""The kernel's logos for launchers: an SVG, and two PNG files drawn from it."""

LAB_EXTENSION = Path(__file__).parent / "labextension"
"""The JupyterLab extension, as JupyterLab loads it."""


def kernel_spec(executable: str = sys.executable) -> dict[str, Any]:
    """Returns the content of `kernel.json` for a Python interpreter."""
    return {
        "argv": [
            executable,
            "-m",
            "ipykernel_launcher",
            "-f",
            "{connection_file}",
            "--ext",
            "nosync",
        ],
        "display_name": "Python 3 (NoSync)",
        "language": "python",
        "interrupt_mode": "signal",
        "metadata": {"debugger": True},
    }


def install(*, user: bool = False, prefix: str | None = None) -> str:
    """Installs the kernel in a folder that Jupyter searches, and returns the folder."""
    from jupyter_client.kernelspec import KernelSpecManager

    with tempfile.TemporaryDirectory() as folder:
        text = json.dumps(kernel_spec(), indent=1)
        for logo in LOGOS.iterdir():
            shutil.copyfile(logo, Path(folder) / logo.name)
        (Path(folder) / "kernel.json").write_text(text, "utf-8")
        manager = KernelSpecManager()
        place: str = manager.install_kernel_spec(folder, NAME, user=user, prefix=prefix)
    shared = Path(place).parent.parent  # .../share/jupyter/kernels/nosync
    target = shared / "labextensions" / NAME
    shutil.copytree(LAB_EXTENSION, target, dirs_exist_ok=True)
    return place
