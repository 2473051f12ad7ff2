"""Plans of one table: schema spans, keys that follow renames, paths, and reasons to hold it or stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import yaml

from pgoutput_etl.config.column_settings import Setting
from pgoutput_etl.config.rule_merge import Rules
from pgoutput_etl.config.rules import Mode, TableRule
from pgoutput_etl.config.settings import Config, Source, State, Target
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.identifiers import name_of
from pgoutput_etl.places import Place
from pgoutput_etl.protocol.messages import Relation, ReplicaIdentity
from pgoutput_etl.schema.column_matching import Doubt
from pgoutput_etl.schema.contract import SchemaContract
from pgoutput_etl.schema.migration import ValueChange
from pgoutput_etl.schema.relation_history import RelationHistory, RelationSpan
from pgoutput_etl.targets.plan import APPLIED, HELD, TableChanges, TablePlan, TableState, TableTask
from pgoutput_etl.targets.planner import make_plan
from pgoutput_etl.targets.written_settings import refuse_other_modes
from pgoutput_etl.types import UserTypes
from tests.support.small_archives import T, table

INT, BIGINT = 23, 20
FULL = ReplicaIdentity.FULL
CONFIG = Config(Source("s", "landing"), Target("root"), State("root/_pgoutput_etl"))


def state_of(relation: Relation, key: tuple[str, ...] = ("id",), types: Sequence[str] | None = None) -> TableState:
    stored = tuple(types or ["string"] * len(relation.columns))
    path = f"root/{relation.namespace}/{relation.name}"
    return TableState(
        oid=T,
        schema=relation.namespace,
        table=relation.name,
        path=Place(path),
        version=7,
        last_commit_lsn=90,
        status=APPLIED,
        reason=None,
        relation=relation,
        key=key,
        types=stored,
    )


def plan_of(
    runs: Sequence[Relation],
    state: TableState | None = None,
    config: Config = CONFIG,
    user_types: UserTypes | None = None,
    **counted: object,
) -> TablePlan:
    """The n-th version holds from the commit at 100 * n on."""
    history = RelationHistory()
    for n, relation in enumerate(runs, 1):
        history.declare(relation, (0, n), None)
    spans = [RelationSpan((100 * n, 0, n), relation) for n, relation in enumerate(runs, 1)]
    changes = TableChanges(T, inserts=1, runs=tuple(spans), last_row=(100 * len(runs), 0, len(runs)))
    changes = replace(changes, **counted)  # type: ignore[arg-type]
    states = {} if state is None else {T: state}
    return make_plan(config, history, {T: changes}, states, user_types or UserTypes())


def task_of(plan: TablePlan) -> TableTask:
    assert plan.held == []
    return plan.tasks[0]


def test_a_renamed_table_without_column_changes_is_one_span() -> None:
    task = task_of(plan_of([table(), table(name="u"), table(name="w")], state_of(table())))
    assert [(s.start, s.end, s.migration) for s in task.spans] == [(None, None, None)]
    assert task.moved_from == (Place("root/public/t"), 7)
    assert [str(change) for _, change in task.schema_changes] == ["table renamed (was public.t)"]


def test_a_span_ends_where_columns_change() -> None:
    versions = [table("id", "v"), table("id", "v", "w"), table("id", "w")]
    task = task_of(plan_of(versions, state_of(table("id", "v"))))
    assert [(s.start, s.end) for s in task.spans] == [
        (None, (200, 0, 2)),
        ((200, 0, 2), (300, 0, 3)),
        ((300, 0, 3), None),
    ]
    assert [s.migration is None for s in task.spans] == [True, False, False]
    assert [(place, str(change)) for place, change in task.schema_changes] == [
        ((200, 0, 2), "column added: w"),
        ((300, 0, 3), "column dropped: v"),
    ]


def test_changes_before_a_truncate_need_no_span_and_no_migration() -> None:
    versions = [table("id", "v"), table("id", ("v", INT)), table("id", ("v", INT), "w")]
    task = task_of(plan_of(versions, state_of(table("id", "v")), truncates=1, truncated_at=(250, 0, 2)))
    assert [(s.start, s.migration is None) for s in task.spans] == [(None, True), ((300, 0, 3), False)]
    assert task.shape.columns[1].type.name == "int4"
    assert len(task.schema_changes) == 2  # both are reported


def test_a_widened_column_is_not_converted() -> None:
    task = task_of(plan_of([table("id", ("n", BIGINT))], state_of(table("id", ("n", INT)), types=["string", "int32"])))
    migration = task.spans[0].migration
    assert migration is not None
    assert [migration.value_change(place) for place in range(2)] == [ValueChange.STAYS, ValueChange.WIDENED]


def test_a_new_column_of_its_name_replaces_a_retired_column() -> None:
    retiring = task_of(plan_of([table("id", "b")], state_of(table("id", "a"))))
    assert [c.name for c in retiring.shape.columns if c.retired] == ["a"]
    state = replace(state_of(table("id", "b")), retired=retiring.retired, types=("string",) * 3)
    task = task_of(plan_of([table("id", "b", "A")], state))
    assert [(c.name, c.retired) for c in task.shape.columns] == [("id", False), ("b", False), ("A", False)]
    assert task.retired == ()


@pytest.mark.parametrize("configured", ["id", "ident", "key"])
def test_a_configured_key_follows_its_column_through_renames(configured: str) -> None:
    """The configuration may use any of the column's names, in this batch or an earlier one."""
    versions = [table(name, "v", identity=FULL) for name in ("id", "ident", "key")]
    config = replace(CONFIG, tables=(TableRule("public.*", key=(configured,)),))
    task = task_of(plan_of(versions[1:], state_of(versions[0]), config))
    assert [span.shape.key for span in task.spans] == [(0,), (0,)]


