"""The status page: self-contained, escaped, and with a mark for each figure."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pgoutput_etl.answers.next_commands import NextCommand
from pgoutput_etl.answers.status.charts import bars, byte_count, durations, number
from pgoutput_etl.answers.status.page import page, write_page
from pgoutput_etl.answers.status.report import Day, DayTable, Quarantine, Status
from pgoutput_etl.console import duration
from pgoutput_etl.errors import RunError
from pgoutput_etl.targets.condition import ConditionKind, TableCondition

HOSTILE = "<script>alert('x')</script>\"&\u202e\x1b[31m"
DAYS = [f"2026-02-{day:02}" for day in (1, 2, 3, 5, 28)]
FIGURES = tuple(
    Day(
        day,
        1,
        files=2,
        bytes=1000 * i,
        messages=50 + i,
        seconds={"look": 1.5, "write": 10.0 + i} if i > 1 else {},
        lag_seconds=None if i == 2 else 60.0 * i,
        tables=(
            DayTable("public", "t", 100 + i, i, 2, 0),
            DayTable("public", HOSTILE, None, None, None, None),
        ),
    )
    for i, day in enumerate(DAYS)
)
REPORT = Status(
    "shop",
    "2026-03-01T09:00:00+00:00",
    batch=5,
    finished="2026-02-28T02:00:00+00:00",
    last_commit_lsn=0x200,
    last_commit_time="2026-02-28T01:59:00+00:00",
    tables=2,
    quarantine=Quarantine(10, 1, (f"/a/{HOSTILE}: 10 bytes at offset 0: {HOSTILE}",), (HOSTILE,), (HOSTILE,)),
    conditions=(TableCondition(1, "public", HOSTILE, ConditionKind.DIVERGED, HOSTILE, 0x100),),
    next=(NextCommand(HOSTILE, f"job --config '{HOSTILE}'"),),
    days=FIGURES,
)
VOID = {"meta"}
SVG = "{http://www.w3.org/2000/svg}"


class Elements(HTMLParser):
    """Fails for elements that are not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def charts(html: str) -> dict[str, ElementTree.Element]:
    """The charts as XML, by title."""
    found = re.findall(r'<h2>([^<]*)</h2>\s*<figure class="chart".*?(<svg.*?</svg>)', html, re.DOTALL)
    return {title: ElementTree.fromstring(svg) for title, svg in found}


def words(svg: ElementTree.Element) -> list[str]:
    return [text for e in svg.iter(f"{SVG}text") if (text := "".join(e.itertext()).strip())]


def test_the_page_is_self_contained() -> None:
    html = page(REPORT)
    elements = Elements(html)
    assert set(elements.tags).isdisjoint({"script", "link", "img", "iframe", "object", "embed", "form", "base", "a"})
    names = {name for name, _ in elements.attributes}
    assert names.isdisjoint({"src", "href", "action"})
    assert all(value.startswith("#") for name, value in elements.attributes if name == "xlink:href")
    assert not any(name.startswith("on") for name in names)
    assert not re.search(r"url\(|@import|https?:|//", html.partition("</style>")[0])
    assert "default-src 'none'" in html


def test_hostile_names_are_text() -> None:
    html = page(REPORT)
    assert "<script" not in html
    assert "\u202e" not in html
    assert "\x1b" not in html
    texts = "".join(Elements(html).texts)
    assert texts.count("<script>alert('x')</script>\"&\\u202e\\x1b[31m") >= 6


def test_each_chart_shows_its_figures() -> None:
    by_title = charts(page(REPORT))
    assert list(by_title) == ["Landed bytes", "Messages", "Seconds by stage", "Lag"]
    assert {"02-08", "03-01", "0 bytes", "2 kB", "4 kB"} <= {*words(by_title["Landed bytes"])}
    assert {"find files", "write tables", "10 s"} <= {*words(by_title["Seconds by stage"])}
    assert {"0 s", "4 min"} <= {*words(by_title["Lag"])}


def test_bars_are_as_high_as_their_values() -> None:
    chart = bars("c", ["2026-01-01", "2026-01-02", "2026-01-03"], {"": [10, None, 20]}, number)
    paths = [e for e in ElementTree.fromstring(chart.svg).iter(f"{SVG}path") if "#2a78d6" in (e.get("style") or "")]
    heights = []
    for path in paths:
        ys = [float(y) for y in re.findall(r"[ML] \S+ (\S+)", path.get("d") or "")]
        heights.append(max(ys) - min(ys))
    assert heights[0] * 2 == pytest.approx(heights[2], rel=0.01)
    assert heights[1] == 0


def test_a_line_breaks_where_a_day_has_no_value() -> None:
    chart = durations("c", [f"2026-01-{day:02}" for day in range(1, 6)], [60, 120, None, 60, 180])
    line = next(
        e.get("d") or ""
        for e in ElementTree.fromstring(chart.svg).iter(f"{SVG}path")
        if "fill: none; stroke: #2a78d6" in (e.get("style") or "")
    )
    assert line.count("M") == 2


def test_charts_are_described_for_screen_readers() -> None:
    html = page(REPORT)
    described = re.findall(r'<figure class="chart" role="img" aria-label="([^"]*)"', html)
    assert len(described) == 4
    assert "2026-01-31 to 2026-03-01: 54 on 2026-02-28; at most 54, on 2026-02-28." in described


def test_equal_figures_make_equal_pages() -> None:
    assert page(REPORT) == page(REPORT)


def test_a_page_of_a_source_without_batches() -> None:
    html = page(Status("shop", "2026-03-01T09:00:00+00:00"))
    Elements(html)
    assert "Nothing applied yet" in html
    assert html.count("no figures.") == 4


def test_many_tables_and_lines_are_cut(tmp_path: Path) -> None:
    many = tuple(DayTable("public", f"t{i:03}", i, i, 0, 0) for i in range(150))
    ranges = tuple(f"/a: {i}" for i in range(50))
    report = replace(REPORT, days=(replace(FIGURES[-1], tables=many),), quarantine=Quarantine(1, 0, ranges))
    html = page(report)
    assert "public.t149" in html
    assert "public.t000" not in html
    assert "50 more tables changed less." in html
    assert "… and 30 more" in html
    assert len(html) < 500_000
    write_page(report, str(tmp_path / "a.html"))
    assert (tmp_path / "a.html").read_text(encoding="utf-8") == html
    with pytest.raises(RunError, match="the page can't be written"):
        write_page(report, str(tmp_path / "none" / "a.html"))


def test_numbers_in_words() -> None:
    assert [byte_count(n) for n in (0, 999, 1000, 1_234_567, 2.5e9)] == [
        "0 bytes",
        "999 bytes",
        "1 kB",
        "1.2 MB",
        "2.5 GB",
    ]
    assert [number(n) for n in (7, 1500, 250_000)] == ["7", "1.5 k", "250 k"]
    durations = {-1: "0 s", 59.9: "59 s", 60: "1 min", 7200: "2 h", 29_100: "8 h 5 min", 176_400: "2 d 1 h"}
    assert {s: duration(s) for s in durations} == durations
    assert duration(86_400 * 150 + 7200) == "150 d"
