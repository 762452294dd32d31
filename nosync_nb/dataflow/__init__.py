"""Dataflow: what runs, epoch by epoch.

Promises: an epoch is computed from a version and changes of inputs, and is a draft until somebody
publishes it: nothing that is there is touched. Owns: nothing; graphs, versions and snapshots are
values. Imports: collections, operators, expressions, trace, rows, errors.
"""
