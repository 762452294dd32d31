"""Measurements of NoSync beside its peers, in the same run: `make bench`."""
