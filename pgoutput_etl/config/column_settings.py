"""Reads the settings of a table's columns: masks, and declarations about origins that the archive doesn't reveal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, TypeAlias
from zoneinfo import available_timezones

from pydantic import SkipValidation, model_validator
from pydantic.dataclasses import dataclass as section

from pgoutput_etl.config.column_rules import DROP, LEAST_SALT, SALT_VARIABLE, ColumnAction, ColumnRule, Salt
from pgoutput_etl.config.key_checks import SETTINGS, Section, below, expected, mistake, part, text
from pgoutput_etl.config.yaml_file import FromEnvironment
from pgoutput_etl.time_zones import TIMESTAMP, TIMESTAMPTZ

# Values in `columns` that declare a column's origin if the archive doesn't reveal it (schema/column_matching.py)
ADDED, RENAMED_FROM = "added", "renamed_from"

KEEP = "keep"  # neither masked nor declared; overrides a more general rule's setting

# The declaration of a conversion between timestamp and timestamptz, which depends on the altering session's time zone
CONVERTED_FROM, TIME_ZONE = "converted_from", "time_zone"

COMMENT = "comment"  # the Delta column's comment; allowed together with another setting

SALT = "salt"

_UNARY_RULES = {"drop": DROP, "redact": ColumnRule(ColumnAction.REDACT), KEEP: None, ADDED: None}

_NOT_OF_A_COLUMN = {
    "type": "`types` names the type for all columns of a PostgreSQL type",
    "rename": "a Delta column has PostgreSQL's name; rename it in a view",
}

_COLUMN_ACTIONS = (
    "drop, redact, {hash: sha256}, {redact: text}, {renamed_from: old name}, {converted_from: timestamp, "
    "time_zone: Europe/Berlin}, {comment: text}, added or keep"
)


OneSetting: TypeAlias = str | Mapping[str, str]

Setting: TypeAlias = OneSetting | list[OneSetting]  # a list has the declarations for several changes, in order

_Argument: TypeAlias = Annotated[str, text("the argument of this action")]


@section(frozen=True, config=SETTINGS)
class ColumnDeclaration(Section):
    """One setting of a column that has arguments."""

    hash: _Argument | None = None
    redact: _Argument | None = None
    renamed_from: _Argument | None = None
    converted_from: _Argument | None = None
    time_zone: _Argument | None = None
    comment: _Argument | None = None
    salt: Annotated[SkipValidation[str], text("${NAME}, a salt from the environment")] | None = None

    @property
    def given(self) -> dict[str, str]:
        """The arguments that are set, except the salt."""
        values = {own.name: getattr(self, own.name) for own in fields(self) if own.name != SALT}
        return {name: value for name, value in values.items() if value is not None}

    @model_validator(mode="after")
    def _fit_together(self) -> ColumnDeclaration:
        given = self.given
        if not given or {"hash", "redact"} <= given.keys():
            raise mistake(f"expected {_COLUMN_ACTIONS}")
        if (CONVERTED_FROM in given) != (TIME_ZONE in given):
            absent = TIME_ZONE if CONVERTED_FROM in given else CONVERTED_FROM
            raise mistake(f"missing: {CONVERTED_FROM} and {TIME_ZONE} belong together", absent)
        if given.get(CONVERTED_FROM, TIMESTAMP) not in (TIMESTAMP, TIMESTAMPTZ):
            raise mistake(f"expected {TIMESTAMP} or {TIMESTAMPTZ}, the column's former type", CONVERTED_FROM)
        if TIME_ZONE in given and given[TIME_ZONE] not in available_timezones():
            raise mistake("expected a name of the IANA time zone database, such as Europe/Berlin", TIME_ZONE)
        if "hash" not in given and self.salt is not None:
            raise mistake("expected only with hash", SALT)
        if given.get("hash", "sha256") != "sha256":
            raise mistake("expected sha256", "hash")
        return self


def column_setting(value: object, environ: Mapping[str, str]) -> tuple[Setting, ColumnRule | None]:
    """The column's setting without the salt, and its rule if it is masked."""
    if not isinstance(value, list):
        return _one_setting(value, environ)
    pairs = []
    for i, item in enumerate(value):
        with below(i):
            setting, mask = _one_setting(item, environ)
            is_declaration = isinstance(setting, Mapping) and {RENAMED_FROM, CONVERTED_FROM} & setting.keys()
            if setting != ADDED and not is_declaration:
                raise mistake(f"expected {ADDED}, {RENAMED_FROM}, or {CONVERTED_FROM} in each item of a list")
            pairs.append((setting, mask))
    settings, masks = [setting for setting, _ in pairs], [mask for _, mask in pairs if mask is not None]
    if not settings or len(masks) > 1:
        raise mistake("expected a list of declarations, of which one at most has a mask")
    before = [s[CONVERTED_FROM] for s in settings if isinstance(s, Mapping) and CONVERTED_FROM in s]
    if len(before) > len({*before}):
        raise mistake(f"expected each {CONVERTED_FROM} once: the archive does not show which one a change is about")
    return settings, masks[0] if masks else None


def _one_setting(value: object, environ: Mapping[str, str]) -> tuple[OneSetting, ColumnRule | None]:
    if not isinstance(value, Mapping):
        if value not in _UNARY_RULES:
            raise expected(value, _COLUMN_ACTIONS)
        return value, _UNARY_RULES[value]
    for key in (key for key in _NOT_OF_A_COLUMN if key in value):
        raise mistake(f"it can't be configured: {_NOT_OF_A_COLUMN[key]}", key)
    declaration = part(ColumnDeclaration, value)
    settings = declaration.given
    if "redact" in settings:
        return settings, ColumnRule(ColumnAction.REDACT, text=settings["redact"])
    if "hash" not in settings:
        return settings, None
    return settings, ColumnRule(ColumnAction.HASH, _salt(declaration.salt, environ))


def _salt(written: str | None, environ: Mapping[str, str]) -> Salt:
    """Reads the salt from the environment, because more people can read the file than should know a secret."""
    if written is None:
        if SALT_VARIABLE not in environ:
            raise mistake(f"expected a salt in the environment variable {SALT_VARIABLE}, which is not set", "hash")
        secret, key, origin = environ[SALT_VARIABLE], "hash", f"the environment variable {SALT_VARIABLE}: "
    else:
        secret, key, origin = written, SALT, ""
        if not isinstance(written, FromEnvironment):
            raise mistake("expected ${NAME}: a salt comes from the environment, never from a file", SALT)
    encoded = secret.encode("utf-8", "surrogateescape")
    if len(encoded) < LEAST_SALT:
        raise mistake(f"{origin}expected a salt of {LEAST_SALT} bytes or more", key)
    return Salt(encoded)
