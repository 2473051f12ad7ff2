"""Valid configurations and their meaning, and errors for invalid ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from pgoutput_etl.config.column_rules import DROP, SALT_VARIABLE, ColumnAction, ColumnRule, Salt
from pgoutput_etl.config.rules import Mode, OnMissingRow, TableRule
from pgoutput_etl.config.settings import (
    Config,
    Merge,
    Metrics,
    OnError,
    Snapshots,
    Source,
    SourceDatabase,
    State,
    Target,
    load_config,
)
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.time_zones import ZoneConversion
from pgoutput_etl.transactions.origin_filter import ANY, Origins
from tests.support.mutations import no_hang

CONF = Path(__file__).parents[3] / "conf"
SMALLEST = "source: {name: shop, landing: ./in}\ntarget: {root: ./out}\n"
SALT = "hunter2 and twelve bytes more"
ENVIRON = {"SECRET": "hunter2", "FOUR": "4", "YES": "true", "EMPTY": "", "LONG": SALT, SALT_VARIABLE: SALT}
EVERYTHING = """
source: {name: shop-1.a_b, landing: "s3a://landing/shop/*.gz", framing: pgcopy, snapshot: accept}
target: {root: s3a://lake/}
state: {root: ./ledger}
tables:
  - {match: "public.audit_*", skip: true}
  - match: "public.customers"
    mode: history
    key: [id, no]
    columns: {email: {hash: sha256}, note: drop}
    rename: crm.customer
    cluster_by: [id]
    properties: {delta.checkpointInterval: 7, team.owner: crm}
    comment: Customers
    on_missing_row: hold
types: {"public.posint": int4}
merge: {max_transactions: 1000, parallel_tables: 2}
on_error: fail
spark: {spark.sql.shuffle.partitions: 8, spark.ui.enabled: False, spark.memory.fraction: 0.60, spark.at: 12:30}
"""


def load(text: str, *overrides: str) -> Config:
    path = Path("shop.yaml")
    path.write_text(text, encoding="utf-8")
    return load_config(str(path), overrides, ENVIRON)


def refusal(text: str, overrides: Sequence[str] = ()) -> str:
    with pytest.raises(ConfigError) as refused:
        load(text, *overrides)
    assert "hunter2" not in str(refused.value)
    return str(refused.value)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: str(path.name))
def test_the_configurations_of_this_repository_can_be_run(path: Path) -> None:
    told = dict.fromkeys(re.findall(r"\$\{(\w+)\}", path.read_text(encoding="utf-8")), "told")
    assert load_config(str(path), environ=told).source.name


def test_what_is_left_out_has_a_default(tmp_path: Path) -> None:
    assert load(SMALLEST) == Config(
        source=Source("shop", f"{tmp_path}/in", Framing.AUTO),
        target=Target(f"{tmp_path}/out", None),
        state=State(f"{tmp_path}/out/_pgoutput_etl"),
        tables=(),
        types={},
        merge=Merge(max_transactions=None, parallel_tables=4),
        on_error=OnError.QUARANTINE,
        spark={},
    )
    commented_out = "state:\ntables:\ntypes:\nmerge: {max_transactions: null}\non_error:\nspark:\n"
    assert load(SMALLEST + commented_out) == load(SMALLEST)


def test_relative_folders_begin_at_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another machine's session, they are that machine's."""
    config = load(SMALLEST, "source.landing=../in/*.gz", "target.root=out//x/", "state.root=./l")
    assert config.source.landing == f"{tmp_path.parent}/in/*.gz"
    assert (config.target.root, config.state.root) == (f"{tmp_path}/out/x", f"{tmp_path}/l")
    for absolute in ("s3a://lake/a/../b/", "file:/a", "/a/", "dbfs:/Volumes/a"):
        assert load(SMALLEST, f"target.root={absolute}").target.root == absolute
    connected = load(SMALLEST, "spark={spark.remote: sc://etl}")
    assert (connected.source.landing, connected.state.root) == ("./in", "./out/_pgoutput_etl")
    monkeypatch.setitem(ENVIRON, "DATABRICKS_RUNTIME_VERSION", "18")
    assert load(SMALLEST).target.root == "./out"


def test_every_key_is_read(tmp_path: Path) -> None:
    assert load(EVERYTHING) == Config(
        source=Source("shop-1.a_b", "s3a://landing/shop/*.gz", Framing.PGCOPY, snapshot=Snapshots.ACCEPT),
        target=Target("s3a://lake/", None),
        state=State(f"{tmp_path}/ledger"),
        tables=(
            TableRule("public.audit_*", skip=True),
            TableRule(
                "public.customers",
                mode=Mode.HISTORY,
                key=("id", "no"),
                columns={"email": {"hash": "sha256"}, "note": "drop"},
                rename="crm.customer",
                cluster_by=("id",),
                properties={"delta.checkpointInterval": "7", "team.owner": "crm"},
                comment="Customers",
                on_missing_row=OnMissingRow.HOLD,
                column_rules={"email": ColumnRule(ColumnAction.HASH, Salt(SALT.encode())), "note": DROP},
            ),
        ),
        types={"public.posint": "int4"},
        merge=Merge(max_transactions=1000, parallel_tables=2),
        on_error=OnError.FAIL,
        spark={
            "spark.sql.shuffle.partitions": "8",
            "spark.ui.enabled": "false",
            "spark.memory.fraction": "0.60",
            "spark.at": "12:30",
        },
    )


def test_the_ledger_is_beside_the_tables_unless_told_otherwise(tmp_path: Path) -> None:
    assert load(SMALLEST, "target.root=s3a://lake/").state.root == "s3a://lake/_pgoutput_etl"
    catalog = ("target.root=null", "target.catalog=main.shop")
    assert load(SMALLEST, *catalog, "state.root=./l").state.root == f"{tmp_path}/l"
    assert "state.root: missing" in refusal(SMALLEST, catalog)


@pytest.mark.parametrize("root", ["./out", "out/", "./out/../out", "."])
def test_tables_are_not_within_the_ledger(root: str) -> None:
    assert "state.root: expected a folder that does not contain target.root" in refusal(
        SMALLEST, [f"state.root={root}"]
    )


@pytest.mark.parametrize(
    ("namespace", "name", "expected"),
    [
        ("public", "orders", "public.orders"),
        ("public", "orders_2024", "public.orders*"),
        ("public", "Orders", "*"),  # case counts, and no rule is left
        ("a.b", "c", "a.b.?"),
    ],
)
def test_the_first_rule_that_matches_holds(namespace: str, name: str, expected: str) -> None:
    rules = "tables: [{match: public.orders}, {match: 'public.orders*'}, {match: 'a.b.?'}]"
    assert load(SMALLEST + rules).rule_for(namespace, name) == TableRule(expected)


def test_overrides_take_the_place_of_what_the_file_says(tmp_path: Path) -> None:
    config = load(
        SMALLEST + "spark: {spark.a.b: 1, spark.c: 2}",
        "target.root=./elsewhere",
        "source.landing=${SECRET}/x=y",
        "spark.spark.a.b=true",
        "types.public.posint=int4",
        "tables=[{match: public.orders, key: [id]}]",
        "on_error=quarantine",
        "on_error=fail",
    )
    assert (config.target.root, config.source.landing) == (f"{tmp_path}/elsewhere", f"{tmp_path}/hunter2/x=y")
    assert config.spark == {"spark.a.b": "true", "spark.c": "2"}
    assert config.types == {"public.posint": "int4"}
    assert config.tables == (TableRule("public.orders", key=("id",)),)
    assert config.on_error is OnError.FAIL


def test_an_empty_file_can_be_overridden_whole() -> None:
    assert load("", "source={name: shop, landing: ./in}", "target.root=./out") == load(SMALLEST)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("/${SECRET}", "/hunter2"),
        ("s3a://${SECRET}/${FOUR}", "s3a://hunter2/4"),
        ("/a$${SECRET}", "/a${SECRET}"),
        ("/$${not a name}", "/${not a name}"),
        ("/$5 {x} $SECRET", "/$5 {x} $SECRET"),
    ],
)
def test_the_environment_is_put_into_strings(written: str, meant: str) -> None:
    assert load(SMALLEST, f"source.landing='{written}'").source.landing == meant


