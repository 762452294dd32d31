"""Collections: what users write. A description of what to compute; nothing runs here.

Promises: a definition means the same in each process and release: its fingerprint says so. Owns:
nothing; a collection asks its host. Imports: operators, trace, expressions, rows, files, errors.
"""
