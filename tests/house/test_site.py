"""The documentation builds as a site: no broken link, no other host, and every public name."""

from __future__ import annotations

import argparse
import functools
import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import public_api
import pytest
from mkdocstrings import Inventory
from playwright.sync_api import sync_playwright

TOP = Path(__file__).resolve().parents[2]
COMMANDS_PAGE = TOP / "docs" / "reference" / "notebook.md"
LOADING_ATTRIBUTES = {"src", "srcset", "poster", "data", "action"}
LOADING_RELATIONS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as built by `make docs`."""
    folder = tmp_path_factory.mktemp("site")
    build = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)],
        cwd=TOP,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert build.returncode == 0, build.stdout + build.stderr
    return folder


class Loads(HTMLParser):
    """Collects the addresses that a browser loads for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self.addresses += [named[name] for name in LOADING_ATTRIBUTES & named.keys()]
        if tag == "link" and LOADING_RELATIONS & {*named.get("rel", "").split()}:
            self.addresses.append(named.get("href", ""))


def test_no_page_or_style_loads_from_another_host(site: Path) -> None:
    foreign = []
    pages = sorted(site.rglob("*.html"))
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text())
        assert loads.addresses, page
        foreign += [(page.name, each) for each in loads.addresses if re.match(r"(\w+:)?//", each)]
        text = page.read_text()
        assert r"\|" not in text, f"{page}: mkdocs shows the backslash"
        assert "<blockquote>\n<blockquote>" not in text, f"{page}: write Examples:, not Example:"
    for style in site.rglob("*.css"):
        found = re.findall(r"""url\(["']?((?:\w+:)?//[^)]*)|@import ([^;]*)""", style.read_text())
        foreign += [(style.name, "".join(each)) for each in found]
    assert foreign == []
    assert len(pages) > 15


@pytest.mark.browser
def test_reading_pages_requests_no_other_host(site: Path, chromium: str) -> None:
    handler = functools.partial(QuietHandler, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    requested: list[str] = []
    wide: list[str] = []
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 560, "height": 900})
            page.on("request", lambda request: requested.append(request.url))
            for path in sorted(site.rglob("*.html")):
                page.goto(address + str(path.relative_to(site)))
                if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                    wide.append(path.name)
            page.goto(f"{address}reference/index.html")
            page.locator("label.md-header__button[for=__search]").click()
            page.get_by_role("textbox", name="Search").press_sequentially("rewind")
            page.locator(".md-search-result__item").first.wait_for()
            browser.close()
    finally:
        server.shutdown()
        server.server_close()
    assert [url for url in requested if not url.startswith((address, "data:", "blob:"))] == []
    assert wide == [], "wider than a narrow window"


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def test_reference_has_every_public_name(site: Path) -> None:
    with (site / "objects.inv").open("rb") as file:
        listed = {*Inventory.parse_sphinx(file)}
    packages = ("nosync", "nosync_nb", "nosync_nb.collections.library")
    texts: dict[str, bool] = {}  # inherited names have the text of their origin
    for name in public_api.names_for_users():
        text = public_api.docstring(name)
        found = any(f"{package}.{name}" in listed for package in packages)
        texts[text] = texts.get(text, False) or found
    assert [text.partition("\n")[0] for text, found in texts.items() if not found] == []


def sections(page: str) -> Iterator[tuple[str, tuple[str, list[str]]]]:
    """Yields each heading of a page, with the usage and the first column of the table below it."""
    for part in re.split(r"^#+ ", page, flags=re.MULTILINE)[1:]:
        heading, _, text = part.partition("\n")
        usage = re.search(r"```\{ \.text \.usage \}\n(.*)\n```", text)
        cells = re.findall(r"^\| `(.*?)`", text, flags=re.MULTILINE)
        yield heading.strip("` "), (usage[1] if usage else heading.strip("` "), cells)


def arguments(parser: argparse.ArgumentParser) -> list[str]:
    """Returns the arguments of a command as the page writes them."""
    written = []
    for action in parser._get_optional_actions() + parser._get_positional_actions():
        if action.help in (None, argparse.SUPPRESS) or "-h" in action.option_strings:
            continue
        name = ", ".join(action.option_strings) or action.dest.upper()
        if action.choices:
            name += f" {{{','.join(map(str, action.choices))}}}"
        elif action.option_strings and action.nargs != 0:
            name += f" {action.metavar or action.dest.upper()}"
        written.append(name)
    return written


def test_notebook_page_has_every_command_option_and_setting() -> None:
    from nosync.commands.dispatch import COMMANDS, parser_of
    from nosync.magic import NoSync

    parsers = {f"%dd {name}": parser_of(COMMANDS[name]) for name in COMMANDS}
    expected = {}
    for heading, parser in {"%%dd": NoSync.dd.parser, **parsers}.items():
        options = parser.format_usage().split()[1 + len(heading.split()) :]
        expected[heading] = (" ".join([heading, *options]), arguments(parser))
    settings = sorted(NoSync.class_traits(config=True))
    expected["%config NoSync"] = ("%config NoSync", settings)
    written = dict(sections(COMMANDS_PAGE.read_text()))
    assert {heading: written.get(heading) for heading in expected} == expected
    assert {heading for heading in written if heading.startswith("%")} == {"%dd", *expected}
