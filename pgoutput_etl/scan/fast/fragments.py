"""Units and commits of what columnar.py found, followed by a compiled loop, and their rows, as numbers.

It goes on from where the readable scanner stands, and stops before whatever isn't the plain way of a transaction: then
the readable scanner takes that message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import cast

import numpy as np
from numpy.typing import NDArray

from pgoutput_etl.jit import compiled
from pgoutput_etl.scan.fast.messages import (
    COMMIT_LSN,
    COMMIT_TS,
    END,
    IN_STREAM,
    LSN,
    NEW,
    NEW_END,
    NEXT,
    OFFSET,
    OLD,
    OLD_END,
    OLD_KIND,
    RELATION,
    START,
    TAG,
    UNCHANGED_END,
    XID,
    Bytes,
    Numbers,
)
from pgoutput_etl.scan.message_row import NO_FRAGMENT, STORED_TIMES
from pgoutput_etl.xid import XIDS

# What a unit is to the loop. Of an OTHER nothing is known but its number: prepared, or without its beginning.
NO_KIND, HEAD_FRAGMENT, TRANSACTION, SEGMENT, OTHER = range(5)

NO_ORIGIN, KNOWN_ORIGIN = 0, -1


@dataclass(frozen=True, slots=True)
class ScanCursor:
    """Where a scanner stands, in numbers: the unit that is open, its stretch, what it has seen of the file. What isn't
    there is 0. is_pending: something that was interrupted waits for the next commit's LSN."""

    kind: int
    fragment: int
    fragments: int
    fragment_xid: int
    fragment_lsn: int
    fragment_ts: int
    changes: int  # of the unit
    is_damaged: bool
    is_pending: bool
    has_commits: bool  # the stretch
    first_commit: int
    last_commit: int
    commit_lsn: int  # the highest in the file
    has_xids: bool
    oldest_xid: int
    newest_xid: int
    first_lsn: int  # of frames
    last_lsn: int
    head_matters: bool
    ordinal: int
    accounted_to: int
    origin: (
        int  # of a TRANSACTION: NO_ORIGIN, KNOWN_ORIGIN if it was known before, or 1 + its Origin among the messages
    )

    def to_array(self) -> Numbers:
        return np.array([getattr(self, name) for name in _CURSOR_NAMES], np.int64)

    @classmethod
    def from_array(cls, numbers: Numbers) -> ScanCursor:
        return cls(*(bool(n) if is_bool else n for n, is_bool in zip(numbers.tolist(), _CURSOR_IS_BOOL, strict=True)))


_CURSOR_NAMES = tuple(each.name for each in fields(ScanCursor))

_CURSOR_IS_BOOL = tuple(each.type == "bool" for each in fields(ScanCursor))

(
    KIND, UNIT, UNITS, UNIT_XID, UNIT_LSN, UNIT_TS, CHANGES, IS_DAMAGED, IS_PENDING, HAS_LAST, FIRST_COMMIT,
    LAST_COMMIT, COMMITTED, HAS_XIDS, OLDEST_XID, NEWEST_XID, FIRST_LSN, LAST_LSN, HEAD_MATTERS, ORDINAL, ACCOUNTED_TO,
    ORIGIN,
) = range(len(_CURSOR_NAMES))  # fmt: skip


# The columns of a row that are numbers
ROW_ORDINAL, ROW_OFFSET, ROW_BEGIN, ROW_END, ROW_LSN, ROW_XID, ROW_RELATION = range(7)

ROW_COMMIT_LSN, ROW_COMMIT_TS, ROW_TOP_XID, ROW_CHANGES, ROW_ORIGIN = range(7, 12)

NUMBERS = 12

# The columns of a row that are bytes, and how many of them are before the next row's
OLD_TUPLE, NEW_TUPLE, BODY, UNCHANGED = range(4)

EXTENTS = 4

# Which of a row's columns aren't NULL, as bits
HAS_XID, HAS_RELATION, HAS_OLD, HAS_NEW = 1, 2, 4, 8

HAS_UNCHANGED, HAS_BODY, HAS_TRANSACTION, HAS_CHANGES = 16, 32, 64, 128


_A, _B, _C, _D, _E, _I, _M, _O, _R, _S, _U, _Y, _COMMIT_OF_STREAM = b"ABCDEIMORSUYc"

_FIRST_TIME, _LAST_TIME = STORED_TIMES[0], STORED_TIMES[-1]

_HALF_OF_XIDS = XIDS // 2

SLOTS = 1024  # of a hash table of relations

_MOST_RELATIONS = 512


_U64 = np.uint64

_I64 = cast("Callable[[object], int]", np.int64)


