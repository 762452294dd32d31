"""The session: a facade, and the services that do its work.

Promises: a published snapshot never changes. A commit, a definition or a rewind assigns the next
one under the writer lock; readers take the reference and never wait. The facade has no state; each
service guards its own state with a lock of its own. Owns: the snapshot, pending changes, the
background worker. Imports: spark, store, dataflow, collections, operators, expressions, trace,
rows, files, errors.
"""
