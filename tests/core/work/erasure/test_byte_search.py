"""Texts are found in raw, compressed, and encoded bytes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pgoutput_etl.work.erasure.byte_search import counts_in_landed, counts_in_table

TEXTS = ("Byron", 'Ada "L." Lovelace', "née")


def test_a_landed_file_is_searched_as_it_is_and_decompressed() -> None:
    content = "née Byron, Byron".encode()
    assert counts_in_landed(content, "a.bin", TEXTS) == {0: 2, 2: 1}
    assert counts_in_landed(gzip.compress(content), "a.bin.gz", TEXTS) == {0: 2, 2: 1}
    assert counts_in_landed(b"Byron", "a.bin.gz", TEXTS) == {0: 1}


def test_json_is_searched_for_escaped_texts() -> None:
    for ascii_only in (True, False):
        line = json.dumps({"stats": json.dumps({"min": TEXTS[1]})}, ensure_ascii=ascii_only)
        assert counts_in_table(json.dumps(TEXTS[1]).encode(), TEXTS) == {1: 1}
        assert counts_in_table(line.encode(), TEXTS) == {1: 1}
        assert counts_in_table(json.dumps(TEXTS[2], ensure_ascii=ascii_only).encode(), TEXTS) == {2: 1}


def test_values_of_parquet_files_are_decoded(tmp_path: Path) -> None:
    values = {
        "text": ["x Byron"],
        "bytes": [b"Byron"],
        "list": [[{"a": "Byron"}]],
        "map": [[("Byron", "née")]],
        "number": [1],
    }
    kinds = {"map": pa.map_(pa.string(), pa.string())}
    columns = {name: pa.array(column, kinds.get(name)) for name, column in values.items()}
    columns["dictionary"] = pa.array(["Byron"]).dictionary_encode()
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", compression="zstd", write_statistics=False)
    content = (tmp_path / "a.parquet").read_bytes()
    assert counts_in_table(content, TEXTS)[0] >= 5
    assert counts_in_table(content, TEXTS)[2] >= 1
    assert counts_in_table(content, ["Lovelace"]) == {}
