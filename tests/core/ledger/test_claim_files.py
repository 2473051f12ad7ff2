"""The decisions about claims as objects, without storage; tests/spark/ledger/test_claim_files.py has the storage."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.ledger import claims
from pgoutput_etl.ledger.claim_files import ClaimFiles
from pgoutput_etl.ledger.claims import Claim, newest


@dataclass
class Objects:
    """vanished: names that are listed, and deleted before they are read."""

    texts: dict[str, str] = field(default_factory=dict)
    vanished: list[str] = field(default_factory=list)
    unseen: bool = False

    def names(self, folder: str) -> list[str]:
        prefix = f"{folder}/" if folder else ""
        found = (name for name in (*self.texts, *self.vanished) if name.startswith(prefix))
        return sorted({name.removeprefix(prefix).partition("/")[0] for name in found})

    def read(self, name: str) -> str | None:
        return self.texts.get(name)

    def exists(self, name: str) -> bool:
        return name in self.texts

    def put(self, name: str, text: str, may_exist: bool) -> None:
        assert may_exist or name not in self.texts
        self.texts[name] = text

    def can_put_once(self, name: str) -> bool:  # noqa: ARG002
        return True

    def puts_unseen(self) -> bool:
        return self.unseen

    def put_once(self, name: str, text: str) -> bool:
        return self.texts.setdefault(name, text) is text

    def delete(self, name: str) -> None:
        self.texts.pop(name, None)


def row(batch: int, run: str = "mine") -> dict[str, Any]:
    process = {"machine": "elsewhere boot pid:[1]", "pid": 4711, "started": 99}
    return {"batch": batch, "attempt": 1, "run": run, **process, "status": "claimed", "at": datetime.now(timezone.utc)}


def test_a_claim_that_another_run_deletes_between_listing_and_reading() -> None:
    objects = Objects()
    shop = ClaimFiles(objects, "shop", print)
    mine = row(2)
    assert shop.make(mine)
    objects.vanished = ["shop/1.1.json", "other/1.1.json"]
    assert shop.read(2) == [mine]
    assert ClaimFiles(objects, "another", print, machine=shop.machine).read(1) == []
    assert not shop.make(row(2, run="other")), "as it is taken"
    assert shop.make(row(3)), "although another source has a claim that vanishes"


def test_puts_that_look_for_nothing_are_refused() -> None:
    objects = Objects(unseen=True)
    with pytest.raises(ConfigError, match=r"fs\.s3a\.performance\.flags: with 'create', .*Remove it"):
        ClaimFiles(objects, "shop", print).make(row(1))
    assert objects.texts == {}, "nothing is claimed"


def dead_sources(*names: str) -> Objects:
    """Their runs have not released their claims; they are on other machines, and their clocks may differ."""
    objects = Objects()
    for name in names:
        run = row(7, name) | {"at": datetime.now(timezone.utc) - timedelta(hours=1)}
        ClaimFiles(objects, name, print).renew(run)
    return objects


def test_a_dead_run_of_another_source_is_observed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "LEASE", timedelta(milliseconds=50))
    monkeypatch.setattr(claims, "RETRY", timedelta(milliseconds=10))
    objects, waits, dead = dead_sources("web"), list[str](), set[Claim]()
    for batch in (1, 2, 3):
        assert ClaimFiles(objects, "shop", waits.append, dead=dead).make(row(batch))
    assert len(waits) == 1


def test_a_run_that_observes_others_is_heard_of_by_a_third_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits longer than its claim would be fresh, as it observes one source after another."""
    monkeypatch.setattr(claims, "LEASE", timedelta(milliseconds=300))
    monkeypatch.setattr(claims, "RETRY", timedelta(milliseconds=20))
    objects = dead_sources("web", "app")
    shop = ClaimFiles(objects, "shop", print)
    seen: list[bool] = []

    def look(_: str) -> None:
        """Called as the wait for the second dead source begins, too."""
        claim = newest(shop.read(1))
        assert claim is not None
        seen.append(claim.is_fresh(datetime.now(timezone.utc)))

    assert ClaimFiles(objects, "shop", look).make(row(1))
    assert seen == [True, True]
