"""Floats that a sender rounded, and exact ones."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from pgoutput_etl.inspection.float_digits import DigitCounts
from tests.core.inspection.test_archive import inspected, land
from tests.support.captures import DATA, files_of
from tests.support.small_archives import insert, table, transaction, tuple_data

FLOAT4, FLOAT8, FLOAT8S, POINT = 700, 701, 1022, 600
RANDOM = Random(7)
NUMBERS = [RANDOM.random() * 10.0 ** RANDOM.randrange(-30, 30) for _ in range(60)]
EXACT = [repr(number) for number in NUMBERS]
ROUNDED = [f"{number:.15g}" for number in NUMBERS]


def show_rounding(texts: list[str], type_oid: int = FLOAT8) -> bool:
    counts = DigitCounts()
    for text in texts:
        counts.add(table("id", ("x", type_oid)), tuple_data("1", text))
    return counts.show_rounding


@pytest.mark.parametrize("form", ["{}", "-{}", "{{1,{},NULL}}", "({},0)"])
def test_rounded_and_exact_float8(form: str) -> None:
    type_oid = FLOAT8S if form.startswith("{{") else POINT if form.startswith("(") else FLOAT8
    assert show_rounding([form.format(text) for text in ROUNDED], type_oid)
    assert not show_rounding([form.format(text) for text in EXACT], type_oid)
    assert not show_rounding([form.format(text) for text in [*ROUNDED, *EXACT[:5]]], type_oid)


def test_rounded_and_exact_float4() -> None:
    assert show_rounding([f"{number:.6g}" for number in NUMBERS if abs(number) < 1e38], FLOAT4)
    assert not show_rounding([f"{number:.8g}" for number in NUMBERS], FLOAT4)


@pytest.mark.parametrize(
    "texts",
    [
        [f"{n / 100:.2f}" for n in range(100_000, 100_200)],  # prices
        [str(100_000_000_000_007 + n) for n in range(100)],  # integers of 15 digits
        [f"{n}.123456" for n in range(1_764_250_000, 1_764_250_100)],  # seconds with microseconds
        ["Infinity", "NaN", "0", "1e+300", "0.1"] * 20,
        ROUNDED[:8],  # too few to tell
    ],
)
def test_few_digits_prove_nothing(texts: list[str]) -> None:
    assert not show_rounding(texts)


def test_an_inspection_names_the_file(tmp_path: Path) -> None:
    floats = table("id", ("x", FLOAT8))
    rows = [insert(str(n), text) for n, text in enumerate(ROUNDED)]
    report = inspected([land(tmp_path, transaction(1, 10, floats, *rows))])
    assert list(report.settings["extra_float_digits"]) == ["0 or less"]
    [remark] = report.remarks
    assert "no float has more digits than extra_float_digits = 0 leaves" in remark
    assert not report.is_damaged


@pytest.mark.parametrize("slot", ["pg10/v1", "pg14/v1", "pg16/v4_parallel", "random16/v1"])
def test_real_archives_have_exact_floats(slot: str) -> None:
    report = inspected(files_of(DATA / slot))
    assert "0 or less" not in report.settings.get("extra_float_digits", {})
