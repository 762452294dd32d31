"""Starts a replica server: python -m nosync_nb.replica DIR --port P; see `flight_server`."""

import sys

from nosync_nb.store.replication.backends.flight_server import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
