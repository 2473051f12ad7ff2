"""The compiled loop that assigns messages to fragments and commits, and writes their rows as numbers.

It continues from the readable scanner's position, and stops before the first message that is not an ordinary step of a
transaction. The readable scanner reads that message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

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

# Kinds of fragments. OTHER: prepared, or with an unreadable beginning; the loop only uses its number.
NO_KIND, HEAD_FRAGMENT, TRANSACTION, SEGMENT, OTHER = range(5)

NO_ORIGIN, KNOWN_ORIGIN = 0, -1


class ScanCursor(NamedTuple):
    """The state of a scan as numbers; 0 stands for None. is_pending: an interrupted transaction has no next_lsn yet."""

    kind: int
    fragment: int
    fragments: int
    fragment_xid: int
    fragment_lsn: int
    fragment_ts: int
    changes: int  # of the fragment
    is_damaged: int
    is_pending: int
    has_commits: int  # in the epoch
    first_commit: int
    last_commit: int
    commit_lsn: int  # the highest in the file
    has_xids: int
    oldest_xid: int
    newest_xid: int
    first_lsn: int  # of frames
    last_lsn: int
    head_matters: int
    head_ended: int  # with the Commit of a transaction that an earlier file began
    ordinal: int
    accounted_to: int
    # A TRANSACTION's: NO_ORIGIN, KNOWN_ORIGIN if read before this call, or 1 + the index of its Origin message
    origin: int


# Indexes of the fields
(
    KIND, FRAGMENT, FRAGMENTS, FRAGMENT_XID, FRAGMENT_LSN, FRAGMENT_TS, CHANGES, IS_DAMAGED, IS_PENDING, HAS_COMMITS,
    FIRST_COMMIT, LAST_COMMIT, HIGHEST_COMMIT, HAS_XIDS, OLDEST_XID, NEWEST_XID, FIRST_LSN, LAST_LSN, HEAD_MATTERS,
    HEAD_ENDED, ORDINAL, ACCOUNTED_TO, ORIGIN,
) = range(len(ScanCursor._fields))  # fmt: skip


# A row's numeric columns
ROW_ORDINAL, ROW_OFFSET, ROW_BEGIN, ROW_END, ROW_LSN, ROW_XID, ROW_RELATION = range(7)
ROW_COMMIT_LSN, ROW_COMMIT_TS, ROW_TOP_XID, ROW_CHANGES, ROW_ORIGIN = range(7, 12)
NUMBERS = 12

# A row's variable-length columns; extents[column, r + 1] is where the value of row r ends
OLD_TUPLE, NEW_TUPLE, BODY, UNCHANGED = range(4)
EXTENTS = 4

# Bits for a row's columns that are not NULL
HAS_XID, HAS_RELATION, HAS_OLD, HAS_NEW = 1, 2, 4, 8
HAS_UNCHANGED, HAS_BODY, HAS_TRANSACTION, HAS_CHANGES = 16, 32, 64, 128

_A, _B, _C, _D, _E, _I, _M, _O, _R, _S, _U, _Y, _STREAM_COMMIT = b"ABCDEIMORSUYc"
_FIRST_TIME, _LAST_TIME = STORED_TIMES[0], STORED_TIMES[-1]
_HALF_OF_XIDS = XIDS // 2
SLOTS = 1024  # of a hash table of relations
_MOST_RELATIONS = 512

_U64 = np.uint64
_I64 = cast("Callable[[object], int]", np.int64)


@compiled
def follow(  # noqa: C901 - one loop, for speed
    fields: Numbers,
    limit: int,
    cursor: Numbers,
    tag_counts: Numbers,
    relation_counts: Numbers,
    row_messages: Numbers,
    first: int,
    numbers: Numbers,
    row_fragments: NDArray[np.int32],
    tags: Bytes,
    extents: NDArray[np.int32],
    presences: Bytes,
) -> tuple[int, int, int]:
    """Reads up to `limit` messages, advances `cursor`, and writes their rows after the `first` ones. Returns the
    numbers of messages, of all rows, and of relations.

    tag_counts: by tag, the count and the index of its first message. relation_counts: a hash table of relation numbers
    (from 1), then the OID and the count by relation number. row_messages: the index of each new row's message.
    """
    kind, fragment, fragment_count = cursor[KIND], cursor[FRAGMENT], cursor[FRAGMENTS]
    fragment_xid, fragment_lsn, fragment_ts = cursor[FRAGMENT_XID], cursor[FRAGMENT_LSN], cursor[FRAGMENT_TS]
    changes = cursor[CHANGES]
    ordinal, accounted_to = cursor[ORDINAL], cursor[ACCOUNTED_TO]
    origin = cursor[ORIGIN]
    relation_counts[0, :] = 0
    relation_count = 0
    last_relation, last_number = _I64(-1), 0
    rows = first
    messages = 0
    unchanged_end = _I64(0)
    unchanged_before = _I64(extents[UNCHANGED, _U64(first)])
    for i in range(limit):
        m = _U64(i)
        tag = fields[m, TAG]
        lsn = fields[m, LSN]
        if lsn < 0:
            break
        r = _U64(rows)
        has_row = True
        has_transaction = kind == TRANSACTION
        row_fragment = fragment
        row_origin = origin
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
                    if relation_count == _MOST_RELATIONS:
                        break
                    relation_counts[1, _U64(relation_count)] = relation
                    relation_counts[2, _U64(relation_count)] = 0
                    relation_count += 1
                    number = _I64(relation_count)
                    relation_counts[0, _U64(slot)] = number
                last_relation, last_number = relation, number - 1
            relation_counts[2, _U64(last_number)] += 1
            changes += 1
            message_unchanged_end = fields[m, UNCHANGED_END]
            if kind == HEAD_FRAGMENT:
                cursor[HEAD_MATTERS] = 1
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
            if message_unchanged_end > unchanged_end:
                present |= HAS_UNCHANGED
            unchanged_end = message_unchanged_end
            extents[OLD_TUPLE, r + _U64(1)] = extents[OLD_TUPLE, r] + (fields[m, OLD_END] - fields[m, OLD])
            extents[NEW_TUPLE, r + _U64(1)] = extents[NEW_TUPLE, r] + (fields[m, NEW_END] - fields[m, NEW])
            extents[BODY, r + _U64(1)] = extents[BODY, r]
        else:
            xid, has_xid = _I64(0), _I64(0)
            # No transaction is open. The head ends with the first beginning; changes in it would be cut off.
            is_between = kind == NO_KIND or (kind == HEAD_FRAGMENT and not cursor[HEAD_MATTERS])
            if tag == _B:
                commit_lsn, time = fields[m, COMMIT_LSN], fields[m, COMMIT_TS]
                if not is_between or cursor[IS_PENDING] or commit_lsn < 0 or time < _FIRST_TIME or time > _LAST_TIME:
                    break
                if cursor[HAS_COMMITS] and commit_lsn <= cursor[LAST_COMMIT]:
                    break
                if kind == HEAD_FRAGMENT:
                    cursor[HEAD_ENDED] = 1
                fragment_count += 1
                kind, fragment, changes = _I64(TRANSACTION), fragment_count, _I64(0)
                fragment_xid, fragment_lsn, fragment_ts = fields[m, XID], commit_lsn, time
                origin = _I64(NO_ORIGIN)
                cursor[IS_DAMAGED] = 0
                has_row = False
            elif tag == _C:
                commit_lsn, time = fields[m, COMMIT_LSN], fields[m, COMMIT_TS]
                is_of_head = kind == HEAD_FRAGMENT and not fields[m, IN_STREAM]
                if cursor[IS_DAMAGED] or commit_lsn < 0:
                    break
                if not is_of_head and (kind != TRANSACTION or commit_lsn != fragment_lsn):
                    break
                if cursor[IS_PENDING] or time < _FIRST_TIME or time > _LAST_TIME:
                    break
                if cursor[HAS_COMMITS]:
                    if commit_lsn <= cursor[LAST_COMMIT]:
                        break
                else:
                    cursor[HAS_COMMITS] = 1
                    cursor[FIRST_COMMIT] = commit_lsn
                cursor[LAST_COMMIT] = commit_lsn
                cursor[HIGHEST_COMMIT] = max(cursor[HIGHEST_COMMIT], commit_lsn)
                if is_of_head:
                    cursor[HEAD_MATTERS] = 1
                    cursor[HEAD_ENDED] = 1
                else:
                    if not cursor[HAS_XIDS]:
                        cursor[HAS_XIDS] = 1
                        cursor[OLDEST_XID] = fragment_xid
                        cursor[NEWEST_XID] = fragment_xid
                    # As xid.distance: xids wrap around at 2^32.
                    if (fragment_xid - cursor[OLDEST_XID] + _HALF_OF_XIDS) % XIDS < _HALF_OF_XIDS:
                        cursor[OLDEST_XID] = fragment_xid
                    if (fragment_xid - cursor[NEWEST_XID] + _HALF_OF_XIDS) % XIDS > _HALF_OF_XIDS:
                        cursor[NEWEST_XID] = fragment_xid
                kind, origin = _I64(NO_KIND), _I64(NO_ORIGIN)
            elif tag == _STREAM_COMMIT:
                commit_lsn, time = fields[m, COMMIT_LSN], fields[m, COMMIT_TS]
                if not is_between or cursor[IS_PENDING] or commit_lsn < 0 or time < _FIRST_TIME or time > _LAST_TIME:
                    break
                if cursor[HAS_COMMITS]:
                    if commit_lsn <= cursor[LAST_COMMIT]:
                        break
                else:
                    cursor[HAS_COMMITS] = 1
                    cursor[FIRST_COMMIT] = commit_lsn
                cursor[LAST_COMMIT] = commit_lsn
                cursor[HIGHEST_COMMIT] = max(cursor[HIGHEST_COMMIT], commit_lsn)
                if kind == HEAD_FRAGMENT:
                    cursor[HEAD_ENDED] = 1
                kind, row_fragment = _I64(NO_KIND), _I64(NO_FRAGMENT)
            elif tag == _S:
                if not is_between:
                    break
                if kind == HEAD_FRAGMENT:
                    cursor[HEAD_ENDED] = 1
                fragment_count += 1
                kind, fragment, changes = _I64(SEGMENT), fragment_count, _I64(0)
                fragment_xid = fields[m, XID]
                cursor[IS_DAMAGED] = 0
                row_fragment = fragment
            elif tag == _E:
                if kind != SEGMENT:
                    break
                kind = _I64(NO_KIND)
            elif tag == _A:
                if not is_between:
                    break
                if kind == HEAD_FRAGMENT:
                    cursor[HEAD_ENDED] = 1
                kind, row_fragment = _I64(NO_KIND), _I64(NO_FRAGMENT)
            elif tag in (_R, _Y):
                if kind == NO_KIND:
                    row_fragment = _I64(NO_FRAGMENT)
                xid = fields[m, XID]
                has_xid = fields[m, IN_STREAM]
            elif tag == _M:
                if kind == HEAD_FRAGMENT or fields[m, COMMIT_TS] < 0:
                    break
                if fields[m, COMMIT_LSN] == 0:
                    has_transaction = False
                    row_fragment = _I64(NO_FRAGMENT)
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
                if has_transaction and tag == _C:
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
            numbers[ROW_COMMIT_LSN, r] = fragment_lsn
            numbers[ROW_COMMIT_TS, r] = fragment_ts
            numbers[ROW_TOP_XID, r] = fragment_xid
            numbers[ROW_CHANGES, r] = changes
            numbers[ROW_ORIGIN, r] = row_origin if has_transaction else NO_ORIGIN
            presences[r] = present | HAS_TRANSACTION if has_transaction else present
            extents[UNCHANGED, r + _U64(1)] = unchanged_before + unchanged_end
            tags[0, r] = tag
            row_fragments[r] = row_fragment
            row_messages[_U64(rows - first)] = i
            accounted_to = end
            rows += 1
        if tag_counts[0, _U64(tag)] == 0:
            tag_counts[1, _U64(tag)] = i
        tag_counts[0, _U64(tag)] += 1
        if lsn != 0:
            if cursor[FIRST_LSN] == 0:
                cursor[FIRST_LSN] = lsn
            cursor[LAST_LSN] = lsn
        ordinal += 1
        messages += 1
    cursor[KIND], cursor[FRAGMENT], cursor[FRAGMENTS] = kind, fragment, fragment_count
    cursor[FRAGMENT_XID], cursor[FRAGMENT_LSN], cursor[FRAGMENT_TS] = fragment_xid, fragment_lsn, fragment_ts
    cursor[CHANGES] = changes
    cursor[ORDINAL], cursor[ACCOUNTED_TO] = ordinal, accounted_to
    cursor[ORIGIN] = origin
    return messages, rows, relation_count
