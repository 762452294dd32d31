"""Installs the Jupyter kernel, and exports or imports the key that signs your logs."""

from __future__ import annotations

import argparse
import sys

from nosync.kernelspec import install


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code.

    python -m nosync install [--user | --sys-prefix | --prefix P]
    python -m nosync key export FILE
    python -m nosync key import FILE [--replace]
    """
    parser = argparse.ArgumentParser(prog="python -m nosync", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("install", help='install the kernel "Python 3 (NoSync)"')
    where = command.add_mutually_exclusive_group()
    where.add_argument("--user", action="store_true", help="for this user (default)")
    where.add_argument("--sys-prefix", action="store_true", help="into this environment")
    where.add_argument("--prefix", help="into another prefix")
    key = commands.add_parser("key", help="export or import the key that signs your logs")
    ways = key.add_subparsers(dest="way", required=True)
    ways.add_parser(
        "export", help="write the key to a new file, which must stay secret"
    ).add_argument("file")
    importer = ways.add_parser("import", help="use the key in a file as your key")
    importer.add_argument("file")
    importer.add_argument(
        "--replace", action="store_true", help="replace your key; it is saved as key.ID"
    )
    chosen = parser.parse_args(arguments)
    if chosen.command == "key":
        return _key(chosen)
    prefix = sys.prefix if chosen.sys_prefix else chosen.prefix
    place = install(user=prefix is None, prefix=prefix)
    sys.stdout.write(f"installed the kernel 'Python 3 (NoSync)' in {place}\n")
    return 0


def _key(chosen: argparse.Namespace) -> int:
    """Exports or imports the key; returns the exit code. An error is printed with its hint."""
    from nosync_nb.errors import TrustError
    from nosync_nb.log_folders import export_user_key, import_user_key

    try:
        if chosen.way == "export":
            message = f"exported key {export_user_key(chosen.file)} to '{chosen.file}'"
        else:
            name, backup = import_user_key(chosen.file, replace=chosen.replace)
            message = f"imported key {name}{f'; the previous key is {backup!r}' if backup else ''}"
    except TrustError as error:
        sys.stderr.write(f"{error}\n" + (f"Hint: {error.hint}\n" if error.hint else ""))
        return 1
    sys.stdout.write(f"{message}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