def test_what_came_from_the_environment_is_a_secret() -> None:
    said = "spark: {a: '${SECRET}', b: 'x${FOUR}y', c: '$${SECRET}', d: x, e: 5}"
    assert load(SMALLEST + said, "spark.f=${SECRET}").secrets == {"a", "b", "f"}


def test_numbers_and_booleans_can_come_from_the_environment() -> None:
    config = load(SMALLEST + "merge: {parallel_tables: '${FOUR}'}\ntables: [{match: '*', skip: '${YES}'}]")
    assert config.merge.parallel_tables == 4
    assert config.tables[0].skip is True


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("tragte: {}", "tragte: unknown key 'tragte'; did you mean 'target'? (known: source, target, state, "),
        ("zzz:", "zzz: unknown key 'zzz' (known: source, "),
        ("tables: [{match: a.b}, {match: a.c, kee: [id]}]", "tables[1].kee: unknown key 'kee'; did you mean 'key'?"),
        ("7: x", "7: unknown key '7' (known: "),
        ("tables: {match: hunter2}", "tables: expected a list of rules"),
        ("tables: [hunter2]", "tables[0]: expected a mapping"),
        ("tables: [{skip: true}]", "tables[0].match: missing: expected a string: schema.table as a shell pattern"),
        ("tables: [{match: 5}]", "tables[0].match: expected a string (in quotes): schema.table"),
        ("tables: [{match: a.b, skip: 1}]", "tables[0].skip: expected true or false"),
        ("tables: [{match: a.b, key: hunter2}]", "tables[0].key: expected a list of column names"),
        ("tables: [{match: a.b, key: []}]", "tables[0].key: expected one or more names, all different"),
        ("tables: [{match: a.b, key: [a, a]}]", "tables[0].key: expected one or more names, all different"),
        ("tables: [{match: a.b, key: [a, 5]}]", "tables[0].key[1]: expected a string (in quotes)"),
        ("tables: [{match: a.b, mode: hunter2}]", "expected one of mirror, soft_delete, history, append"),
        ("tables: [{match: a.b, cluster_by: []}]", "tables[0].cluster_by: expected one or more names, all different"),
        ("tables: [{match: a.b, cluster_by: [a, b, c, d, e]}]", "tables[0].cluster_by: expected at most 4 columns"),
        (
            "tables: [{match: a.b, cluster_by: [a], partition_by: [b]}]",
            "tables[0].cluster_by: expected either cluster_by or partition_by",
        ),
        ("tables: [{match: a.b, properties: {owner: hunter2}}]", "expected a name with a dot, as delta."),
        (
            "tables: [{match: a.b, properties: {delta.appendOnly: hunter2}}]",
            "tables[0].properties.delta.appendOnly: it can't be configured: the job deletes rows",
        ),
        ("tables: [{match: a.b, comment: 5}]", "tables[0].comment: expected a string (in quotes): a text"),
        ("tables: [{match: a.b, columns: {x: [drop]}}]", "tables[0].columns.x[0]: expected added, renamed_from, or"),
        ("tables: [{match: a.b, columns: {x: []}}]", "tables[0].columns.x: expected a list of declarations"),
        (
            "tables: [{match: a.b, columns: {x: [{redact: a, renamed_from: y}, {redact: b, renamed_from: z}]}}]",
            "tables[0].columns.x: expected a list of declarations, of which one at most has a mask",
        ),
        (
            (
                "tables: [{match: a.b, columns: {x: [{converted_from: timestamp, time_zone: UTC}, "
                "{converted_from: timestamp, time_zone: Europe/Berlin}]}}]"
            ),
            "tables[0].columns.x: expected each converted_from once",
        ),
        ("tables: [{match: a.b, columns: {x: hunter2}}]", "tables[0].columns.x: expected drop, redact, {hash: sha256}"),
        ("tables: [{match: a.b, columns: {x: {}}}]", "tables[0].columns.x: expected drop, redact, {hash: sha256}"),
        ("tables: [{match: a.b, columns: {x: {hsh: sha256}}}]", "tables[0].columns.x.hsh: unknown key 'hsh'; did you"),
        (
            "tables: [{match: a.b, columns: {x: {type: int4}}}]",
            "tables[0].columns.x.type: it can't be configured: `types`",
        ),
        (
            "tables: [{match: a.b, columns: {x: {rename: y}}}]",
            "tables[0].columns.x.rename: it can't be configured: a Del",
        ),
        (
            "tables: [{match: a.b, columns: {x: {comment: 5}}}]",
            "tables[0].columns.x.comment: expected a string (in",
        ),
        ("tables: [{match: a.b, columns: {x: [{comment: y}]}}]", "tables[0].columns.x[0]: expected added, renamed_fro"),
        ("tables: [{match: a.b, columns: {x: {hash: md5}}}]", "tables[0].columns.x.hash: expected sha256"),
        ("tables: [{match: a.b, columns: {x: {hash: sha256, redact: x}}}]", "tables[0].columns.x: expected drop, "),
        ("tables: [{match: a.b, columns: {x: {redact: 5}}}]", "tables[0].columns.x.redact: expected a string (in quo"),
        (
            "tables: [{match: a.b, columns: {x: {hash: sha256, salt: hunter2 hunter2 hunter2}}}]",
            "tables[0].columns.x.salt: expected ${NAME}: a salt comes from the environment",
        ),
        (
            "tables: [{match: a.b, columns: {x: {hash: sha256, salt: '${SECRET}'}}}]",
            "tables[0].columns.x.salt: expected a salt of 16 bytes or more",
        ),
        ("tables: [{match: a.b, columns: {x: {hash: sha256, salt: '${UNSET}'}}}]", "variable UNSET is not set"),
        ("tables: [{match: a.b, columns: {x: {redact: x, salt: '${LONG}'}}}]", ".x.salt: expected only with hash"),
        ("tables: [{match: a.b, key: [x], columns: {x: drop}}]", "tables[0].columns.x: it is a column of `key`"),
        ("tables: [{match: a.b, key: [x], columns: {x: {redact: y}}}]", "tables[0].columns.x: it is a column of `key`"),
        ("tables: [{match: a.b, rename: b}]", "tables[0].rename: expected schema.table, with one dot"),
        ("tables: [{match: a.b, rename: ../b}]", "tables[0].rename: expected schema.table, with one dot"),
        ("tables: [{match: a.b, rename: a.b.c}]", "tables[0].rename: expected schema.table, with one dot"),
        ("tables: [{match: a.b, rename: .c}]", "tables[0].rename: expected schema.table, with one dot"),
        (
            "tables: [{match: 'a.*', rename: a.c}]",
            "tables[0].rename: expected {table} in it, because `match` is a pattern: ",
        ),
        (
            "tables: [{match: a.b, rename: x.y}, {match: a.c, rename: x.y}]",
            "tables[1]: expected another `rename` than that of tables[0]",
        ),
        ("tables: [{match: a.b, into: b, tag: {k: x}}]", "tables[0].into: expected schema.table, with one dot"),
        ("tables: [{match: a.b, into: b.c}]", "tables[0].tag: missing: expected with `into`"),
        ("tables: [{match: a.b, tag: {k: x}}]", "tables[0].into: missing: expected with `tag`"),
        ("tables: [{match: a.b, into: b.c, tag: {k: ''}}]", "tables[0].tag.k: expected a string: a value"),
        ("tables: [{match: a.b, into: b.c, tag: {k: '{column}'}}]", "tables[0].tag.k: expected a text, in which only"),
        ("tables: [{match: a.b, into: b.c, tag: {k: '{table!r}'}}]", "tables[0].tag.k: expected a text, in which only"),
        (
            "tables: [{match: a.b, into: b.c, tag: {'k=x': y}}]",
            "tables[0].tag.k=x: expected a column's name of letters",
        ),
        ("tables: [{match: a.b, into: b.c, rename: b.d, tag: {k: x}}]", "expected either `rename` or `into`"),
        (
            "tables: [{match: a.b, into: b.c, tag: {k: x, l: y}, partition_by: [k]}]",
            "tables[0].partition_by: expected the columns of `tag` among them",
        ),
        (
            "tables: [{match: a.b, into: b.c, tag: {k: x}}, {match: a.c, rename: b.c}]",
            "tables[0]: expected another `into` than the `rename` of tables[1]",
        ),
        (
            "tables: [{match: a.b, into: b.c, tag: {k: x, l: y}}, {match: a.c, into: b.c, tag: {k: y}}]",
            "tables[1]: expected the columns of the `tag` of tables[0], which has the same `into`",
        ),
        (
            "tables: [{match: a.b}, {match: c.d}, {match: a.b, skip: true}]",
            "tables[2]: it never applies: tables[0]",
        ),
        ("tables: [{match: 'a.*'}, {match: 'a.b?*'}]", "tables[1]: it never applies: tables[0] comes first and m"),
        ("tables: [{match: '*'}, {match: a.b}]", "tables[1]: it never applies: tables[0] comes first and m"),
        ("merge: {parallel_tables: 0}", "merge.parallel_tables: expected a whole number, 1 or more"),
        ("merge: {parallel_tables: true}", "merge.parallel_tables: expected a whole number"),
        ("merge: {max_transactions: hunter2}", "merge.max_transactions: expected a whole number"),
        ("on_error: ${SECRET}", "on_error: expected one of quarantine, fail"),
        ("types: {a: [b]}", "types.a: expected a string"),
        ("types: {a.b: hunter2}", "types.a.b: expected the name of a built-in type, hstore, "),
        ("types: {a.b: integr}", "; did you mean integer?"),
        ("types: {jsonb: text}", "types.jsonb: expected variant"),
        (
            "types: {hunter: int4}",
            "types.hunter: expected the key schema.name or 'oid N' of a user type, or one of json, jsonb, numeric",
        ),
        ("spark: {1: b}", "spark: expected a mapping with strings as keys"),
        ("spark: {a: [b]}", "spark.a: expected a string, a number, true or false"),
        ("spark: {a: '${UNSET} ${SECRET}'}", "spark.a: the environment variable UNSET is not set"),
        ("spark: {a: '${SECRET:-hunter2}'}", "spark.a: expected an environment variable's name in ${…}"),
        ("source: {}", "line 3: the key 'source' is given twice"),
        ("merge: {parallel_tables: 1, parallel_tables: 2}", "line 3: the key 'parallel_tables' is given twice"),
        ("merge: hunter2: 3", "line 3: mapping values are not allowed here"),
        ("merge: *hunter2", "line 3: found undefined alias"),
        ("merge: !!python/object/apply:os.getcwd []", "line 3: expected no tag"),
        ("spark: {? [hunter2] : b}", "line 3: expected a string as key"),
        ("spark: &again {again: *again}", "nesting"),
        ("spark: \x00", "expected YAML"),
        ("spark: !!set {hunter2}", "line 3: expected no tag"),
        ("spark: {a: !!binary aHVudGVyMg==}", "line 3: expected no tag"),
        ("spark: {a: !hunter2 b}", "line 3: expected no tag"),
        ("spark: " + "[" * 100_000, "without deep nesting"),
        ("spark: {a: '" + "${" * 100_000 + "'}", "spark.a: expected an environment variable's name in ${…}"),
        ("spark: {a: '${SECRET'}", "spark.a: expected an environment variable's name in ${…}"),
        ("spark: {a: '" + "x" * 2**20 + "'}", "expected at most 1,048,576 bytes"),
    ],
)
def test_a_mistake_is_named_with_its_place(more: str, said: str) -> None:
    message = refusal(SMALLEST + more)
    assert message.startswith("shop.yaml: ")
    assert said in message


