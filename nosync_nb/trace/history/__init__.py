"""Stores the history of collections: their changes, from which any retained epoch can be read.

The changes are stored in packs, which form a tree over epochs. A pack has a section for each trace
with the changes of the trace in an interval of epochs.
"""
