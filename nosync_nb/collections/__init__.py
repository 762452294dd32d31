"""Collections: descriptions of computations by users. No computation runs in this package.

Promises: a definition has the same meaning in every process and release, and its fingerprint shows
that. Owns: no state, because a collection asks its session. Imports: operators, trace, expressions,
rows, files, errors.
"""