def test_a_configured_key_that_no_version_has_holds_the_table() -> None:
    config = replace(CONFIG, tables=(TableRule("public.*", key=("nothing",)),))
    assert [held.reason for held in plan_of([table(identity=FULL)], None, config).held] == [
        "the configured key has a column 'nothing' that the table lacks"
    ]


def test_new_configured_types_do_not_change_stored_values() -> None:
    relation = table("id", ("p", 16999))
    types = UserTypes({16999: ("public", "posint")}, {"public.posint": "int4"})
    with pytest.raises(
        ConfigError, match=r"column 'p' of public\.t is stored as string, but the configuration's `types`"
    ):
        plan_of([relation], state_of(relation), user_types=types)
    assert task_of(plan_of([relation], user_types=types)).shape.columns[1].type.stored_as == "int32"


REMEDY = "set client_encoding to UTF8 for the receiver, or rename it on the server if the database is SQL_ASCII"


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (("id", "a", "A"), "columns 'a' and 'A' differ only in case, which Delta ignores"),
        (("id", "_pg_xid"), "the column name '_pg_xid' is reserved in every mode"),
        (("id", "s", "\u017f"), "columns 's' and '\u017f' differ only in case, which Delta ignores"),
        (("id", "\u212a", "k"), "columns '\u212a' and 'k' differ only in case, which Delta ignores"),
        (("id", "i", "İ"), "columns 'i' and 'İ' differ only in case, which Delta ignores"),
        (("id", "İ", "i\u0307"), "columns 'İ' and 'i\u0307' differ only in case, which Delta ignores"),
        (("id", ""), "a column name is empty"),
        (("id", name_of(b"caf\xe9")), f"a column name is not UTF-8: {REMEDY}"),
        (("id", "_PG_XID"), "columns '_PG_XID' and '_pg_xid' differ only in case, which Delta ignores"),
    ],
)
def test_column_names_that_a_delta_table_can_not_have_hold_the_table(columns: tuple[str, ...], reason: str) -> None:
    assert [held.reason for held in plan_of([table(*columns)]).held] == [reason]


@pytest.mark.parametrize(
    ("relation", "ledger", "reason"),
    [
        (table(name=""), "root/_pgoutput_etl", "its table name is empty"),
        (table(name=name_of(b"caf\xe9")), "root/_pgoutput_etl", f"its table name is not UTF-8: {REMEDY}"),
        (
            table(name="\u202e" * 63),
            "root/_pgoutput_etl",
            "its table name would make a folder name of 567 bytes; the limit is 255",
        ),
        (
            table(name="files"),
            "root/public",
            "its folder would be inside the ledger: set state.root to a folder",
        ),
        (
            table(name="t"),
            "root/./public/t/",
            "its folder would be inside the ledger: set state.root to a folder",
        ),
    ],
)
def test_a_table_whose_path_is_not_possible_is_held(relation: Relation, ledger: str, reason: str) -> None:
    (held,) = plan_of([relation], config=replace(CONFIG, state=State(ledger))).held
    assert held.reason.startswith(reason)


