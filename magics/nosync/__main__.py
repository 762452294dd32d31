"""`python -m nosync install [--user | --sys-prefix | --prefix P]` installs the kernel."""

from __future__ import annotations

import argparse
import sys

from nosync.kernelspec import install


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m nosync", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("install", help='install the kernel "Python 3 (NoSync)"')
    where = command.add_mutually_exclusive_group()
    where.add_argument("--user", action="store_true", help="for this user (default)")
    where.add_argument("--sys-prefix", action="store_true", help="into this environment")
    where.add_argument("--prefix", help="into another prefix")
    chosen = parser.parse_args(arguments)
    prefix = sys.prefix if chosen.sys_prefix else chosen.prefix
    place = install(user=prefix is None, prefix=prefix)
    sys.stdout.write(f"installed the kernel 'Python 3 (NoSync)' in {place}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
