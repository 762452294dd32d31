"""Session: the facade, and who does its work.

Promises: what is published is one reference to a snapshot that nobody changes, assigned under the
gate's lock; readers take it and never wait. The facade has no state: each who does its work has its
own, with the lock that guards it. Owns: the snapshot, what waits to be committed, the worker.
Imports: spark, store, dataflow, collections, operators, expressions, trace, rows, files, errors.
"""
