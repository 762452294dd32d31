"""Verifies a log: python -m nosync_nb.verify PATH; says what is damaged, and exits with 1 then.

Short, and on its own: it starts a command.
"""

import sys

from nosync_nb.session.durability.verification import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
