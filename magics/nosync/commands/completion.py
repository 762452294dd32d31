"""Completion of `%dd`: subcommands, options and names of stages."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nosync.log.location import branches_of

if TYPE_CHECKING:
    from nosync.notebook import Notebook

_LINE = re.compile(r"^\s*(%%?)dd\s+(.*)$")
_CELL_OPTIONS = ("--on", "--persist", "--replay", "--nondeterministic", "--again")


def register(notebook: Notebook) -> Callable[[], None]:
    """Adds a matcher to the shell's completer; returns a function that removes it."""
    matchers, matcher = notebook.shell.Completer.custom_matchers, _matcher(notebook)
    matchers.insert(0, matcher)
    return lambda: matchers.remove(matcher)


def candidates(notebook: Notebook, line: str) -> list[str]:
    """Returns all completions of a line, whatever is typed of its last word."""
    match = _LINE.match(line)
    if match is None:
        return []
    kind, rest = match.groups()
    if kind == "%%":
        return list(_CELL_OPTIONS)
    from nosync.commands.dispatch import COMMANDS, options_of

    words = rest.split(" ")
    if len(words) < 2:
        return list(COMMANDS)
    session = notebook.opened
    names = [] if session is None else [*session.stages, *session.inputs]
    return [*_branches(notebook, words, names), *names, *options_of(words[0])]


def _branches(notebook: Notebook, words: list[str], stages: list[str]) -> list[str]:
    """Returns the branches, if a command takes one; for `compare`, with the stages in each."""
    command, before = words[0], words[-2]
    if notebook.main is None or not (
        command in ("switch", "compare") or (command == "branch" and before == "--drop")
    ):
        return []
    names = branches_of(notebook.main)
    if command != "compare":
        return names
    return [f"{branch}/{stage}" for branch in ("main", *names) for stage in stages]


def _matcher(notebook: Notebook) -> Any:
    from IPython.core.completer import SimpleCompletion, context_matcher

    @context_matcher()
    def nosync_matcher(context: Any) -> Any:
        line = context.full_text[: _cursor(context)].rsplit("\n", 1)[-1]
        token = line.rsplit(" ", 1)[-1] if " " in line else ""
        words = [word for word in candidates(notebook, line) if word.startswith(token)]
        is_command = _LINE.match(line) is not None
        return {
            "completions": [SimpleCompletion(word, type="magic") for word in words],
            "matched_fragment": token,
            "suppress": is_command,
            "ordered": True,  # keeps stages before options; sorting would put options first
        }

    return nosync_matcher


def _cursor(context: Any) -> int:
    """Returns the offset of the cursor in the whole text."""
    lines = context.full_text.split("\n")
    before = sum(len(line) + 1 for line in lines[: context.cursor_line])
    position: int = before + context.cursor_position
    return position
