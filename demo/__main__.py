"""The story in a terminal: `make demo`.

A real Jupyter kernel loads a year's flights through Spark, keeps six stages of them, takes a
hundred days as a hundred epochs, is killed with SIGKILL in the middle, starts again, says what it
brought back, goes on where it stopped, and every stage is compared with Spark SQL from scratch.
Fails if any comparison fails.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from jupyter_client.manager import KernelManager

from demo import cells
from nosync.kernelspec import install

LAST_DAY = "2013-12-09"
NEXT_DAY = "2013-12-10"
KILL_AFTER_DAYS = 60
OVER_FLIGHTS = ("delays", "routes", "makers", "unknown")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_WAIT_S = 600


class Kernel:
    """One notebook's kernel, as a Jupyter server runs it."""

    def __init__(self, folder: Path) -> None:
        install(prefix=str(folder / "prefix"))
        self._manager = KernelManager(kernel_name="nosync")
        kernels = str(folder / "prefix" / "share" / "jupyter" / "kernels")
        self._manager.kernel_spec_manager.kernel_dirs.insert(0, kernels)
        self._env = {
            **os.environ,
            "JPY_SESSION_NAME": str(folder / "flights.ipynb"),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._folder = folder
        self.client: Any = None
        self.start()

    def start(self) -> None:
        """Starts a new process for the notebook."""
        with open(self._folder / "kernel.log", "a") as log:
            self._manager.start_kernel(env=self._env, cwd=str(self._folder), stdout=log, stderr=log)
        self.client = self._manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=_WAIT_S)

    @property
    def pid(self) -> int:
        """The kernel's process."""
        return int(self._manager.provisioner.pid)  # type: ignore[union-attr]

    def kill(self) -> None:
        """SIGKILL, to the kernel and all it started, as a crash of the machine's memory would."""
        os.killpg(os.getpgid(self.pid), signal.SIGKILL)
        self._manager.provisioner.process.wait()  # type: ignore[union-attr]
        self.client.stop_channels()

    def run(self, source: str, *, shown: bool = True, stop: Any = None) -> str:
        """Runs a cell, prints it and what it says; `stop(text)` may end it early."""
        if shown:
            print("\n" + "\n".join(f"    {line}" for line in source.rstrip().splitlines()))
        number = self.client.execute(source)
        texts: list[str] = []
        while True:
            message = self.client.get_iopub_msg(timeout=_WAIT_S)
            if message["parent_header"].get("msg_id") != number:
                continue
            content = message["content"]
            if message["msg_type"] == "stream" and content["name"] == "stdout":
                texts.append(content["text"])
            elif message["msg_type"] in ("execute_result", "display_data"):
                texts.append(content["data"].get("text/plain", "") + "\n")
            elif message["msg_type"] == "error":
                raise SystemExit("\n".join(content["traceback"]))
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                break
            if stop is not None and stop("".join(texts)):
                break
        text = _COLOUR.sub("", "".join(texts)).strip("\n")
        if shown and text:
            print("\n" + "\n".join(f"  > {line}" for line in text.splitlines()))
        return text

    def value(self, expression: str) -> Any:
        """The value of an expression in the kernel, by its repr."""
        reply = self.client.execute(
            "", silent=True, user_expressions={"v": expression}, reply=True, timeout=_WAIT_S
        )
        return value_of(expression, reply["content"]["user_expressions"]["v"])

    def close(self) -> None:
        """Ends the process."""
        self._manager.shutdown_kernel(now=False)


def value_of(expression: str, found: Mapping[str, Any]) -> Any:
    """The value of an expression, of what a kernel replies."""
    if found["status"] != "ok":
        raise SystemExit(f"{expression}: {found['evalue']}")
    return ast.literal_eval(found["data"]["text/plain"])


class Runs(Protocol):
    """What runs the cells of the story."""

    def run(self, source: str, *, shown: bool = True) -> str:
        """Runs a cell and returns what it says."""

    def value(self, expression: str) -> Any:
        """The value of an expression, by its repr."""


def say(text: str) -> None:
    """A line of the story."""
    print(f"\n== {text}")


def check(holds: bool, what: str) -> None:
    """Ends the demo if something does not hold."""
    if not holds:
        raise SystemExit(f"\nFAILED: {what}")
    print(f"  ok: {what}")


def load(kernel: Runs) -> dict[str, float]:
    """The first half: load, stages."""
    say("A Spark session of yours, and eight months of flights in a DataFrame")
    kernel.run(cells.SPARK)
    kernel.run(cells.DATA)
    say("Inputs: Spark executes the DataFrame once, and its executors write the rows to the log")
    start = time.perf_counter()
    kernel.run(cells.INPUTS)
    loaded = time.perf_counter() - start
    say("Stages: Spark computes their first run over the loaded flights")
    start = time.perf_counter()
    kernel.run(cells.STAGES)
    first = time.perf_counter() - start
    for name in OVER_FLIGHTS:
        placement = kernel.value(f"str(nosync.session()[{name!r}].explain())")
        check("Spark job" in placement, f"the first run of '{name}' was Spark jobs")
    return {"load": loaded, "first run": first}