@pytest.mark.parametrize(
    ("readers", "properties", "said"),
    [
        ("iceberg", "{}", "target.readers: expected one of spark, all, auto"),
        ("all", "{delta.enableDeletionVectors: 'TRUE'}", "delta.enableDeletionVectors: not all readers know it"),
        ("all", "{delta.feature.v2Checkpoint: supported}", "delta.feature.v2Checkpoint: not all readers know it"),
    ],
)
def test_what_not_all_readers_know(readers: str, properties: str, said: str) -> None:
    rules = f"tables: [{{match: a.b, properties: {properties}}}]"
    assert said in refusal(SMALLEST.replace("{root: ./out}", f"{{root: ./out, readers: {readers}}}") + rules)


def test_aliases_of_aliases_are_not_followed_without_end() -> None:
    """A billion laughs: 500 bytes of YAML with ten billion values."""
    laughs = "".join(f"  a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 11))
    with no_hang(30):
        message = refusal(f"{SMALLEST}spark:\n  a0: &a0 hunter2\n{laughs}")
    assert "expected at most 100,000 values, aliases included" in message


def test_an_alias_stands_for_what_it_names() -> None:
    config = load(SMALLEST + "spark: {a: &again b, c: *again}")
    assert config.spark == {"a": "b", "c": "b"}


@pytest.mark.parametrize("secret", ["x: y", "x\ntarget: {root: elsewhere}", "!!python/object/apply:os.getcwd []", "*a"])
def test_what_the_environment_says_is_no_yaml(secret: str, tmp_path: Path) -> None:
    Path("shop.yaml").write_text(SMALLEST + "spark: {a: '${HOSTILE}'}")
    config = load_config("shop.yaml", [], {"HOSTILE": secret})
    assert config.spark == {"a": secret}
    assert config.target == Target(f"{tmp_path}/out", None)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16-le"])
def test_a_file_that_is_not_utf_8_is_refused(encoding: str) -> None:
    Path("shop.yaml").write_bytes((SMALLEST + "spark: {a: é}").encode(encoding))
    with pytest.raises(ConfigError, match="expected YAML in UTF-8"):
        load_config("shop.yaml", [], {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "source.name: missing"),
        ("[source]", "shop.yaml: expected a mapping"),
        ("target: {root: x}", "source.name: missing"),
        ("source: {name: x}\ntarget: {root: x}", "source.landing: missing: expected a string: a folder or a glob"),
        ("source: {name: x, landing: ''}\ntarget: {root: x}", "source.landing: expected a string"),
        ("source: {name: x, landing: '${EMPTY}'}\ntarget: {root: x}", "source.landing: expected a string"),
        ("source: {name: 'a/b', landing: x}\ntarget: {root: x}", "source.name: expected only letters, digits"),
        ("source: {name: 5, landing: x}\ntarget: {root: x}", "source.name: expected a string (in quotes)"),
        ("source: {name: x, landing: x, framing: y}\ntarget: {root: x}", "source.framing: expected one of auto, "),
        (SMALLEST.replace("./in", "./in, snapshot: no"), "source.snapshot: expected one of manual, auto, accept"),
        (SMALLEST + "tables: [{match: x, on_missing_row: no}]", "on_missing_row: expected one of report, hold, ignore"),
        ("source: {name: x, landing: x}", "target: missing: expected root or catalog"),
        ("source: {name: x, landing: x}\ntarget: x", "target: expected a mapping"),
        ("source: {name: x, landing: x}\ntarget: {root: x, catalog: y}", "target: expected root or catalog, not both"),
        ("source: {name: x, landing: x}\ntarget: {catalog: a.b.c}", "target.catalog: expected a catalog, as main, or"),
        ("source: {name: x, landing: x}\ntarget: {catalog: 'a b'}", "target.catalog: expected a catalog, as main, or"),
        ("source: {name: x, landing: x}\ntarget: {root: '`x`'}", "target.root: expected a folder: only names in a"),
    ],
)
def test_source_and_target_have_to_be_given(text: str, said: str) -> None:
    assert said in refusal(text)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("hunter2", "--set: expected KEY=VALUE"),
        ("=hunter2", "--set: expected KEY=VALUE"),
        ("spark.a=[hunter2", "--set spark.a: line 1: "),
        ("target.rot=x", "shop.yaml with --set: target.rot: unknown key 'rot'; did you mean 'root'?"),
        ("target.catalog=x", "shop.yaml with --set: target: expected root or catalog, not both"),
        ("on_error.x=y", "--set on_error.x: on_error is not a mapping"),
        ("source.landing=${UNSET}", "shop.yaml with --set: source.landing: the environment variable UNSET is not set"),
    ],
)
def test_a_mistake_on_the_command_line_is_named_as_one(override: str, said: str) -> None:
    assert refusal(SMALLEST + "on_error: fail", [override]).startswith(said)


