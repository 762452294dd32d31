"""Writes docs/reference.md from the code: `make reference`. A test holds the page against it.

What stands there is what the code says of itself: the magics and their options, the settings, the
names that `import nosync` gives with their methods, the errors, and which expressions need Spark.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_TOP = Path(__file__).resolve().parents[1]
PAGE = _TOP / "docs" / "reference.md"
ORDINARY = _TOP / "tests" / "data" / "ordinary_expressions.txt"
_COLUMNS = (
    "i int, j int, l bigint, h smallint, y tinyint, f float, d double, e double, s string,"
    " u string, dt date, dv date, ts timestamp, tv timestamp, tn timestamp_ntz, p decimal(10,2),"
    " q decimal(20,6), bo boolean, bi binary, a array<int>, m map<string,int>,"
    " st struct<x:int,y:string>"
)

_HEAD = """# Reference

Written by `make reference` from the code. What it all means is in the [README](../README.md).
"""


def page() -> str:
    """The page as the code has it now."""
    parts = [_HEAD, *_cell(), *_lines(), *_settings(), *_names(), *_errors(), *_waiting()]
    return "\n".join(parts).rstrip() + "\n"


def _cell() -> Iterator[str]:
    """The cell magic."""
    from nosync.magic import NoSync

    parser: argparse.ArgumentParser = NoSync.dd.parser
    yield "## `%%dd`\n"
    yield f"{' '.join((parser.description or '').split('Examples::')[0].split())}\n"
    yield "| option | |\n|---|---|"
    yield from _options(parser)
    yield ""


def _lines() -> Iterator[str]:
    """The subcommands of the line magic."""
    from nosync.commands.dispatch import COMMANDS, parser_of

    yield "## `%dd`\n"
    for name in sorted(COMMANDS):
        parser = parser_of(COMMANDS[name])
        usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
        summary = COMMANDS[name].summary
        yield f"### `{usage}`\n\n{summary[:1].upper()}{summary[1:]}.\n"
        options = list(_options(parser))
        if options:
            yield "| | |\n|---|---|"
            yield from options
            yield ""


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """A row of each argument that says something of itself."""
    for action in parser._get_optional_actions() + parser._get_positional_actions():
        if action.help in (None, argparse.SUPPRESS) or "-h" in action.option_strings:
            continue
        name = ", ".join(action.option_strings) or action.dest.upper()
        if action.choices:
            name += f" {'|'.join(map(str, action.choices))}"
        elif action.option_strings and action.nargs != 0:
            name += f" {action.metavar or action.dest.upper()}"
        yield f"| `{_cell_text(name)}` | {_cell_text(str(action.help))} |"


def _settings() -> Iterator[str]:
    """What `%config` sets."""
    from nosync.magic import NoSync

    yield "## `%config NoSync`\n\n| setting | default | |\n|---|---|---|"
    for name, trait in sorted(NoSync.class_traits(config=True).items()):
        yield f"| `{name}` | `{trait.default()!r}` | {_cell_text(trait.help)} |"
    yield ""


def _names() -> Iterator[str]:
    """What `import nosync` gives."""
    import nosync
    import nosync_nb

    yield "## `import nosync`\n"
    for name in sorted({*nosync.__all__, *nosync_nb.__all__}):
        value = getattr(nosync, name)
        if inspect.isclass(value) and issubclass(value, BaseException):
            continue
        if inspect.isclass(value):
            yield f"### `{name}`\n\n{_first(inspect.getdoc(value) or '')}\n"
            yield from _members(value)
        elif callable(value):
            yield f"### `{name}{_signature(value)}`\n\n{_first(inspect.getdoc(value) or '')}\n"
        elif inspect.ismodule(value):
            yield f"### `{name}`\n\n{_first(inspect.getdoc(value) or '')}\n"
            yield from _members(value)


def _members(owner: Any) -> Iterator[str]:
    """A row of each public attribute, method, property or function."""
    yield "| | |\n|---|---|"
    attributes = _attributes(inspect.getdoc(owner) or "") if inspect.isclass(owner) else {}
    listed = getattr(owner, "__all__", None) or [n for n in dir(owner) if not n.startswith("_")]
    for name in sorted({*listed, *attributes}):
        if name in attributes:
            yield f"| `{name}` | {_cell_text(attributes[name])} |"
            continue
        value = inspect.getattr_static(owner, name)
        bound = getattr(owner, name)
        ours = isinstance(value, property) or inspect.isfunction(inspect.unwrap(bound))
        said = _first(inspect.getdoc(value) or "") if ours or inspect.ismethod(bound) else ""
        if not said or not str(getattr(bound, "__module__", "nosync_nb")).startswith("nosync_nb"):
            continue
        plain = isinstance(value, property) or not callable(bound)
        called = name if plain else name + _signature(bound)
        yield f"| `{_cell_text(called)}` | {_cell_text(said)} |"
    yield ""


def _attributes(text: str) -> dict[str, str]:
    """What a docstring says of attributes."""
    section = re.search(r"^Attributes:\n((?: +.*\n?|\n)+)", text, re.MULTILINE)
    if section is None:
        return {}
    said = re.split(r"^ {4}(\w+): ", section[1], flags=re.MULTILINE)[1:]
    return {
        name: text[0].upper() + text[1:] for name, text in zip(said[::2], said[1::2], strict=True)
    }


def _errors() -> Iterator[str]:
    """The tree of errors."""
    import nosync_nb

    yield "## Errors\n\n| error | is also | |\n|---|---|---|"
    known = [getattr(nosync_nb, name) for name in nosync_nb.__all__]
    for error in known:
        if inspect.isclass(error) and issubclass(error, BaseException):
            also = [base.__name__ for base in error.__bases__ if base is not Exception]
            said = _cell_text(_first(inspect.getdoc(error) or ""))
            yield f"| `{error.__name__}` | {', '.join(f'`{n}`' for n in also)} | {said} |"


def waiting() -> dict[str, str]:
    """Those of some ordinary expressions that are not computed in process, and why."""
    from nosync_nb.expressions import compile_expression
    from nosync_nb.rows import Schema

    schema = Schema.parse(_COLUMNS)
    found = {}
    for text in ORDINARY.read_text().splitlines():
        made = compile_expression(text, schema, types=lambda sqls, _: ["string"] * len(sqls))
        if not made.local:
            found[text] = made.why
    return found


def _waiting() -> Iterator[str]:
    """The expressions that need Spark."""
    still = waiting()
    every = len(ORDINARY.read_text().splitlines())
    yield f"\n## Expressions that wait for Spark\n\nOf {every} ordinary ones beyond arithmetic,"
    yield f"these {len(still)} do; the rest is computed in process. Some Spark refuses. Doubles"
    yield "and floats as text have the fewest digits that tell them apart, as from Java 19 (before"
    yield "that Java has more of some); a text that is a time without a day is no timestamp; bytes"
    yield "that are no UTF-8 are no text. -0.0 is stored as 0.0. Columns:"
    yield f"{_COLUMNS}.\n\n| expression | what waits |\n|---|---|"
    for text, why in still.items():
        yield f"| `{_cell_text(text)}` | {_cell_text(why)} |"


def _signature(value: Any) -> str:
    """The arguments without their types, as one would call it."""
    parameters = inspect.signature(value).parameters.values()
    plain = [
        each.replace(annotation=inspect.Parameter.empty)
        for each in parameters
        if each.name != "self"
    ]
    return str(inspect.Signature(plain))


def _first(text: str) -> str:
    """The first paragraph of a docstring, as one line."""
    return " ".join(text.strip().split("\n\n")[0].split())


def _cell_text(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", r"\|").strip()


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.stdout.write(f"{PAGE} is written\n")
