"""Runs the line form of `%dd`: parses subcommands and options, and shows their help.

`COMMANDS` has all subcommands by name.
"""

from __future__ import annotations

import argparse
import difflib
import io
import shlex
from typing import TYPE_CHECKING, NoReturn

from IPython.core.error import UsageError

from nosync.commands import Quoted, Subcommand
from nosync.commands.branches import COMMANDS as FORKING
from nosync.commands.logs import COMMANDS as PLACING
from nosync.commands.logs import VERIFY
from nosync.commands.mutations import COMMANDS as ACTING
from nosync.commands.mutations import RETENTION
from nosync.commands.replicas import COMMANDS as COPYING
from nosync.commands.show import COMMANDS as SHOWING
from nosync.commands.sql import COMMANDS as QUERYING
from nosync.commands.views import COMMANDS as VIEWING
from nosync_widgets import formats

if TYPE_CHECKING:
    from nosync.notebook import Notebook


_QUOTES = ("'", '"')


class _Parser(argparse.ArgumentParser):
    """A parser that raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}. {self.format_usage().strip()}")


def run(notebook: Notebook, line: str) -> object:
    """Runs one line and returns the value that the cell should show.

    Raises:
        UsageError: if the subcommand is unknown, or its arguments are invalid.
    """
    __tracebackhide__ = True
    try:
        return _run(notebook, line)
    # escaped here, because IPython does not escape the text, and names of the log may be in it
    except UsageError as error:
        raise UsageError(formats.visible(str(error))) from None


def _run(notebook: Notebook, line: str) -> object:
    __tracebackhide__ = True
    name, _, rest = line.strip().partition(" ")
    if name in COMMANDS and COMMANDS[name].raw:
        return _run_raw(notebook, COMMANDS[name], rest.strip())
    words = _split(line)
    if not words:
        return _overview()
    command = COMMANDS.get(words[0])
    if command is None:
        raise UsageError(_unknown(words[0]))
    arguments, extra = parser_of(command).parse_known_args(words[1:])
    if extra:
        raise UsageError(
            f"%dd {command.name}: unrecognized arguments: {' '.join(extra)}. "
            f"{parser_of(command).format_usage().strip()}"
        )
    return command.run(notebook, arguments)


def _run_raw(notebook: Notebook, command: Subcommand, text: str) -> object:
    """Runs a subcommand whose only argument is the rest of the line, with its quotes."""
    __tracebackhide__ = True
    ((names, _),) = command.arguments
    if not text:
        usage = parser_of(command).format_usage().strip()
        raise UsageError(
            f"%dd {command.name}: the following arguments are required: {names[0]}. {usage}"
        )
    return command.run(notebook, argparse.Namespace(**{names[0]: text}))


def options_of(name: str) -> list[str]:
    """Returns the options of a subcommand, for completion."""
    command = COMMANDS.get(name)
    if command is None:
        return []
    return [text for names, _ in command.arguments for text in names if text.startswith("-")]


def _split(line: str) -> list[str]:
    """Splits a line into words as a shell does; words in quotes become `Quoted`."""
    text = io.StringIO(line)
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    try:
        while True:
            start = text.tell()
            word = lexer.get_token()
            if word is None:
                return words
            written = line[start : text.tell()].strip()
            option, equals, value = written.partition("=")
            if option.startswith("--") and value[:1] in _QUOTES and equals:
                words += [option, Quoted(word[len(option) + 1 :])]
            else:
                words.append(Quoted(word) if written[:1] in _QUOTES else word)
    except ValueError as error:
        raise UsageError(f"%dd: {error}") from None


def parser_of(command: Subcommand) -> _Parser:
    """Returns the parser for the arguments of a subcommand."""
    parser = _Parser(prog=f"%dd {command.name}", description=command.summary, add_help=False)
    for names, options in command.arguments:
        parser.add_argument(*names, **options)
    return parser


def _unknown(word: str) -> str:
    matches = difflib.get_close_matches(word, COMMANDS, n=1, cutoff=0.6)
    meant = f"did you mean `%dd {matches[0]}`?" if matches else f"commands: {', '.join(COMMANDS)}"
    return f"%dd has no command '{word}'; {meant}"


def _overview() -> _Text:
    width = max(map(len, COMMANDS))
    lines = [f"%dd {name.ljust(width)}  {each.summary}" for name, each in COMMANDS.items()]
    return _Text("\n".join([*lines, "%%dd defines stages in a cell: see %%dd?"]))


def _help(_notebook: Notebook, arguments: argparse.Namespace) -> _Text:
    if arguments.subcommand is None:
        return _overview()
    command = COMMANDS.get(arguments.subcommand)
    if command is None:
        raise UsageError(_unknown(arguments.subcommand))
    return _Text(parser_of(command).format_help().rstrip())


class _Text:
    """A text that is displayed without quotes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return formats.visible(self._text)


COMMANDS: dict[str, Subcommand] = {
    command.name: command
    for command in (
        *SHOWING,
        *QUERYING,
        *VIEWING,
        *ACTING,
        *PLACING,
        *COPYING,
        *RETENTION,
        *FORKING,
        VERIFY,
        Subcommand(
            "help",
            "list the commands, or the options of one",
            _help,
            [(["subcommand"], {"nargs": "?"})],
        ),
    )
}