@pytest.mark.parametrize("name", ["..", ".", "_pgoutput_etl", "_delta_log", "../_pgoutput_etl/x", "%2e%2e", "a/../b"])
def test_no_name_leads_out_of_the_target_or_into_the_ledger(name: str) -> None:
    relation = replace(table(name=name), namespace=name)
    path = str(task_of(plan_of([relation])).path)
    assert path.count("/") == 2
    assert path.startswith("root/")
    assert not any(part.startswith((".", "_")) for part in path.split("/"))


def in_mode(mode: Mode, match: str = "public.*") -> Config:
    return replace(CONFIG, tables=(TableRule(match, mode=mode),))


@pytest.mark.parametrize(
    ("mode", "name", "reason"),
    [
        (
            Mode.SOFT_DELETE,
            "_pg_deleted",
            "the column name '_pg_deleted' is reserved in mode soft_delete",
        ),
        (
            Mode.HISTORY,
            "_pg_valid_to_ts",
            "the column name '_pg_valid_to_ts' is reserved in mode history",
        ),
        (Mode.APPEND, "_pg_op", "the column name '_pg_op' is reserved in mode append"),
        (Mode.APPEND, "_pg_xid", "the column name '_pg_xid' is reserved in every mode"),
        (Mode.HISTORY, "_PG_Valid_From_LSN", "differ only in case"),
        (Mode.MIRROR, "_pg_deleted", None),
        (Mode.HISTORY, "_pg_op", None),
    ],
)
def test_only_column_names_that_the_mode_adds_are_reserved(mode: Mode, name: str, reason: str | None) -> None:
    plan = plan_of([table("id", name)], None, in_mode(mode))
    assert [reason is not None and reason in held.reason for held in plan.held] == [True] * (reason is not None)


@pytest.mark.parametrize("mode", [Mode.SOFT_DELETE, Mode.HISTORY, Mode.APPEND])
def test_a_mode_that_stores_truncates_keeps_all_spans(mode: Mode) -> None:
    versions = [table("id", "v"), table("id", "v", "w")]
    state = replace(state_of(table("id", "v")), mode=mode)
    task = task_of(plan_of(versions, state, in_mode(mode), truncates=1, truncated_at=(250, 0, 2)))
    assert [(s.start, s.end, s.migration is None) for s in task.spans] == [
        (None, (200, 0, 2), True),
        ((200, 0, 2), None, False),
    ]
    assert (task.mode, task.changes.truncates, task.changes.truncated_at) == (mode, 1, None)


def test_a_changed_mode_stops_the_run() -> None:
    """Also if the table has no changes, or the run has none, but not if it is held. A table that was renamed to a name
    with another mode is held."""
    expected = (
        r"^public\.t was written in mode mirror, but the configuration asks for history for public\.t\. .*"
        r"restore it, or rebuild the tables from the archive$"
    )
    with pytest.raises(ConfigError, match=expected) as error:
        plan_of([table()], state_of(table()), in_mode(Mode.HISTORY))
    assert error.value.next_job == ("backfill", "--tables", "public.t")
    with pytest.raises(ConfigError, match=expected):
        make_plan(in_mode(Mode.HISTORY), RelationHistory(), {}, {T: state_of(table())}, UserTypes())
    with pytest.raises(ConfigError, match=expected):
        refuse_other_modes([state_of(table())], in_mode(Mode.HISTORY))
    refuse_other_modes([replace(state_of(table()), status=HELD)], in_mode(Mode.HISTORY))
    plan = plan_of([table(name="u")], state_of(table()), in_mode(Mode.HISTORY, "public.u"))
    assert [held.reason.split(". ")[0] for held in plan.held] == [
        "public.t was written in mode mirror, but the configuration asks for history for public.u"
    ]


