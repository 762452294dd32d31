"""Opens JupyterLab on a copy of the tutorials: `make lab`.

    make lab                        work/, copied at the first time
    make lab ARGS=--fresh           begins anew: deletes what an earlier run left
    make lab ARGS=--port=9876       another port

You work on a copy, so that the logs beside it and your changes are yours. Without a display the
address is printed; over ssh, forward its port. Other arguments go to JupyterLab.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys

from steps import TOP


def main() -> None:
    """Copies the notebooks that are not there yet, then becomes JupyterLab."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--fresh", action="store_true", help="begin anew")
    options, others = parser.parse_known_args()
    work = TOP / "work"
    if options.fresh:
        shutil.rmtree(work, ignore_errors=True)
    work.mkdir(exist_ok=True)
    notebooks = sorted((TOP / "tutorials").glob("*.ipynb"))
    for notebook in notebooks:
        if not (work / notebook.name).exists():
            shutil.copy(notebook, work)
    first = str(work / notebooks[0].name)
    command = [sys.executable, "-m", "jupyterlab", first, "--ServerApp.ip=127.0.0.1"]
    if os.geteuid() == 0:
        command.append("--allow-root")
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        command.append("--no-browser")
        print("No display here: open the address with ?token=... below in a browser.")
        print("Over ssh, forward its port first: ssh -L PORT:127.0.0.1:PORT <this machine>")
    sys.stdout.flush()
    # The data of the tutorials is in a package that Python warns of, in red, in the first cell.
    os.environ.setdefault("PYTHONWARNINGS", "ignore:pkg_resources is deprecated")
    os.execv(sys.executable, [*command, *others])


if __name__ == "__main__":
    main()
