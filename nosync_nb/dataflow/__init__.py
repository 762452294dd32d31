"""The dataflow: compiles a catalog to a graph and runs it, epoch by epoch.

Promises: An epoch is computed from a version and the changes of its inputs. The result is a draft
until the caller publishes it, and published objects are never changed. Owns: nothing, because
graphs, versions and snapshots are values. Imports: collections, operators, expressions, trace,
rows, errors.
"""