def test_all_tables_that_the_configuration_contradicts_are_named_with_a_command_that_builds_them() -> None:
    """The archive lacks rows of a table that a snapshot loaded: another snapshot has them."""
    states = {oid: replace(state_of(table(oid=oid, name=f"t{oid}")), oid=oid) for oid in range(1, 6)}
    loaded = {oid: replace(state, snapshot=3) for oid, state in states.items() if oid > 3}
    with pytest.raises(ConfigError, match=r"public.t1 was .*; public.t2 was .*; public.t3 was .*; and 2 more") as error:
        make_plan(in_mode(Mode.HISTORY), RelationHistory(), {}, {**states, **loaded}, UserTypes())
    assert error.value.next_job == ("backfill", "--tables", "public.t1,public.t2,public.t3")
    assert "load a snapshot" in str(error.value)
    with pytest.raises(ConfigError, match=r"public.t4 was .*; public.t5 was ") as error:
        make_plan(in_mode(Mode.HISTORY), RelationHistory(), {}, loaded, UserTypes())
    server = "postgresql://HOST:5432/DATABASE"
    assert error.value.next_job == ("snapshot", "--tables", "public.t4,public.t5", "--server", server)


def test_a_type_that_turns_out_to_be_no_array_holds_its_table_alone() -> None:
    """Until its own array was sent, its name was all that told what it is."""
    relation = table("id", ("mood", 16999))
    state = state_of(relation, types=("string", "list<item: string>"))
    named = {16999: ("public", "_mood")}
    assert task_of(plan_of([relation], state, user_types=UserTypes(named))).shape.columns[1].type.element is not None
    (held,) = plan_of([relation], state, user_types=UserTypes({**named, 17000: ("public", "__mood")})).held
    assert held.reason == (
        "column 'mood' is stored as list<item: string>, and its type public._mood is no array: rebuild the table"
    )


def test_soft_delete_needs_a_key() -> None:
    (held,) = plan_of([table(identity=FULL)], None, in_mode(Mode.SOFT_DELETE)).held
    assert held.reason.startswith("mode soft_delete needs a key, and the table has none")
    config = replace(CONFIG, tables=(TableRule("public.*", mode=Mode.SOFT_DELETE, key=("id",)),))
    assert task_of(plan_of([table(identity=FULL)], None, config)).mode is Mode.SOFT_DELETE


def renamed(target: str, match: str = "public.t") -> Config:
    return replace(CONFIG, tables=(TableRule(match, rename=target),))


@pytest.mark.parametrize(
    ("target", "path"),
    [("crm.customer", "root/crm/customer"), ("_a.b/c", "root/%5Fa/b%2Fc"), ("é.~", "root/%C3%A9/%7E")],
)
def test_a_configured_name_decides_the_path_and_never_leads_out_of_the_target(target: str, path: str) -> None:
    assert str(task_of(plan_of([table()], None, renamed(target))).path) == path


def test_an_existing_table_moves_to_its_configured_path_and_back() -> None:
    away = task_of(plan_of([table()], state_of(table()), renamed("crm.customer")))
    assert (away.path, away.moved_from) == (Place("root/crm/customer"), (Place("root/public/t"), 7))
    moved = "table moved to the path that the configuration gives it"
    assert [str(change) for _, change in away.schema_changes] == [moved]
    state = replace(state_of(table()), path=Place("root/crm/customer"))
    back = task_of(plan_of([table()], state))
    assert (back.path, back.moved_from) == (Place("root/public/t"), (Place("root/crm/customer"), 7))
    stays = task_of(plan_of([table()], state, renamed("crm.customer")))
    assert (stays.moved_from, stays.schema_changes) == (None, ())


def test_a_table_can_only_be_renamed_to_a_free_name() -> None:
    other = replace(state_of(table(oid=2, name="other")), oid=2)
    history = RelationHistory()
    history.declare(table(), (0, 1), None)
    changes = {T: TableChanges(T, inserts=1)}
    config = renamed("public.other")
    with pytest.raises(ConfigError, match=r"tables\[0\].rename: the archive has another table public.other"):
        make_plan(config, history, changes, {2: other}, UserTypes())
    skipping = replace(config, tables=(*config.tables, TableRule("public.other", skip=True)))
    assert len(make_plan(skipping, history, changes, {2: other}, UserTypes()).tasks) == 1
    elsewhere = replace(state_of(table(oid=2, name="elsewhere")), oid=2)
    plan = make_plan(config, history, changes, {2: elsewhere}, UserTypes())
    assert plan.tasks[0].path == Place("root/public/other")


