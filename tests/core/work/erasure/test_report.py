"""What people read after an erasure, or before it."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

from rich.console import Console

from pgoutput_etl.work.erasure.report import (
    ForgetSummary,
    ForgottenTable,
    OtherKeys,
    ProofSummary,
    ProvenTable,
    Remnant,
    RewrittenFile,
    print_forget,
)


def printed(summary: ForgetSummary | ProofSummary) -> str:
    console = Console(file=StringIO(), width=200)
    print_forget(summary, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_an_erasure() -> None:
    files = (RewrittenFile("landing/1", "a", "b"), RewrittenFile("landing/2", "c", "d"))
    tables = (ForgottenTable("public.t", 5, 2), ForgottenTable("public.u", 1, None))
    preview = ForgetSummary("shop", "DSR-7", False, 0, tables, files, 1, 3, (), ("public.t",), "landing/2", 9)
    text = printed(preview)
    for part in (
        "Erasure DSR-7 of shop: would be erased from 2 files",
        "Also 9 rows of snapshots' files, 1 Message, 3 rows of the ledger",
        "No other change shows a form that the columns of public.t had",
        "no receiver may have it open: landing/2",
        "Nothing was changed: --execute erases",
    ):
        assert part in text
    asked = replace(preview, other_keys=OtherKeys("folder/a.other-keys.yaml", (("public.t", 1_000), ("public.u", 1))))
    expected = "which the request does not name: 1,000 of public.t, 1 of public.u: folder/a.other-keys.yaml. Add them"
    assert expected in printed(asked)
    assert (asked.exit_code, replace(asked, executed=True).exit_code) == (0, 3)
    done = replace(preview, executed=True, batch=7, left=("a folder",))
    assert "Nothing was changed" not in printed(done)
    assert "Not erased: a folder" in printed(done)
    assert (preview.exit_code, done.exit_code) == (0, 3)


def test_a_proof() -> None:
    proof = ProofSummary("shop", "DSR-7", 4, 1_000, 2, (ProvenTable("public.t", 0), ProvenTable("public.u", None)))
    text = printed(proof)
    assert "Proof of erasure DSR-7 of shop: 2 texts in 4 files, 1,000 bytes" in text
    assert "from the target" in text
    assert "Nothing was found" in text
    found = replace(proof, remnants=(Remnant("landing/1", "text 1", 2),))
    assert "Found: text 1: landing/1: 2" in printed(found)
    different = replace(proof, tables=(ProvenTable("public.t", 1),))
    assert [p.exit_code for p in (proof, found, different, replace(proof, left=("x",)))] == [0, 3, 3, 3]
