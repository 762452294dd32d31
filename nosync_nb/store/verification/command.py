"""Command: verifies a log that nobody has to have open.

    python -m nosync_nb.verify PATH

Exits with 0 if all of it is whole, 1 if something is damaged (each file is told, with the stage and
the epochs whose rows it holds), 2 if it cannot be verified: there is no log, or it is of another
format.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nosync_nb.errors import NosyncError, one_line
from nosync_nb.store.verification.verifying import verify

USAGE = """\
usage: python -m nosync_nb.verify PATH

PATH is the folder of a log, which may be open elsewhere.
"""
WHOLE, DAMAGED, UNKNOWN = 0, 1, 2


def main(arguments: Sequence[str]) -> int:
    """Verifies the log that the arguments name; returns what the process exits with."""
    if arguments and arguments[0] in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return WHOLE
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write(USAGE)
        return UNKNOWN
    try:
        verified = verify(arguments[0])
    except NosyncError as error:
        sys.stderr.write(one_line(str(error)) + "\n")
        return UNKNOWN
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return UNKNOWN
    sys.stdout.write(f"{verified}\n")
    return WHOLE if verified.whole else DAMAGED
