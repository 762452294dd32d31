"""The chart of counts over epochs: its values, and names are only text."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from nosync_nb.collections.comparison import DifferenceCounts
from nosync_widgets.comparison import ChartedTable, counts_chart

TITLES = ("late", "<b>& co</b>")
COUNTS = [DifferenceCounts(1, 0, 4, 0), DifferenceCounts(5, 2, 4, 1), DifferenceCounts(9, 3, 0, 1)]


def test_chart_is_well_formed_and_escapes_names() -> None:
    html = counts_chart(COUNTS, TITLES)
    page = ElementTree.fromstring(f"<div>{html}</div>")
    assert "<b>" not in html
    assert not re.search("script|href|url\\(", html)
    assert "only in <b>& co</b>" in "".join(page.itertext())


def test_chart_has_text_alternatives() -> None:
    page = ElementTree.fromstring(f"<div>{counts_chart(COUNTS, TITLES)}</div>")
    picture = page.find("figure/svg")
    assert picture is not None
    assert picture.get("role") == "img"
    assert "epochs 1 to 9" in (picture.get("aria-label") or "")
    assert "only in late 3" in (picture.get("aria-label") or "")
    cells = [[cell.text for cell in row] for row in page.findall("details//tbody/tr")]
    assert cells == [[str(each) for each in counts] for counts in COUNTS]


def test_lines_differ_without_colour() -> None:
    page = ElementTree.fromstring(f"<div>{counts_chart(COUNTS, TITLES)}</div>")
    lines = page.findall("figure/svg/path[@stroke-width]")
    assert len({line.get("stroke-dasharray") for line in lines}) == len(lines) == 3
    assert [line.get("d", "").count("H") for line in lines] == [2, 2, 2]
    ends = [(end.get("cx"), end.get("cy")) for end in page.findall("figure/svg/circle")]
    assert [line.get("d", "").rpartition("V")[2] for line in lines] == [y for _, y in ends]
    assert len({x for x, _ in ends}) == 1


def test_chart_needs_two_epochs() -> None:
    assert counts_chart(COUNTS[:1], TITLES) == ""
    assert counts_chart([], TITLES) == ""
    table = ChartedTable("c", ["x"], [["1"]], chart="<p>chart</p>")
    assert table.html().endswith("<p>chart</p>")
    assert "chart" not in table.text()
