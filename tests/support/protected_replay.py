"""Replays archives in memory with the configuration's masks. Archives are read twice, as the job does."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pgoutput_etl.config.column_rules import SALT_VARIABLE
from pgoutput_etl.config.settings import Config, load_config
from pgoutput_etl.masking.mask_rows import MaskingPolicy
from pgoutput_etl.masking.policy import masking_policy, scopes_of
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.types import UserTypes
from tests.support.scan_parts import scan_file

SALT = "a salt of sixteen bytes and more"
ENVIRON = {SALT_VARIABLE: SALT}


def hashed(text: str) -> str:
    return hmac.new(SALT.encode(), text.encode(), "sha256").hexdigest()


def config_with(folder: Path, rules: str, environ: Mapping[str, str] = ENVIRON) -> Config:
    """`rules`: the configuration's `tables`."""
    path = folder / "shop.yaml"
    path.write_text(f"source: {{name: shop, landing: in}}\ntarget: {{root: out}}\ntables: {rules}\n")
    return load_config(str(path), [], environ)


def as_sent(files: Sequence[bytes]) -> Replay:
    replay = Replay()
    for number, content in enumerate(files):
        replay.add_file(f"{number:03}", content)
    return replay


def protection_of(config: Config, first_look: Replay) -> MaskingPolicy | None:
    assembly = first_look.assembly
    user_types = UserTypes.of(assembly.types.values(), config.types)
    scopes = scopes_of((*assembly.outcomes, *assembly.open_outcomes()))
    return masking_policy(config, assembly.relations, user_types, scopes)


def protected_replay(config: Config, files: Sequence[bytes]) -> Replay:
    protected = protection_of(config, as_sent(files))
    assert protected is not None
    replay = Replay()
    for number, content in enumerate(files):
        scanned = scan_file(f"{number:03}", number, content)
        replay.add_scanned(f"{number:03}", replace(scanned, rows=[protected.mask(rows) for rows in scanned.rows]))
    replay.assembly.relations.mask = protected
    return replay