@pytest.mark.parametrize("path", ["absent.yaml", "."])
def test_a_file_that_cannot_be_read_is_named(path: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{re.escape(path)}: can't be read: "):
        load_config(path)


def test_a_hash_without_a_salt_is_refused_before_anything_is_read() -> None:
    Path("shop.yaml").write_text(SMALLEST + "tables: [{match: a.b, columns: {x: {hash: sha256}}}]")
    with pytest.raises(ConfigError, match=rf"columns.x.hash: expected a salt in the .* {SALT_VARIABLE}, which is not"):
        load_config("shop.yaml", [], {})
    with pytest.raises(ConfigError, match=rf"columns.x.hash: the environment variable {SALT_VARIABLE}: expected a "):
        load_config("shop.yaml", [], {SALT_VARIABLE: "too short"})


def test_a_column_has_the_declarations_of_several_changes() -> None:
    listed = "[{redact: '?', renamed_from: a}, added, {converted_from: timestamp, time_zone: UTC}]"
    [rule] = load(SMALLEST + f"tables: [{{match: a.b, columns: {{x: {listed}, y: added, z: drop}}}}]").tables
    assert rule.lineage == {"x": ("a", None), "y": (None,)}
    assert rule.conversions["x"] == [ZoneConversion("timestamp", "UTC")]
    assert {name: str(mask) for name, mask in rule.column_rules.items()} == {"x": "redact: ?", "z": "drop"}


def test_a_salt_of_a_column_s_own_is_never_shown() -> None:
    config = load(SMALLEST + "tables: [{match: a.b, columns: {x: {hash: sha256, salt: '${LONG}', renamed_from: y}}}]")
    [rule] = config.tables
    assert rule.column_rules["x"].salt == Salt(SALT.encode())
    assert rule.lineage == {"x": ("y",)}
    assert SALT not in repr(config)
    assert SALT not in str(rule.column_rules["x"])


@pytest.mark.parametrize(
    "rules",
    ["[{match: a.b}, {match: 'a.*'}]", "[{match: 'a.?'}, {match: a.b}]", "[{match: 'a.[bc]'}, {match: 'a.[cd]'}]"],
)
def test_a_rule_that_only_some_tables_come_to_is_none_too_many(rules: str) -> None:
    assert len(load(SMALLEST + f"tables: {rules}").tables) == 2


@pytest.mark.parametrize(
    ("written", "origins"),
    [
        ("any", ANY),
        ("none", Origins(accepted=frozenset())),
        ("{accept: [a, b]}", Origins(accepted=frozenset({"a", "b"}))),
        ("{skip: [pg_16389]}", Origins(skipped=frozenset({"pg_16389"}))),
    ],
)
def test_origins(written: str, origins: Origins) -> None:
    assert load(SMALLEST, f"source.origins={written}").source.origins == origins
    assert load(SMALLEST).source.origins == ANY


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("some", "source.origins: expected any, none (local transactions alone), {accept: [name]} or {skip: [name]}"),
        ("[a]", "source.origins: expected any, none (local transactions alone), {accept: [name]} or {skip: [name]}"),
        ("{}", "source.origins: expected accept or skip, not both"),
        ("{accept: [a], skip: [b]}", "source.origins: expected accept or skip, not both"),
        ("{skip: []}", "source.origins.skip: expected one or more names, all different"),
        ("{skip: [a, a]}", "source.origins.skip: expected one or more names, all different"),
        ("{skip: a}", "source.origins.skip: expected a list of origins' names"),
        ("{skip: ['']}", "source.origins.skip[0]: expected a string: an origin's name"),
        ("{skp: [a]}", "source.origins.skp: unknown key 'skp'; did you mean 'skip'?"),
    ],
)
def test_origins_that_can_t_be_so(written: str, said: str) -> None:
    assert said in refusal(SMALLEST, [f"source.origins={written}"])


