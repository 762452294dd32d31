"""Starts the keeper of a log: python -m nosync_nb.keeper FOLDER GENERATION.

A session starts this process if its log has replicas.
"""

import sys

from nosync_nb.store.replication.agent.keeper import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
