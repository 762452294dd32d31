"""Collections: users describe with them what to compute. No computation runs in this package.

Promises: a definition means the same in each process and release, and its fingerprint shows it.
Owns: no state; a collection asks its session. Imports: operators, trace, expressions, rows, files,
errors.
"""