def test_metrics() -> None:
    assert load(SMALLEST).metrics == Metrics()
    lineage = "openlineage: {namespace: 'postgres://db.example:5432', database: shop}"
    everything = load(SMALLEST, f"metrics={{json: stderr, prometheus: /x/shop.prom, opentelemetry: true, {lineage}}}")
    database = SourceDatabase("postgres://db.example:5432", "shop")
    assert everything.metrics == Metrics("stderr", "/x/shop.prom", True, database)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{prometheus: /x/shop.txt}", "metrics.prometheus: expected a name that ends in .prom"),
        ("{opentelemetry: maybe}", "metrics.opentelemetry: expected true or false"),
        ("{json: [a]}", "metrics.json: expected a string: a file's path, or stderr"),
        ("{openlineage: true}", "metrics.openlineage: expected {namespace: postgres://HOST:PORT, database: name}"),
        ("{openlineage: {database: shop}}", "metrics.openlineage.namespace: missing: expected a string"),
        (
            "{openlineage: {namespace: 'postgres://me:secret@db:5432', database: shop}}",
            "metrics.openlineage.namespace: expected postgres://HOST:PORT, without a user",
        ),
        (
            "{openlineage: {namespace: 'postgres://db:5432'}}",
            "metrics.openlineage.database: missing: expected a string",
        ),
        ("{promtheus: a}", "metrics.promtheus: unknown key 'promtheus'; did you mean 'prometheus'?"),
    ],
)
def test_metrics_that_can_t_be_so(written: str, said: str) -> None:
    assert said in refusal(SMALLEST, [f"metrics={written}"])
