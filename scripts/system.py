"""What the operating system must give: Java, a browser, the venv module; found, else fetched.

A Java counts if it *runs* and is recent enough: JAVA_HOME of an old installation never wins.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
from pathlib import Path

from steps import TOOLS, SetupError, Step, run, say

JAVA_MIN = 17
JAVA_TESTED = range(17, 22)
JAVA_PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless")
JRE = TOOLS / "jre"
APT = TOOLS / "apt"
APT_OPTIONS = ["-o", "APT::Sandbox::User=root", "-o", "DPkg::Lock::Timeout=120"]


def java_version(text: str) -> int | None:
    """Reads the feature version of what `java -version` prints; 8 for "1.8.0_402"."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match.group(1)) if match else None


def run_java(java: str) -> int | None:
    """Runs a Java and returns its feature version; None if it does not run."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return java_version(done.stderr + done.stdout) if done.returncode == 0 else None


def java_candidates() -> list[str]:
    """Lists Java programs of this machine, resolved, without repetition."""
    home = os.environ.get("JAVA_HOME")
    found = [os.path.join(home, "bin", "java")] if home else []
    found += [path for path in [shutil.which("java")] if path]
    found += sorted(glob.glob("/usr/lib/jvm/*/bin/java"))
    found += sorted(glob.glob(str(JRE / "usr/lib/jvm/*/bin/java")))
    return list(dict.fromkeys(os.path.realpath(path) for path in found if os.path.exists(path)))


def find_java() -> str | None:
    """Returns the home of the first Java that runs and is tested with Spark, else a newer one."""
    newer = None
    for java in java_candidates():
        version = run_java(java)
        home = os.path.dirname(os.path.dirname(java))
        if version in JAVA_TESTED:
            return home
        if version is not None and version >= JAVA_MIN and newer is None:
            newer = home
    return newer


def root_prefix() -> list[str] | None:
    """Returns what makes a command run as root without asking: [], ["sudo", "-n"], or None."""
    if os.geteuid() == 0:
        return []
    if (
        shutil.which("sudo")
        and subprocess.run(
            ["sudo", "-n", "true"], capture_output=True, stdin=subprocess.DEVNULL, check=False
        ).returncode
        == 0
    ):
        return ["sudo", "-n"]
    return None


def apt_install(*packages: str) -> bool:
    """Installs packages by apt if this may be done without asking; True if that succeeded."""
    prefix = root_prefix()
    if prefix is None or not shutil.which("apt-get"):
        return False
    apt = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", *APT_OPTIONS]
    install = [*apt, "install", "-y", "--no-install-recommends", *packages]
    # Lists that are absent or stale are the common reason of a failure.
    return run(install) or (run([*apt, "update"]) and run(install))


def ensure_java() -> str:
    """Returns the home of a Java for Spark, fetching one if there is none."""
    home = find_java()
    if home is not None:
        return home
    with Step("Java 17 (about 45 MB; none was found that runs and is recent enough)", JRE):
        if not any(apt_install(package) for package in JAVA_PACKAGES):
            unpack_java()
    home = find_java()
    if home is None:
        raise SetupError(
            "Spark needs Java 17 or later, and none could be installed\n"
            "Do one of these, then run the same command again:\n"
            "  sudo apt install openjdk-17-jre-headless\n"
            "  export JAVA_HOME=<folder of a JDK 17 or 21>"
        )
    return home


def unpack_java() -> bool:
    """Unpacks the distribution's JRE into `.tools/jre`, which needs no rights."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return False
    say("    apt may not be used without a password: unpacking the package into .tools/jre")
    for name in ("lists/partial", "cache/archives/partial"):
        (APT / name).mkdir(parents=True, exist_ok=True)
    own = [*APT_OPTIONS, "-o", f"Dir::State::lists={APT}/lists", "-o", f"Dir::Cache={APT}/cache"]
    for options in (APT_OPTIONS, own):
        if options is own and not run(["apt-get", "-q", *own, "update"]):
            return False
        for package in JAVA_PACKAGES:
            if run(["apt-get", "-q", *options, "download", package], cwd=APT):
                archive = next(APT.glob(f"{package}_*.deb"))
                shutil.rmtree(JRE, ignore_errors=True)
                done = run(["dpkg-deb", "-x", str(archive), str(JRE)])
                relink(JRE)
                shutil.rmtree(APT)
                return done
    return False


def relink(root: Path) -> None:
    """Turns links to absolute places that exist below `root` into links to there.

    The package keeps its settings in /etc and links to them; unpacked elsewhere these links
    dangle and Java does not start.
    """
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            link = Path(folder, name)
            if not link.is_symlink() or not os.path.isabs(target := os.readlink(link)):
                continue
            inside = root / target.lstrip("/")
            if inside.exists():
                link.unlink()
                link.symlink_to(os.path.relpath(inside, link.parent))


def ensure_venv_module() -> None:
    """Makes sure that `python -m venv` can work: Debian packs that apart."""
    if _has_ensurepip():
        return
    if root_prefix() is not None:
        with Step("python3-venv (3 MB)"):
            apt_install("python3-venv")
    if not _has_ensurepip():
        raise SetupError(
            "this Python has no venv module\n"
            "Run `sudo apt install python3-venv`, then the same command again."
        )


def _has_ensurepip() -> bool:
    from importlib import invalidate_caches
    from importlib.util import find_spec

    invalidate_caches()
    return find_spec("venv") is not None and find_spec("ensurepip") is not None


def find_chromium() -> str | None:
    """Returns a Chromium, or None."""
    names = (os.environ.get("NOSYNC_CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if name and (path := shutil.which(name))), None)


def ensure_chromium() -> str | None:
    """Returns a Chromium for the browser tests, installing it where that needs no password."""
    path = find_chromium()
    if path is None and root_prefix() is not None:
        with Step("Chromium for the browser tests (about 100 MB)"):
            apt_install("chromium")
        path = find_chromium()
    if path is None:
        say("  no Chromium: browser tests will be skipped (sudo apt install chromium)")
    return path