def live(kernel: Kernel) -> tuple[int, float]:
    """A hundred days, until the kill; returns the last epoch seen and the median of a day."""
    say(f"A hundred days, one epoch each; the kernel is killed after some {KILL_AFTER_DAYS}")
    kernel.run(cells.PROBE, shown=False)
    kernel.run(f"LAST_DAY = {LAST_DAY!r}\nNEXT_DAY = {NEXT_DAY!r}", shown=False)
    print("\n" + "\n".join(f"    {line}" for line in cells.DAYS.splitlines()))
    loop = cells.DAYS + "        print('day', len(seconds), nosync.session().now, seconds[-1])\n"
    text = kernel.run(loop, shown=False, stop=lambda t: t.count("day ") >= KILL_AFTER_DAYS)
    days = [line.split() for line in text.splitlines() if line.startswith("day ")]
    print(f"\n  > {len(days)} days are loaded, epoch {days[-1][2]}; kill -9 {kernel.pid}")
    kernel.kill()
    times = sorted(float(words[3]) for words in days)
    return int(days[-1][2]), times[len(times) // 2]


def recovered(kernel: Runs) -> dict[str, Any]:
    """What a session says of its recovery."""
    recovery = "nosync.session().recovery"
    return {
        "clean": kernel.value(f"{recovery}.clean"),
        "recomputed": kernel.value(f"{recovery}.recomputed"),
        "seconds": kernel.value(f"sum({recovery}.seconds.values())"),
        "epoch": kernel.value("nosync.session().now"),
    }


def again(kernel: Runs, now: int) -> None:
    """Run All, the days that are not in yet, the next day and a correction."""
    say("Run All: committed loads are skipped, and the loop continues where it stopped")
    for cell in (cells.SPARK, cells.DATA, cells.INPUTS, cells.STAGES):
        kernel.run(cell, shown=False)
    check(kernel.value("nosync.session().now") == now, "no epoch was added by Run All")
    kernel.run(cells.AGAIN + cells.PROBE, shown=False)
    kernel.run(f"LAST_DAY = {LAST_DAY!r}\nNEXT_DAY = {NEXT_DAY!r}\n" + cells.DAYS, shown=False)
    days = kernel.value("len(seconds)")
    print(f"\n  > {days} more days")
    say("The next day, and a correction that removes flights")
    kernel.run(cells.NEXT)
    kernel.run(cells.CORRECTION)
    jobs = kernel.value("job_number() - jobs_before - own_jobs")
    check(jobs == 0, "the days were computed in process: no Spark job")


def compare(kernel: Runs) -> None:
    """Each stage against the same by Spark SQL."""
    say("Each stage against Spark SQL from scratch")
    kernel.run(cells.SCRATCH, shown=False)
    kernel.run(cells.COMPARE, shown=False)
    for name, equal in kernel.value("compared").items():
        check(equal, f"'{name}' equals Spark SQL over all flights")
    kernel.run("tardy")


def ending(kernel: Runs, figures: dict[str, float]) -> None:
    """The what-if, and the figures of all of it."""
    figures["what if"] = what_if(kernel)
    figures["from scratch"] = kernel.value("scratch_seconds")
    table(figures, kernel.value("nosync.session().now"))


def main() -> None:
    """Tells the story."""
    folder = Path(tempfile.mkdtemp(prefix="nosync-demo-"))
    kernel = Kernel(folder)
    try:
        figures = load(kernel)
        seen, figures["a day"] = live(kernel)
        say("A new kernel. You saved nothing; the first cell reports what was recovered")
        kernel.start()
        kernel.run("delays.rows()[:3]")
        told = recovered(kernel)
        now = told["epoch"]
        check(not told["clean"], "the crash was detected")
        check(now >= seen, f"every committed epoch is there: {now} >= {seen}")
        check(told["recomputed"] == 0, "nothing was recomputed")
        figures["recovery"] = told["seconds"]
        again(kernel, now)
        compare(kernel)
        ending(kernel, figures)
    except BaseException:
        log = folder / "kernel.log"
        sys.stderr.write("".join(log.read_text().splitlines(keepends=True)[-30:]))
        raise
    finally:
        kernel.close()
        shutil.rmtree(folder, ignore_errors=True)


def what_if(kernel: Runs) -> float:
    """Another threshold since October, beside what was; returns how long it takes."""
    say("What if flights were tardy from 5 minutes on? A branch from October, and its days again")
    rows = "sorted(map(tuple, nosync.session()['tardy'].rows()))"
    before, now = kernel.value(rows), kernel.value("nosync.session().now")
    start = time.perf_counter()
    kernel.run(cells.WHAT_IF)
    kernel.run(cells.THRESHOLD)
    kernel.run(cells.FOLLOW)
    seconds = time.perf_counter() - start
    kernel.run(cells.BOTH)
    check(kernel.value("nosync.session().now") == now, "the branch has each day of the main log")
    wanted = sorted(kernel.value("[tuple(row)[:2] for row in scratch_over(5)]"))
    check([row[:2] for row in kernel.value(rows)] == wanted, "it equals Spark SQL over all flights")
    kernel.run(cells.BACK)
    check(kernel.value(rows) == before, "the main log is unchanged")
    return seconds


def table(figures: dict[str, float], epochs: int) -> None:
    """The figures, with their ratio."""
    say("Figures")
    lines = [
        ("load of eight months through Spark, with its inputs", figures["load"]),
        ("first run of six stages, on Spark", figures["first run"]),
        ("one more day in all six stages (median)", figures["a day"]),
        ("the same six results by Spark SQL, from cache", figures["from scratch"]),
        ("what if: a branch, another threshold, its days again", figures["what if"]),
        (f"recovery of {epochs} epochs after kill -9, without the JVM", figures["recovery"]),
    ]
    for text, seconds in lines:
        shown = f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
        print(f"  {text:<60} {shown:>10}")
    ratio = figures["from scratch"] / figures["a day"]
    print(f"\n  a day is {ratio:.0f} times faster than recomputation")


if __name__ == "__main__":
    main()
