"""Rules that mask a column's values before any are stored: drop, hash, or redact.

A hash is HMAC-SHA-256 of the value's text in PostgreSQL, with a salt from the environment, as 64 hexadecimal digits.
NULL always stays NULL. docs/mask-columns.md has the same hash in SQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256

REDACTED = "REDACTED"

SALT_VARIABLE = "PGOUTPUT_ETL_SALT"

LEAST_SALT = 16  # bytes

_FINGERPRINT_DIGITS = 16

_BLOCK = 64  # block size of SHA-256 in bytes


class ColumnAction(Enum):
    DROP = "drop"
    HASH = "hash"
    REDACT = "redact"


@dataclass(frozen=True, slots=True)
class Salt:
    """A secret that is never shown. Its fingerprint may be shown: it identifies the salt without revealing anything
    else."""

    secret: bytes = field(repr=False)

    @property
    def fingerprint(self) -> str:
        return self.hashed([b"pgoutput_etl: which salt is this"])[0].decode()[:_FINGERPRINT_DIGITS]

    def hashed(self, texts: Iterable[bytes]) -> list[bytes]:
        """HMAC-SHA-256 (RFC 2104) as hexadecimal digits. Hashes the key only once, which takes half the time of calling
        hmac.digest for every text."""
        key = self.secret if len(self.secret) <= _BLOCK else sha256(self.secret).digest()
        inner, outer = (sha256(bytes(b ^ pad for b in key.ljust(_BLOCK, b"\0"))) for pad in (0x36, 0x5C))
        hashes = []
        for text in texts:
            first, second = inner.copy(), outer.copy()
            first.update(text)
            second.update(first.digest())
            hashes.append(second.hexdigest().encode())
        return hashes


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """The action for one column. salt: for a hash. text: replaces every redacted value."""

    action: ColumnAction
    salt: Salt | None = None
    text: str = REDACTED

    def __str__(self) -> str:
        """The form in which the ledger records a rule, in order to detect changes."""
        match self.action:
            case ColumnAction.DROP:
                return "drop"
            case ColumnAction.REDACT:
                return f"redact: {self.text}"
            case ColumnAction.HASH:
                return f"hash: sha256, salt {'' if self.salt is None else self.salt.fingerprint}"


DROP = ColumnRule(ColumnAction.DROP)


_PAST_TENSE = {ColumnAction.DROP: "dropped", ColumnAction.HASH: "hashed", ColumnAction.REDACT: "redacted"}


def masks_in_words(uses: Mapping[str, str]) -> str:
    """Describes the recorded rules of a table's columns."""
    return ", ".join(f"{name} {_PAST_TENSE[ColumnAction(_action(rule))]}" for name, rule in uses.items())


def changed_masks(then: Mapping[str, str], clear: frozenset[str], now: Mapping[str, str]) -> list[str]:
    """Describes how the rules for stored values have changed. then: recorded rules by column. clear: columns that are
    stored unmasked. now: configured rules."""
    names = [*then, *(name for name in now if name not in then and name in clear)]
    changed = (name for name in names if now.get(name) != then.get(name))
    return sorted(_change_text(name, then.get(name), now.get(name)) for name in changed)


def _change_text(column: str, before: str | None, now: str | None) -> str:
    if _action(before) == _action(now):
        how = "hashed with another salt" if _action(now) == ColumnAction.HASH.value else "redacted to another text"
        return f"{column} was {how}"
    return f"{column} ({_action(before)} before, {_action(now)} now)"


def _action(rule: str | None) -> str:
    return "as it is" if rule is None else rule.partition(":")[0]
