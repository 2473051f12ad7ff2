"""The figures in docs/performance.md and docs/benchmarks.md come from the benchmarks."""

from __future__ import annotations

from benchmarks.page import PAGES, page


def test_figures_are_written_between_their_marks() -> None:
    text = "Words.\n<!-- figures: merge -->\nold\n<!-- end -->\nMore words.\n"
    costs = [{"question": "vectors", "variant": "on", "seconds": 2.0, "ratio": 1.0}]
    parts = {"merge": {"scale": 0.5, "runs": 3, "cores": 2, "found": costs}}
    assert page(text, parts) == (
        "Words.\n<!-- figures: merge -->\n"
        "|  | seconds | ratio |\n| --- | ---: | ---: |\n| vectors: on | 2 | 1 |\n"
        "\nScale 0.5, medians of 3, 2 cores.\n<!-- end -->\nMore words.\n"
    )


def test_a_part_that_was_not_measured_keeps_its_figures() -> None:
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        assert page(text, {}) == text


def test_requests_are_written_by_kind_and_by_place() -> None:
    text = "<!-- figures: late -->\n<!-- end -->\n"
    kinds = {"seconds": 2.5, "server": 0.5, "requests": 9, "GET": 1, "HEAD": 2, "LIST": 3, "PUT": 2, "DELETE": 1}
    places = {"logs of tables": 5, "data of tables": 1, "ledger": 2, "landing": 1, "claims": 0}
    night = {"night": "changes", "tables": 20, **kinds, **places}
    written = page(text, {"late": {"scale": 1, "runs": 1, "cores": 2, "found": [night]}})
    assert "| changes | 20 | 2.5 | 0.5 | 9 | 1 | 2 | 3 | 2 | 1 |" in written
    assert "| changes | 20 | 5 | 1 | 2 | 1 | 0 |" in written
