"""Verifies a log: python -m nosync_nb.verify PATH. Exits with 1 if it finds damage."""

import sys

from nosync_nb.session.recovery.repair import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
