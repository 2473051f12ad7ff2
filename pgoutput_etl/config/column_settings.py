"""Reads the settings of a table's columns: masks, and the origins of columns that the archive leaves open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias
from zoneinfo import available_timezones

from pgoutput_etl.config.column_rules import DROP, LEAST_SALT, SALT_VARIABLE, ColumnAction, ColumnRule, Salt
from pgoutput_etl.config.yaml_file import Node
from pgoutput_etl.time_zones import TIMESTAMP, TIMESTAMPTZ

# Values in `columns` that declare a column's origin where the archive leaves it open (schema/identification.py)
ADDED, RENAMED_FROM = "added", "renamed_from"

# The declaration of a conversion between timestamp and timestamptz, which depends on the altering session's time zone
CONVERTED_FROM, TIME_ZONE = "converted_from", "time_zone"

_UNARY_RULES = {"drop": DROP, "redact": ColumnRule(ColumnAction.REDACT), ADDED: None}

_COLUMN_ACTIONS = (
    "drop, redact, {hash: sha256}, {redact: text}, {renamed_from: old name}, {converted_from: timestamp, time_zone: "
    "Europe/Berlin} or added"
)


OneSetting: TypeAlias = str | Mapping[str, str]

Setting: TypeAlias = OneSetting | list[OneSetting]  # a list has the declarations of several changes, in their order


def column_setting(node: Node) -> tuple[Setting, ColumnRule | None]:
    """The column's setting without the salt, and its rule if it is masked."""
    if not isinstance(node.value, list):
        return _one_setting(node)
    nodes = node.items(_COLUMN_ACTIONS)
    pairs = [_one_setting(item) for item in nodes]
    for item, (setting, _) in zip(nodes, pairs, strict=True):
        if setting != ADDED and not (isinstance(setting, Mapping) and {RENAMED_FROM, CONVERTED_FROM} & setting.keys()):
            raise item.error(f"expected {ADDED}, {RENAMED_FROM}, or {CONVERTED_FROM} in each item of a list")
    settings, masks = [setting for setting, _ in pairs], [mask for _, mask in pairs if mask is not None]
    if not settings or len(masks) > 1:
        raise node.error("expected a list of declarations, of which one at most has a mask")
    before = [s[CONVERTED_FROM] for s in settings if isinstance(s, Mapping) and CONVERTED_FROM in s]
    if len(before) > len({*before}):
        raise node.error(f"expected each {CONVERTED_FROM} once: the archive does not show which one a change is about")
    return settings, masks[0] if masks else None


def settings_of(setting: Setting) -> Sequence[OneSetting]:
    """A column's settings, of which a list has several."""
    return setting if isinstance(setting, list) else [setting]


def _one_setting(node: Node) -> tuple[OneSetting, ColumnRule | None]:
    if not isinstance(node.value, dict):
        setting = node.text(_COLUMN_ACTIONS)
        if setting not in _UNARY_RULES:
            raise node.error(f"expected {_COLUMN_ACTIONS}")
        return setting, _UNARY_RULES[setting]
    names = ("hash", "redact", RENAMED_FROM, CONVERTED_FROM, TIME_ZONE)
    keys = node.section(*names, "salt")
    given = {name: keys[name] for name in names if keys[name].value is not None}
    if not given or {"hash", "redact"} <= given.keys():
        raise node.error(f"expected {_COLUMN_ACTIONS}")
    settings = {name: argument.text("the argument of this action") for name, argument in given.items()}
    _check_conversion(keys, settings)
    if "hash" not in settings and keys["salt"].value is not None:
        raise keys["salt"].error("expected only with hash")
    if "redact" in settings:
        return settings, ColumnRule(ColumnAction.REDACT, text=settings["redact"])
    if "hash" not in settings:
        return settings, None
    if settings["hash"] != "sha256":
        raise keys["hash"].error("expected sha256")
    return settings, ColumnRule(ColumnAction.HASH, _salt(keys["hash"], keys["salt"]))


def _check_conversion(keys: Mapping[str, Node], settings: Mapping[str, str]) -> None:
    if (CONVERTED_FROM in settings) != (TIME_ZONE in settings):
        missing = keys[TIME_ZONE if CONVERTED_FROM in settings else CONVERTED_FROM]
        raise missing.error(f"missing: {CONVERTED_FROM} and {TIME_ZONE} belong together")
    if settings.get(CONVERTED_FROM, TIMESTAMP) not in (TIMESTAMP, TIMESTAMPTZ):
        raise keys[CONVERTED_FROM].error(f"expected {TIMESTAMP} or {TIMESTAMPTZ}, the column's former type")
    if TIME_ZONE in settings and settings[TIME_ZONE] not in available_timezones():
        raise keys[TIME_ZONE].error("expected a name of the IANA time zone database, such as Europe/Berlin")


def _salt(hash_node: Node, node: Node) -> Salt:
    """Reads the salt from the environment, because more people read the file than should know a secret."""
    if node.value is None:
        if SALT_VARIABLE not in node.environ:
            raise hash_node.error(f"expected a salt in the environment variable {SALT_VARIABLE}, which is not set")
        text, source = node.environ[SALT_VARIABLE], hash_node
        origin = f"the environment variable {SALT_VARIABLE}: "
    else:
        text, source, origin = node.text("${NAME}, a salt from the environment"), node, ""
        if not node.is_secret:
            raise node.error("expected ${NAME}: a salt comes from the environment, never from a file")
    secret = text.encode("utf-8", "surrogateescape")
    if len(secret) < LEAST_SALT:
        raise source.error(f"{origin}expected a salt of {LEAST_SALT} bytes or more")
    return Salt(secret)