def test_a_pattern_gives_each_table_a_name_of_its_own() -> None:
    config = renamed("shop_{source}.{schema}_{table}", "*.*")
    assert task_of(plan_of([table()], None, config)).path == Place("root/shop_s/public_t")
    config = replace(
        CONFIG, tables=(*renamed("shop.{table}", "public.*").tables, TableRule("x.*", rename="shop.{table}"))
    )
    history, changes = RelationHistory(), {T: TableChanges(T, inserts=1)}
    history.declare(table(), (0, 1), None)
    for schema, name, rule in (("shop", "t", 0), ("x", "t", 1), ("x", "other", None)):
        states = {2: replace(state_of(replace(table(oid=2, name=name), namespace=schema)), oid=2)}
        if rule is None:
            plan = make_plan(config, history, changes, states, UserTypes())
            assert {task.oid: str(task.path) for task in plan.tasks} == {T: "root/shop/t", 2: "root/shop/other"}
            continue
        both = rf"tables\[{rule}\].rename: .*{schema}.t.* would have the same path"
        with pytest.raises(ConfigError, match=both):
            make_plan(config, history, changes, states, UserTypes())
        skipping = replace(config, rules=Rules.MERGE, tables=(*config.tables, TableRule(f"{schema}.t", skip=True)))
        assert len(make_plan(skipping, history, changes, states, UserTypes()).tasks) == 1


def test_a_configured_name_that_is_too_long_for_a_folder_holds_the_table() -> None:
    [held] = plan_of([table()], None, renamed("crm." + "é" * 50)).held
    assert held.reason == "its table name would make a folder name of 300 bytes; the limit is 255"


@pytest.mark.parametrize(
    ("masks", "expected"),
    [
        ({"v": "drop"}, r"v \(drop before, as it is now\)"),
        ({"v": "hash: sha256, salt 0123456789abcdef"}, r"v \(hash before, as it is now\)"),
    ],
)
def test_changed_masks_stop_the_run_even_without_changes(masks: dict[str, str], expected: str) -> None:
    state = replace(state_of(table("id")), masks=masks)
    history = RelationHistory()
    history.declare(table("id", "v"), (0, 1), None)
    with pytest.raises(ConfigError, match=rf"public.t was written with other `columns`.*{expected}") as error:
        make_plan(CONFIG, history, {}, {T: state}, UserTypes())
    assert error.value.next_job == ("backfill", "--tables", "public.t")


def test_one_list_of_declarations_releases_a_history_of_several_steps() -> None:
    first, second = table("id", "price", ("price_new", INT)), table("id", ("price", INT))
    third, fourth = table("id", ("price", INT), "v", "w"), table("id", ("price", INT), "w", "v")
    runs = [first, second, third, fourth]
    [held] = plan_of(runs).held
    assert "price has the type that price_new had, which is gone. Declare it: columns: {price: {ren" in held.reason
    listed = held.reason.partition("The likeliest for all changes of this table: ")[2]
    declared = yaml.safe_load(listed)["columns"]
    assert declared == {"price": {"renamed_from": "price_new"}, "v": "added"}
    task = task_of(plan_of(runs, config=replace(CONFIG, tables=(TableRule("*", columns=declared),))))
    assert (len(task.spans), task.doubts) == (4, ())


def test_a_configured_key_is_no_reason_to_hold_a_table_whose_old_versions_a_truncate_ended() -> None:
    whole = [table("id", "a", "b", identity=ReplicaIdentity.FULL), table("id", "b", "a", identity=ReplicaIdentity.FULL)]
    keyed = replace(CONFIG, tables=(TableRule("*", key=("id",)),))
    assert "out of order" in plan_of(whole, config=keyed).held[0].reason
    task = task_of(plan_of(whole, config=keyed, truncates=1, truncated_at=(200, 0, 2)))
    assert task.shape.key == (0,)


def declaring(**columns: Setting) -> Config:
    return replace(CONFIG, tables=(TableRule("*", columns=columns),))


def test_a_declaration_counts_for_the_first_change_that_needs_it() -> None:
    config = declaring(aa={"renamed_from": "a"}, a="added")
    first, second, third = table("id", "a"), table("id", "aa", "a"), table("id", "aa")
    renamed = task_of(plan_of([first, second], config=config))
    assert (renamed.used, renamed.doubts) == ({"aa": ("a",), "a": (None,)}, ())
    state = replace(state_of(second), used=renamed.used)
    dropped = task_of(plan_of([third], state, config))
    assert [str(change) for _, change in dropped.schema_changes] == ["column dropped: a"]
    whole = task_of(plan_of([first, second, third], config=config))
    assert [str(change) for _, change in whole.schema_changes][-1] == "column dropped: a"