@compiled
def follow(  # noqa: C901 - one loop, for speed
    fields: Numbers,
    most: int,
    place: Numbers,
    tag_counts: Numbers,
    relation_counts: Numbers,
    of_message: Numbers,
    numbers: Numbers,
    fragments: NDArray[np.int32],
    tags: Bytes,
    extents: NDArray[np.int32],
    presences: Bytes,
) -> tuple[int, int, int]:
    """How many messages were taken, with how many rows, of how many relations. `place` is moved on.

    relation_counts: a hash table of numbers from 1, then by number the OID and how often.
    """
    kind, fragment, all_fragments = place[KIND], place[UNIT], place[UNITS]
    unit_xid, unit_lsn, unit_ts = place[UNIT_XID], place[UNIT_LSN], place[UNIT_TS]
    changes = place[CHANGES]
    ordinal, accounted_to = place[ORDINAL], place[ACCOUNTED_TO]
    origin = place[ORIGIN]
    relation_counts[0, :] = 0
    different = 0
    last_relation, last_number = _I64(-1), 0
    row = 0
    taken = 0
    unchanged_end = _I64(0)
    for i in range(most):
        m = _U64(i)
        tag = fields[m, TAG]
        lsn = fields[m, LSN]
        if lsn < 0:
            break
        r = _U64(row)
        has_row = True
        has_transaction = kind == TRANSACTION
        of_fragment = fragment
        of_origin = origin
        end = fields[m, NEXT]
        present = 0
        if tag in (_I, _U, _D):
            if kind == NO_KIND:
                break
            relation = fields[m, RELATION]
            if relation != last_relation:
                slot = (relation * 40503 >> 4) % SLOTS
                number = relation_counts[0, _U64(slot)]
                while number != 0 and relation_counts[1, _U64(number - 1)] != relation:
                    slot = (slot + 1) % SLOTS
                    number = relation_counts[0, _U64(slot)]
                if number == 0:
                    if different == _MOST_RELATIONS:
                        break
                    relation_counts[1, _U64(different)] = relation
                    relation_counts[2, _U64(different)] = 0
                    different += 1
                    number = _I64(different)
                    relation_counts[0, _U64(slot)] = number
                last_relation, last_number = relation, number - 1
            relation_counts[2, _U64(last_number)] += 1
            changes += 1
            now_unchanged = fields[m, UNCHANGED_END]
            if kind == HEAD_FRAGMENT:
                place[HEAD_MATTERS] = 1
            numbers[ROW_XID, r] = fields[m, XID]
            numbers[ROW_RELATION, r] = relation
            tags[1, r] = fields[m, OLD_KIND]
            present = HAS_RELATION
            if fields[m, IN_STREAM]:
                present |= HAS_XID
            if fields[m, OLD_KIND]:
                present |= HAS_OLD
            if tag != _D:
                present |= HAS_NEW
            if now_unchanged > unchanged_end:
                present |= HAS_UNCHANGED
            unchanged_end = now_unchanged
            extents[OLD_TUPLE, r + _U64(1)] = extents[OLD_TUPLE, r] + (fields[m, OLD_END] - fields[m, OLD])
            extents[NEW_TUPLE, r + _U64(1)] = extents[NEW_TUPLE, r] + (fields[m, NEW_END] - fields[m, NEW])
            extents[BODY, r + _U64(1)] = extents[BODY, r]
        else:
            xid, has_xid = _I64(0), _I64(0)
            if tag == _B:
                lsn_of_commit, time = fields[m, COMMIT_LSN], fields[m, COMMIT_TS]
                if kind != NO_KIND or place[IS_PENDING] or lsn_of_commit < 0 or time < _FIRST_TIME or time > _LAST_TIME:
                    break
                if place[HAS_LAST] and lsn_of_commit <= place[LAST_COMMIT]:
                    break
                all_fragments += 1
                kind, fragment, changes = _I64(TRANSACTION), all_fragments, _I64(0)
                unit_xid, unit_lsn, unit_ts = fields[m, XID], lsn_of_commit, time
                origin = _I64(NO_ORIGIN)
                place[IS_DAMAGED] = 0
                has_row = False
            elif tag == _C:
                lsn_of_commit, time = fields[m, COMMIT_LSN], fields[m, COMMIT_TS]
                if kind != TRANSACTION or place[IS_DAMAGED] or lsn_of_commit != unit_lsn:
                    break
                if place[IS_PENDING] or time < _FIRST_TIME or time > _LAST_TIME:
                    break
                if place[HAS_LAST]:
                    if lsn_of_commit <= place[LAST_COMMIT]:
                        break
                else:
                    place[HAS_LAST] = 1
                    place[FIRST_COMMIT] = lsn_of_commit
                place[LAST_COMMIT] = lsn_of_commit
                place[COMMITTED] = max(place[COMMITTED], lsn_of_commit)
                if not place[HAS_XIDS]:
                    place[HAS_XIDS] = 1
                    place[OLDEST_XID] = unit_xid
                    place[NEWEST_XID] = unit_xid
                # As xids.distance: they begin again at 2^32.
                if (unit_xid - place[OLDEST_XID] + _HALF_OF_XIDS) % XIDS < _HALF_OF_XIDS:
                    place[OLDEST_XID] = unit_xid
                if (unit_xid - place[NEWEST_XID] + _HALF_OF_XIDS) % XIDS > _HALF_OF_XIDS:
                    place[NEWEST_XID] = unit_xid
                kind, origin = _I64(NO_KIND), _I64(NO_ORIGIN)
            elif tag == _COMMIT_OF_STREAM:
                lsn_of_commit, time = fields[m, COMMIT_LSN], fields[m, COMMIT_TS]
                if kind != NO_KIND or place[IS_PENDING] or lsn_of_commit < 0 or time < _FIRST_TIME or time > _LAST_TIME:
                    break
                if place[HAS_LAST]:
                    if lsn_of_commit <= place[LAST_COMMIT]:
                        break
                else:
                    place[HAS_LAST] = 1
                    place[FIRST_COMMIT] = lsn_of_commit
                place[LAST_COMMIT] = lsn_of_commit
                place[COMMITTED] = max(place[COMMITTED], lsn_of_commit)
                of_fragment = _I64(NO_FRAGMENT)
            elif tag == _S:
                if kind != NO_KIND:
                    break
                all_fragments += 1
                kind, fragment, changes = _I64(SEGMENT), all_fragments, _I64(0)
                unit_xid = fields[m, XID]
                place[IS_DAMAGED] = 0
                of_fragment = fragment
            elif tag == _E:
                if kind != SEGMENT:
                    break
                kind = _I64(NO_KIND)
            elif tag == _A:
                if kind != NO_KIND:
                    break
                of_fragment = _I64(NO_FRAGMENT)
            elif tag in (_R, _Y):
                if kind == NO_KIND:
                    of_fragment = _I64(NO_FRAGMENT)
                xid = fields[m, XID]
                has_xid = fields[m, IN_STREAM]
            elif tag == _M:
                if kind == HEAD_FRAGMENT or fields[m, COMMIT_TS] < 0:
                    break
                if fields[m, COMMIT_LSN] == 0:
                    has_transaction = False
                    of_fragment = _I64(NO_FRAGMENT)
                    if kind != NO_KIND:
                        end = accounted_to
                elif kind == NO_KIND:
                    break
                if fields[m, XID] >= 0:
                    xid = fields[m, XID]
                    has_xid = _I64(1)
            else:
                if kind == TRANSACTION:
                    if origin == NO_ORIGIN:
                        origin = _I64(i + 1)
                elif kind != NO_KIND:
                    break
                has_row = False
            if has_row:
                present = HAS_BODY
                if has_xid:
                    present |= HAS_XID
                if tag == _C:
                    present |= HAS_CHANGES
                tags[1, r] = 0
                extents[OLD_TUPLE, r + _U64(1)] = extents[OLD_TUPLE, r]
                extents[NEW_TUPLE, r + _U64(1)] = extents[NEW_TUPLE, r]
                extents[BODY, r + _U64(1)] = extents[BODY, r] + (fields[m, END] - fields[m, START])
                numbers[ROW_XID, r] = xid
                numbers[ROW_RELATION, r] = 0

        if has_row:
            numbers[ROW_ORDINAL, r] = ordinal
            numbers[ROW_OFFSET, r] = fields[m, OFFSET]
            numbers[ROW_BEGIN, r] = accounted_to
            numbers[ROW_END, r] = end
            numbers[ROW_LSN, r] = lsn
            numbers[ROW_COMMIT_LSN, r] = unit_lsn
            numbers[ROW_COMMIT_TS, r] = unit_ts
            numbers[ROW_TOP_XID, r] = unit_xid
            numbers[ROW_CHANGES, r] = changes
            numbers[ROW_ORIGIN, r] = of_origin if has_transaction else NO_ORIGIN
            presences[r] = present | HAS_TRANSACTION if has_transaction else present
            extents[UNCHANGED, r + _U64(1)] = unchanged_end
            tags[0, r] = tag
            fragments[r] = of_fragment
            of_message[r] = i
            accounted_to = end
            row += 1
        if tag_counts[0, _U64(tag)] == 0:
            tag_counts[1, _U64(tag)] = i
        tag_counts[0, _U64(tag)] += 1
        if lsn != 0:
            if place[FIRST_LSN] == 0:
                place[FIRST_LSN] = lsn
            place[LAST_LSN] = lsn
        ordinal += 1
        taken += 1
    place[KIND], place[UNIT], place[UNITS] = kind, fragment, all_fragments
    place[UNIT_XID], place[UNIT_LSN], place[UNIT_TS] = unit_xid, unit_lsn, unit_ts
    place[CHANGES] = changes
    place[ORDINAL], place[ACCOUNTED_TO] = ordinal, accounted_to
    place[ORIGIN] = origin
    return taken, row, different
