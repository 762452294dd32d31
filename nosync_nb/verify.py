"""Verifies a log: python -m nosync_nb.verify PATH; reports damage, and then exits with 1."""

import sys

from nosync_nb.session.recovery.repair import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
