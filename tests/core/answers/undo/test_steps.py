"""What transactions did to rows, and which of these rows others changed again."""

from __future__ import annotations

from pgoutput_etl.answers.undo.steps import Change, Conflict, Key, Operation, Row, TableHistory, history_of

BAD, LATER, OTHER = 7, 8, 9

ROWS: dict[Key, Row] = {("1",): Row(("1", "a")), ("2",): Row(("2", "b"))}


def change(
    xid: int,
    number: int,
    old: str | None,
    key: str | None,
    value: str | None = "x",
    unknown: frozenset[int] = frozenset(),
) -> Change:
    new = None if key is None else Row((key, value), unknown)
    return Change(0x100 * xid, xid, number, xid == BAD, _key(old), _key(key), new)


def _key(text: str | None) -> Key | None:
    return None if text is None else (text,)


def history(*changes: Change) -> TableHistory:
    return history_of(changes, ROWS, has_key=True)


def test_each_kind_of_step_has_the_rows_before_and_after() -> None:
    found = history(change(BAD, 1, "1", "1"), change(BAD, 2, "2", None), change(BAD, 3, None, "3"))
    assert [(step.operation, step.before, step.after) for step in found.steps] == [
        (Operation.UPDATE, Row(("1", "a")), Row(("1", "x"))),
        (Operation.DELETE, Row(("2", "b")), None),
        (Operation.INSERT, None, Row(("3", "x"))),
    ]
    assert found.conflicts == ()


def test_rows_that_others_changed_again_are_conflicts() -> None:
    found = history(change(BAD, 1, "1", "1"), change(BAD, 2, "2", "2"), change(LATER, 3, "2", "2", "y"))
    assert [step.before for step in found.steps] == [Row(("1", "a"))]
    assert [(conflict.keys, conflict.xids) for conflict in found.conflicts] == [((("2",),), (LATER,))]


def test_a_change_between_two_selected_ones_is_a_conflict() -> None:
    found = history(change(BAD, 1, "1", "1"), change(LATER, 2, "1", "1"), change(BAD, 3, "1", "1", "z"))
    assert found.steps == ()
    assert [conflict.xids for conflict in found.conflicts] == [(LATER,)]


def test_changes_before_a_row_was_touched_are_no_conflict() -> None:
    found = history(change(OTHER, 1, "1", "1", "y"), change(BAD, 2, "1", "1"))
    assert [(step.before, step.after) for step in found.steps] == [(Row(("1", "y")), Row(("1", "x")))]


def test_keys_that_one_row_had_after_the_other_are_undone_together() -> None:
    moved = change(BAD, 1, "1", "5"), change(BAD, 2, "2", "1")
    assert len(history(*moved).steps) == 2
    found = history(*moved, change(LATER, 3, "5", "6"))
    assert found.steps == ()
    [conflict] = found.conflicts
    assert (set(conflict.keys), conflict.xids) == ({("1",), ("2",), ("5",), ("6",)}, (LATER,))


def test_a_value_that_was_not_sent_is_that_of_the_row_before() -> None:
    unsent = frozenset({1})
    [step] = history(change(OTHER, 1, "1", "1", None, unsent), change(BAD, 2, "1", None)).steps
    assert step.before == Row(("1", "a"))


def test_a_row_whose_former_value_is_not_known_is_lost() -> None:
    unsent = frozenset({1})
    found = history(change(OTHER, 1, None, "9", None, unsent), change(BAD, 2, "9", "9"), change(BAD, 3, "4", None))
    assert found.steps == ()
    assert [conflict.xids for conflict in found.conflicts] == [(), ()]


def test_an_insert_of_a_key_that_has_a_row_is_lost() -> None:
    found = history(change(BAD, 1, None, "1"))
    assert (found.steps, [conflict.xids for conflict in found.conflicts]) == ((), [()])


def test_a_new_column_keeps_what_an_update_set() -> None:
    rows: dict[Key, Row] = {key: Row((*row.texts, None), frozenset({2}), frozenset({2})) for key, row in ROWS.items()}
    new = Row(("1", "x", "new"))
    changes = [Change(0x100, BAD, 1, True, ("1",), ("1",), new), Change(0x100, BAD, 2, True, ("2",), None, None)]
    found = history_of(changes, rows, has_key=True)
    assert [(step.after, step.kept) for step in found.steps] == [(new, frozenset({2}))]
    assert [conflict.keys for conflict in found.conflicts] == [(("2",),)]  # it may have had a value there


def test_a_row_that_ends_as_it_was_needs_no_step() -> None:
    assert history(change(BAD, 1, "1", "1", "a")) == TableHistory((), ())


def test_in_a_table_without_a_key_a_row_is_all_its_values() -> None:
    def bag(xid: int, old: str | None, new: str | None) -> Change:
        row = None if new is None else Row((new,))
        return Change(0x100 * xid, xid, 1, xid == BAD, _key(old), _key(new), row)

    found = history_of([bag(BAD, "a", "b"), bag(BAD, "c", None), bag(LATER, None, "c")], {}, has_key=False)
    assert [(step.before, step.after) for step in found.steps] == [(Row(("a",)), Row(("b",)))]
    assert [(type(conflict), conflict.xids) for conflict in found.conflicts] == [(Conflict, (LATER,))]
