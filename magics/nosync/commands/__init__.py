"""The line form of `%dd`: what each subcommand is called, asks for and does.

`run` reads a line and runs it; `show` and `act` have the subcommands as rows of a table, in the
form of `form`; `completion` offers them while one types.
"""