def test_an_accepted_reading_is_accepted_once() -> None:
    config = declaring(total="added")
    first, second, third = table("id", "n"), table("id", "total"), table("id", ("total", INT))
    doubtful = task_of(plan_of([first, second]))
    [doubt] = doubtful.doubts
    state = replace(state_of(second), retired=doubtful.retired, types=("string", "string", "string"), doubts=(doubt,))
    again = task_of(plan_of([third], state, config))
    assert [(found.column, found.is_kept, found.earlier) for found in again.doubts] == [("total", True, (None,))]
    assert again.used == {"total": (None,)}
    whole = task_of(plan_of([first, second, third], config=config))
    both = "columns: {total: [added, {renamed_from: total}]}, or columns: {total: [added, added]}"
    assert [str(found).endswith(f"Declare {both}") for found in (*again.doubts, *whole.doubts)] == [True, True]
    config = declaring(total=["added", {"renamed_from": "total"}])
    assert task_of(plan_of([third], state, config)).doubts == ()
    assert task_of(plan_of([first, second, third], config=config)).doubts == ()


def test_a_column_that_was_declared_to_be_kept_may_be_renamed_later() -> None:
    config = declaring(c={"renamed_from": "c"})
    runs = [table("id", ("c", INT)), table("id", ("c", BIGINT)), table("id", ("c_old", BIGINT), ("c", BIGINT))]
    assert task_of(plan_of(runs[:2], config=config)).used == {"c": ("c",)}
    [held] = plan_of(runs, config=config).held
    assert "c was renamed to c_old, and its name given to a new column" in held.reason


def test_a_second_change_that_a_used_declaration_would_explain_needs_another_one() -> None:
    config = declaring(a="added")
    runs = [table("id", "a", "b"), table("id", "b", "a"), table("id", "a", "b")]
    state = replace(state_of(runs[1]), used=task_of(plan_of(runs[:2], config=config)).used)
    [later], [at_once] = plan_of(runs[2:], state, config).held, plan_of(runs, config=config).held
    for held in (later, at_once):
        assert "are out of order. Declare it: columns: {b: added}; or " in held.reason
    runs = [*runs[:2], table("id", "c", "a", "b"), table("id", "c", "b", "a")]
    [held] = plan_of(runs, config=declaring(a="added", c="added", b="added")).held
    pasted = yaml.safe_load(held.reason[held.reason.rindex("columns: ") :])["columns"]
    assert pasted == {"a": ["added", "added", "added"], "c": "added", "b": ["added", "added"]}
    assert plan_of(runs, config=declaring(**pasted)).held == []


def test_a_dropped_column_leaves_no_doubt() -> None:
    runs = [table("id", "v"), table("id", ("v", INT)), table("id", ("v", INT), "w"), table("id", "w")]
    [doubt] = task_of(plan_of(runs[:3])).doubts
    assert task_of(plan_of(runs)).doubts == ()
    state = replace(state_of(runs[2], types=["string", "int32", "string"]), doubts=(doubt,))
    assert task_of(plan_of([runs[3]], state)).doubts == ()
    assert task_of(plan_of([table("id", ("n", INT), "w")], state)).doubts == (doubt,), "it was renamed"


def test_a_truncate_hides_no_new_doubt() -> None:
    rule = TableRule("*", on_schema_change=SchemaContract.of({"ambiguous": "hold"}))
    runs = [table("id", "v"), table("id", ("v", INT))]
    for doubts in ((), (Doubt("w", True, ()),)):
        state = replace(state_of(table("id", "v")), doubts=doubts)
        config = replace(CONFIG, tables=(rule,))
        [held] = plan_of(runs, state, config, truncates=1, truncated_at=(100, 0, 1)).held
        assert "v has kept its values under another type" in held.reason


def test_the_configured_key_follows_each_declaration_once() -> None:
    [rule] = declaring(aa={"renamed_from": "a"}, a="added").tables
    config = replace(CONFIG, tables=(replace(rule, key=("aa",)),))
    runs = [table("v", "a", identity=FULL), table("v", "aa", "a", identity=FULL), table("v", "aa", identity=FULL)]
    task = task_of(plan_of(runs, config=config))
    assert [[span.shape.columns[i].name for i in span.shape.key] for span in task.spans] == [["a"], ["aa"], ["aa"]]
