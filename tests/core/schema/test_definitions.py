"""Which definition a Relation message belongs to, through transactions that are open, aborted, or committed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pgoutput_etl.errors import TableError
from pgoutput_etl.ledger.tables import catalog_entry, catalog_row
from pgoutput_etl.protocol.catalog_message import CatalogMessage, DefinedTable
from pgoutput_etl.protocol.messages import (
    CatalogMark,
    Relation,
    RelationColumn,
    ReplicaIdentity,
    TypeDefinition,
    TypeForm,
)
from pgoutput_etl.schema.declarations import Declarations
from pgoutput_etl.schema.definitions import DefinitionEntry, Definitions
from pgoutput_etl.schema.diff import has_unsent_values, lineage
from pgoutput_etl.schema.relation_history import RelationHistory

OID, INT, TEXT = 16400, 23, 25
STREAM, SUB = 700, 701


def column(number: int, name: str, type_oid: int = INT, initial: bytes | None = None) -> RelationColumn:
    return RelationColumn(False, name, type_oid, -1, number, None, initial)


def message(*columns: RelationColumn, xid: int = STREAM, name: str = "t") -> CatalogMessage:
    return CatalogMessage((DefinedTable(OID, "public", name, columns),), xid=xid)


def sent(*columns: RelationColumn) -> Relation:
    """As pgoutput describes it."""
    bare = tuple(replace(c, number=None, form=None, initial=None, types=()) for c in columns)
    return Relation(None, OID, "public", "t", ReplicaIdentity.DEFAULT, bare)


A, B, B_AGAIN = column(1, "a"), column(2, "b"), column(3, "b")


def numbers(relation: Relation) -> list[int | None]:
    return [c.number for c in relation.columns]


def catalog_with(*messages: CatalogMessage) -> Definitions:
    catalog = Definitions()
    for ordinal, found in enumerate(messages):
        catalog.add(found, (0, ordinal), None, 100 + ordinal)
    return catalog


def test_a_relation_gets_the_newest_numbers() -> None:
    catalog = catalog_with(message(A, B), message(A, B_AGAIN))
    assert numbers(catalog.completed(sent(A, B), None)) == [1, 3]


POSINT, MOOD = TypeDefinition(16500, "d", "public", "posint", 23), TypeDefinition(16501, "e", "public", "mood")


def test_a_relation_gets_the_types_of_its_columns_and_follows_their_names() -> None:
    number, mood = column(1, "n", 16500), column(2, "m", 16501)
    catalog = catalog_with(message(replace(number, types=(POSINT,)), replace(mood, types=(MOOD,))))
    completed = catalog.completed(sent(number, mood), None)
    assert [c.types for c in completed.columns] == [(POSINT,), (MOOD,)]
    renamed = replace(MOOD, name="status")
    catalog = catalog_with(message(replace(number, types=(POSINT,)), replace(mood, types=(renamed,))))
    definition = catalog.definition(OID, None)
    assert definition is not None
    assert [c.types for c in definition.followed(completed).columns] == [(POSINT,), (renamed,)]


def test_a_servers_description_gets_only_the_types() -> None:
    number = replace(column(1, "n", 16500), types=(POSINT,))
    [found] = catalog_with(message(number)).typed(sent(column(7, "other", 16500))).columns
    assert found == RelationColumn(False, "other", 16500, -1, types=(POSINT,))
    assert catalog_with(message(A)).typed(sent(A)) == sent(A)


def test_columns_that_are_not_published_are_left_out() -> None:
    catalog = catalog_with(message(A, B, column(3, "c")))
    assert numbers(catalog.completed(sent(A, column(3, "c")), None)) == [1, 3]


def test_a_relation_of_another_definition_stays_as_it_was_sent() -> None:
    catalog = catalog_with(message(A, B))
    for other in (sent(B, A), sent(A, column(2, "b", TEXT)), sent(A, B, column(3, "c"))):
        assert catalog.completed(other, None) == other


def test_an_open_transaction_alone_sees_its_definition_until_it_commits() -> None:
    catalog = catalog_with(message(A, B))
    catalog.add(message(A, B_AGAIN), (0, 5), STREAM, None)
    assert numbers(catalog.completed(sent(A, B), None)) == [1, 2]
    assert numbers(catalog.completed(sent(A, B), STREAM)) == [1, 3]
    catalog.end(STREAM, True, 900)
    assert numbers(catalog.completed(sent(A, B), None)) == [1, 3]
    entry = catalog.committed(OID)
    assert entry is not None
    assert (entry.commit_lsn, entry.xid) == (900, None)


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_rolled_back_definition_never_was(is_whole: bool) -> None:
    catalog = catalog_with(message(A, B))
    catalog.add(message(A, B_AGAIN, xid=SUB), (0, 5), STREAM, None)
    if is_whole:
        catalog.end(STREAM, False, None)
    else:
        catalog.abort(STREAM, [SUB])
        assert numbers(catalog.completed(sent(A, B), STREAM)) == [1, 2]
        catalog.end(STREAM, True, 900)
    assert numbers(catalog.completed(sent(A, B), None)) == [1, 2]


def test_comments_of_masked_columns_are_not_kept_and_removed_ones_are_known() -> None:
    one, other = (
        replace(message(A, B).tables[0], comments=comments) for comments in (((0, "private"), (1, "a"), (2, "b")), ())
    )
    catalog = Definitions(is_masked=lambda _schema, _table, name: name == "b")
    catalog.add(CatalogMessage((one,), xid=STREAM), (0, 0), None, 100)
    assert catalog.has_new_comments(OID)
    [entry] = catalog.to_store()
    assert entry.definition.comments == ((0, "private"), (1, "a"))
    assert "private" not in repr(entry)
    later = Definitions.of([entry])
    assert not later.has_new_comments(OID)
    later.add(CatalogMessage((other,), xid=STREAM), (1, 0), None, 200)
    assert later.to_store()[0].definition.comments == ((0, ""), (1, ""))
    assert later.has_new_comments(OID)


def test_definitions_of_open_transactions_are_stored_until_they_end() -> None:
    catalog = catalog_with(message(A, B))
    catalog.add(message(A, B_AGAIN), (0, 5), STREAM, None)
    stored = catalog.to_store()
    assert numbers(Definitions.of(stored, [(0, 5)]).completed(sent(A, B), STREAM)) == [1, 3]
    assert numbers(Definitions.of(stored).completed(sent(A, B), STREAM)) == [1, 2]


def test_an_initial_value_outlives_the_rewrite_that_removes_it_from_the_catalog() -> None:
    new = column(2, "b", initial=b"7")
    catalog = catalog_with(message(A), message(A, new), message(A, B))
    assert catalog.completed(sent(A, B), None).columns[1].initial == b"7"


def filled(*columns: RelationColumn, omitted: tuple[int, ...] = ()) -> Iterator[CatalogMessage]:
    """An ALTER TABLE for which the server computes values of the columns that it adds."""
    yield CatalogMessage(rewritten=(OID,), is_filled=True, xid=STREAM)
    yield CatalogMessage((DefinedTable(OID, "public", "t", columns, omitted=omitted),), xid=STREAM)


def test_a_computed_column_is_unsent_only_if_it_is_published() -> None:
    catalog = catalog_with(message(A))
    before = catalog.completed(sent(A), None)
    for ordinal, found in enumerate(filled(A, B), start=1):
        catalog.add(found, (0, ordinal), None, 200)
    catalog = Definitions.of(catalog_entry(catalog_row(entry)) for entry in catalog.to_store())
    assert not has_unsent_values(before, catalog.completed(sent(A), None))
    with_b = catalog.completed(sent(A, B), None)
    assert has_unsent_values(before, with_b)
    catalog.add(message(A, B, column(3, "c")), (0, 9), None, 300)
    assert not has_unsent_values(with_b, catalog.completed(sent(A, B, column(3, "c")), None)), "later, and not computed"


def test_an_omitted_column_is_left_out_and_the_others_follow_without_a_row() -> None:
    c = column(3, "c", initial=b"7")
    later = CatalogMessage((DefinedTable(OID, "public", "t", (A, B, c), omitted=(2,)),), xid=STREAM)
    catalog = catalog_with(message(A), *filled(A, B, omitted=(2,)))
    before = catalog_with(message(A)).completed(sent(A), None)
    for expected in ([1], [1, 3]):
        definition = catalog.definition(OID, None)
        assert definition is not None
        after = definition.applied(before)
        assert (numbers(after), has_unsent_values(before, after)) == (expected, False)
        catalog.add(later, (1, 0), None, 300)


def test_a_masked_columns_initial_value_is_not_kept_and_its_rows_are_named() -> None:
    catalog = Definitions(is_masked=lambda schema, table, name: (schema, table, name) == ("public", "t", "b"))
    catalog.add(message(A), (0, 0), None, 1)
    before = catalog.completed(sent(A), None)
    catalog.add(message(A, column(2, "b", initial=b"secret")), (0, 1), None, 2)
    after = catalog.completed(sent(A, B), None)
    assert b"secret" not in repr(catalog.to_store()).encode()
    assert after.columns[1].initial is None
    assert has_unsent_values(before, after)


def test_an_unknown_change_ends_what_is_known_until_it_is_sent_again() -> None:
    catalog = catalog_with(message(A, B), CatalogMessage(is_unknown=True))
    assert catalog.completed(sent(A, B), None) == sent(A, B)
    catalog.add(message(A, B), (0, 9), None, 9)
    assert catalog.completed(sent(A, B), None).catalog == CatalogMark(1, 2, is_whole=True)


def test_a_value_is_never_shown() -> None:
    entry = DefinitionEntry((0, 0), catalog_with(message(column(1, "a", initial=b"secret"))).to_store()[0].definition)
    assert "secret" not in repr(entry)


def lines(before: Relation, after: Relation) -> list[str]:
    return [*map(str, lineage(before, after, Declarations({})).changes)]


def completed(*columns: RelationColumn, rewrites: int = 0, last: int | None = None) -> Relation:
    mark = CatalogMark(rewrites, last or max(c.number or 0 for c in columns))
    return replace(sent(*columns), columns=columns, catalog=mark)


def test_numbers_decide_which_column_is_which() -> None:
    assert lines(completed(A, B), completed(A, B_AGAIN)) == ["column dropped: b", "column added: b"]
    swapped = completed(column(1, "b"), column(2, "a"))
    assert lines(completed(A, B), swapped) == ["column renamed: b (was a)", "column renamed: a (was b)"]


def test_a_change_is_a_fact_if_the_catalog_describes_both_sides() -> None:
    for before, after, is_fact in ((A, B, True), (A, None, False), (None, B, False)):
        old, new = (sent(A) if before is None else completed(A), sent(A, B) if after is None else completed(A, B))
        assert [change.is_fact for change in lineage(old, new, Declarations({})).changes] == [is_fact]


def test_a_wrong_declaration_is_refused() -> None:
    before, after = completed(A, B), completed(A, column(3, "c"))
    with pytest.raises(TableError, match=r"columns: \{c: \{renamed_from: b\}\} contradicts the server's catalog"):
        lineage(before, after, Declarations({"c": "b"}))
    assert lineage(before, after, Declarations({"c": None})).origins == (0, None)


def test_a_new_column_has_its_initial_value_and_an_older_one_was_not_sent() -> None:
    step = lineage(completed(A, last=2), completed(A, B, column(3, "c", initial=b"7")), Declarations({}))
    assert (step.initial, step.unsent, step.is_rewritten) == ({2: b"7"}, (1,), True)


def test_a_rewrite_leaves_new_columns_unsent() -> None:
    step = lineage(completed(A), completed(A, B, rewrites=1), Declarations({}))
    assert (step.unsent, step.is_rewritten) == ((1,), True)


def test_renamed_labels_and_other_attributes_are_seen_and_new_labels_are_no_change() -> None:
    def of(form: TypeForm) -> Relation:
        return completed(replace(A, form=form))

    old = of(TypeForm(labels=((1, "red"),)))
    assert lineage(old, of(TypeForm(labels=((1, "crimson"),))), Declarations({})).reformed.keys() == {0}
    assert not lineage(old, of(TypeForm(labels=((1, "red"), (2, "blue")))), Declarations({})).reformed
    nested = of(TypeForm(attributes=(1,), nested="x"))
    assert has_unsent_values(nested, of(TypeForm(attributes=(1,), nested="y")))


def test_a_message_renames_a_table_and_detaches_a_partition_without_a_row() -> None:
    history = RelationHistory()
    root, leaf = sent(A), replace(sent(A), oid=OID + 1, name="leaf")
    history.declare(root, (0, 0), None, OID)
    history.declare(leaf, (0, 1), None, OID)
    tree = CatalogMessage((DefinedTable(OID, "public", "renamed", (A,), is_root=True),), xid=1)
    history.follow(tree, (0, 5), None, None)
    newest = history.newest(OID)
    assert newest is not None
    assert newest.name == "renamed"
    assert [entry.relation.oid for entry in history.detached(OID, (0, 1))] == [OID + 1]


def test_a_whole_catalog_completes_what_was_described_before() -> None:
    history = RelationHistory()
    history.declare(sent(A, B), (0, 0), None)
    found = replace(message(A, B), is_resent=True)
    history.definitions.add(found, (0, 5), None, 100)
    history.follow(found, (0, 5), None, None)
    newest = history.newest(OID)
    assert newest is not None
    assert numbers(newest) == [1, 2]


def test_a_stored_definition_is_read_again_also_without_what_an_earlier_version_did_not_store() -> None:
    table = replace(message(A, B).tables[0], comments=((0, "t"), (2, "it's")), keys=((1,), (2, 1)))
    catalog = Definitions()
    catalog.add(CatalogMessage((table,), xid=STREAM, command="ALTER TABLE"), (0, 0), None, 100)
    [entry] = catalog.to_store()
    row = catalog_row(entry)
    assert catalog_entry(row) == entry
    early = catalog_entry(row | dict.fromkeys(("command", "comments", "keys")))
    bare = replace(entry.definition, comments=(), mark=replace(entry.definition.mark, keys=()))
    assert early == replace(entry, definition=bare, command="")
