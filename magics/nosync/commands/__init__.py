"""Implements the line form of `%dd`: the name, the arguments and the action of each subcommand.

`dispatch` reads a line and runs it; the other modules have the subcommands as rows of a table, in
the form that `arguments` defines; `completion` completes them.
"""
