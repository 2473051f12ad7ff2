"""Catalog Messages: what counts, and what a forged or damaged one does."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest

from pgoutput_etl.protocol.catalog_message import (
    CatalogMessage,
    CatalogMessageError,
    MessagePlace,
    read_catalog_message,
)
from pgoutput_etl.protocol.messages import TypeDefinition

KEY = bytes(range(32))
COLUMN = {"number": 1, "name": "id", "type": 23, "modifier": -1}
DOMAIN = {"oid": 16401, "kind": "d", "schema": "public", "name": "posint", "of": 23, "modifier": -1}
TABLE = {"oid": 16400, "schema": "public", "name": "t", "columns": [COLUMN]}
BODY: dict[str, Any] = {"version": 1, "number": 5, "xid": 701, "command": "ALTER TABLE", "tables": [TABLE]}
BODY |= {"transaction": 2**32 + 700, "after": [4]}


def content(body: object, key: bytes = KEY) -> bytes:
    text = json.dumps(body).encode()
    return sha256(key + sha256(key + text).digest()).hexdigest().encode() + text


def test_a_message_with_the_keys_digest_counts() -> None:
    [table] = read_catalog_message(content(BODY), KEY).tables
    assert (table.oid, table.namespace, table.name, table.last_number) == (16400, "public", "t", 1)


@pytest.mark.parametrize("forged", [content(BODY, b"guessed"), content(BODY)[:-1] + b" ", b"0" * 64, b"", b"\xff" * 99])
def test_a_message_with_another_digest_does_not(forged: bytes) -> None:
    with pytest.raises(CatalogMessageError, match="digest"):
        read_catalog_message(forged, KEY)


def test_without_a_key_any_digest_counts() -> None:
    assert read_catalog_message(content(BODY, b"guessed"), None).tables


@pytest.mark.parametrize(
    "body",
    [
        [],
        "text",
        None,
        {**BODY, "tables": [{**TABLE, "oid": "16400"}]},
        {**BODY, "tables": [{**TABLE, "oid": 2**32}]},
        {**BODY, "tables": [{**TABLE, "oid": True}]},
        {**BODY, "tables": [{**TABLE, "name": 1}]},
        {**BODY, "tables": [{**TABLE, "columns": [{**COLUMN, "number": 1 << 15}]}]},
        {**BODY, "tables": [{**TABLE, "columns": [{**COLUMN, "initial": 7}]}]},
        {**BODY, "tables": [{**TABLE, "columns": [{**COLUMN, "form": {"labels": [["a", 1]]}}]}]},
        {**BODY, "tables": [{**TABLE, "columns": [{**COLUMN, "form": [1]}]}]},
        {**BODY, "tables": [{**TABLE, "columns": [{**COLUMN, "form": {"types": [{**DOMAIN, "of": "23"}]}}]}]},
        {**BODY, "tables": [{**TABLE, "columns": [{**COLUMN, "form": {"types": [{"oid": 16401}]}}]}]},
        {**BODY, "tables": 1},
        {**BODY, "rewritten": {"oid": 1}},
        {**BODY, "dropped": [None]},
        {**BODY, "transaction": 2**63},
        {**BODY, "number": None},
        {**BODY, "after": ["4"]},
        {"version": 1},
    ],
)
def test_another_form_is_an_error_without_content(body: object) -> None:
    with pytest.raises(CatalogMessageError, match="does not write such Messages"):
        read_catalog_message(content(body), None)


def test_generated_columns_that_no_publication_sends() -> None:
    columns = [COLUMN, {**COLUMN, "number": 2, "omitted": True}, {**COLUMN, "number": 3, "omitted": 1}]
    [table] = read_catalog_message(content({**BODY, "tables": [{**TABLE, "columns": columns}]}), KEY).tables
    assert (len(table.columns), table.omitted) == (3, (2,))


def test_the_types_of_a_column_are_no_form() -> None:
    column = {**COLUMN, "form": {"types": [DOMAIN]}}
    [table] = read_catalog_message(content({**BODY, "tables": [{**TABLE, "columns": [column]}]}), KEY).tables
    [found] = table.columns
    assert (found.form, found.types) == (None, (TypeDefinition(16401, "d", "public", "posint", 23),))


def test_a_deeply_nested_text_is_an_error() -> None:
    with pytest.raises(CatalogMessageError):
        read_catalog_message(b"0" * 64 + b"[" * 100_000, None)


def test_a_newer_version_is_named() -> None:
    with pytest.raises(CatalogMessageError, match="another version than 1"):
        read_catalog_message(content({**BODY, "version": 2}), None)


def test_what_a_command_has_done() -> None:
    rewritten = {"version": 1, "xid": 1, "rewritten": {"oid": 5, "root": 4, "reasons": 4, "is_cast": True}}
    assert read_catalog_message(content(rewritten), None) == CatalogMessage(rewritten=(4, 5), is_cast=True, xid=1)
    filled = {"version": 1, "xid": 1, "rewritten": {"oid": 5, "reasons": 2, "is_cast": False, "is_filled": True}}
    assert read_catalog_message(content(filled), None) == CatalogMessage(rewritten=(5,), is_filled=True, xid=1)
    dropped = {"version": 1, "xid": 1, "dropped": [7]}
    assert read_catalog_message(content(dropped), None) == CatalogMessage(dropped=(7,), xid=1)
    unknown = {"version": 1, "xid": 1, "unknown": "55P03"}
    assert read_catalog_message(content(unknown), None).is_unknown


def test_a_message_counts_once_in_the_transaction_that_has_made_it() -> None:
    found = read_catalog_message(content(BODY), KEY)
    found.check_is_original(MessagePlace(700, 4, 2**32 + 2**31 + 699))
    copied = MessagePlace(701, 4), MessagePlace(700, 5), MessagePlace(700, 6), MessagePlace(700, 4, 2**33 + 700)
    for place in copied:
        with pytest.raises(CatalogMessageError, match="copies of earlier ones"):
            found.check_is_original(place)
    untold = {name: value for name, value in BODY.items() if name not in ("transaction", "number")}
    with pytest.raises(CatalogMessageError, match="copies"):
        read_catalog_message(content(untold), KEY).check_is_original(MessagePlace(700))
