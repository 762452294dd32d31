"""Stores the history of a collection: its changes in packs, from which any epoch can be read.

A tree over epochs, whose nodes hold what changed in their interval, as sections of files.
"""
