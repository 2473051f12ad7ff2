"""What becomes of a column's values before anything of them is kept: dropped, hashed, redacted.

A hash is HMAC-SHA-256 of PostgreSQL's text of the value, under a salt that the environment has, as 64 hexadecimal
digits. NULL stays NULL in all of them. docs/columns.md says how somebody computes the same in SQL.
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

_BLOCK = 64  # bytes, of SHA-256


class ColumnAction(Enum):
    DROP = "drop"
    HASH = "hash"
    REDACT = "redact"


@dataclass(frozen=True, slots=True)
class Salt:
    """Never shown: what may be is its fingerprint, which tells one salt from another and nothing else."""

    secret: bytes = field(repr=False)

    @property
    def fingerprint(self) -> str:
        return self.hashed([b"pgoutput_etl: which salt is this"])[0].decode()[:_FINGERPRINT_DIGITS]

    def hashed(self, texts: Iterable[bytes]) -> list[bytes]:
        """HMAC-SHA-256 (RFC 2104) in hexadecimal digits. What the key alone decides is worked out once: half the time
        of hmac.digest for each."""
        key = self.secret if len(self.secret) <= _BLOCK else sha256(self.secret).digest()
        inner, outer = (sha256(bytes(b ^ pad for b in key.ljust(_BLOCK, b"\0"))) for pad in (0x36, 0x5C))
        found = []
        for text in texts:
            first, second = inner.copy(), outer.copy()
            first.update(text)
            second.update(first.digest())
            found.append(second.hexdigest().encode())
        return found


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """What is done to one column. salt: of a hash; text: what stands for every value that is redacted."""

    action: ColumnAction
    salt: Salt | None = None
    text: str = REDACTED

    def __str__(self) -> str:
        """As it is written down with a table, to notice that it has changed."""
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
    """For people, of what is written down with a table."""
    return ", ".join(f"{name} {_PAST_TENSE[ColumnAction(_word(said))]}" for name, said in uses.items())


def mask_change_text(column: str, before: str | None, now: str | None) -> str:
    """For people, of what was written down with a table and what the configuration says."""
    if _word(before) == _word(now):
        how = "hashed with another salt" if _word(now) == ColumnAction.HASH.value else "redacted to another text"
        return f"{column} was {how}"
    return f"{column} ({_word(before)} before, {_word(now)} now)"


def _word(said: str | None) -> str:
    return "as it is" if said is None else said.partition(":")[0]


def changed_masks(then: Mapping[str, str], clear: frozenset[str], now: Mapping[str, str]) -> list[str]:
    """What differs for values that are there: `then` of their columns, `clear` those that are there as they are."""
    found = [mask_change_text(name, said, now.get(name)) for name, said in then.items() if now.get(name) != said]
    found += [mask_change_text(name, None, said) for name, said in now.items() if name not in then and name in clear]
    return sorted(found)
