"""Hands a scan over to the fast path, and back to the readable scanner after the last message that it read."""

from __future__ import annotations

from itertools import islice

from pgoutput_etl.protocol.framing import Frame
from pgoutput_etl.scan.census import CENSUS_TAGS
from pgoutput_etl.scan.fast import fragments as loop
from pgoutput_etl.scan.fast.fragments import ScanCursor
from pgoutput_etl.scan.fast.messages import FREQUENT
from pgoutput_etl.scan.fast.row_arrays import RowArrays
from pgoutput_etl.scan.fast.rows import FastRows, FastScanner, OriginField, Scratch
from pgoutput_etl.scan.file_summary import Fragment, FragmentKind
from pgoutput_etl.scan.message_row import LOGICAL_TAG
from pgoutput_etl.scan.row_buffer import ScanState
from pgoutput_etl.scan.salvage import ReadPosition


class FastPath:
    """Advances a scan's state by runs of messages that the compiled loops accept."""

    def __init__(self, state: ScanState) -> None:
        self._state = state
        self._scanner: FastScanner | None = None

    def read(self, frame: Frame, in_stream: bool) -> ReadPosition | None:
        """Reads from a frame that the scanner has not read yet. None if the compiled loops accept too few messages."""
        state = self._state
        tag = state.data[frame.start]
        if tag not in FREQUENT or (tag == ord(LOGICAL_TAG) and state.in_head):
            return None
        if self._scanner is None:
            self._scanner = FastScanner(state.data, state.framing, state.file, Scratch())
        scanner, before, position = self._scanner, state.ordinal, frame.offset
        while scanner.find(position, in_stream):
            arrays = RowArrays(scanner.readable, scanner.has_lsn, state.with_tuples)
            known = self._known_origin()
            rows = scanner.read(_cursor(state), arrays)
            if not rows.messages:
                break
            state.compare(islice(scanner.bodies(), rows.messages))
            if state.census is not None and not CENSUS_TAGS.isdisjoint(tag for tag, _ in rows.tags):
                state.census.add_all(islice(scanner.bodies(), rows.messages), in_stream)
            self._advance(rows)
            if rows.rows:
                state.flush()
                scanner.append(arrays, rows)
                batch = arrays.batch(len(state.summary.epochs) - 1)
                state.batches.append(scanner.with_origins(batch, arrays.numbers[loop.ROW_ORIGIN, : arrays.rows], known))
            position, in_stream = rows.position, rows.in_stream
            if not rows.more:
                break
        return None if state.ordinal == before else ReadPosition(state.ordinal - before, position, in_stream)

    def read_whole(self, scanner: FastScanner, arrays: RowArrays) -> FastRows | None:
        """Reads all messages that the scanner found. None if the compiled loop doesn't accept all of them. Their rows
        are not appended yet."""
        rows = scanner.read(_cursor(self._state), arrays)
        if rows.messages < scanner.fields.messages:
            return None
        self._state.compare(scanner.bodies())
        self._advance(rows)
        return rows

    def _known_origin(self) -> OriginField | None:
        fragment = self._state.fragment
        return None if fragment is None or fragment.origin is None else (fragment.origin, fragment.origin_lsn)

    def _advance(self, rows: FastRows) -> None:
        """Advances the state past the messages of `rows`."""
        state, cursor, summary = self._state, rows.cursor, self._state.summary
        if cursor.kind == loop.NO_KIND:
            state.fragment = None
        elif state.fragment is None or state.fragment.number != cursor.fragment:
            state.fragment = Fragment(cursor.fragment, FragmentKind.SEGMENT, cursor.fragment_xid)
            if cursor.kind == loop.TRANSACTION:
                state.fragment.kind = FragmentKind.TRANSACTION
                state.fragment.commit_lsn, state.fragment.commit_ts = cursor.fragment_lsn, cursor.fragment_ts
        if state.fragment is not None:
            state.fragment.changes = cursor.changes
            if rows.origin is not None:
                state.fragment.origin, state.fragment.origin_lsn = rows.origin
        state.fragments, state.commit_lsn = cursor.fragments, cursor.commit_lsn
        if cursor.has_commits:
            summary.epochs[-1] = (cursor.first_commit, cursor.last_commit)
        if cursor.has_xids:
            summary.xids = (cursor.oldest_xid, cursor.newest_xid)
        summary.first_lsn, summary.last_lsn = cursor.first_lsn or None, cursor.last_lsn or None
        state.head_matters, summary.head_ended = bool(cursor.head_matters), bool(cursor.head_ended)
        state.ordinal, state.accounted_to = cursor.ordinal, cursor.accounted_to
        state.offset, state.lsn, state.read_to = rows.offset, rows.lsn, rows.read_to
        for tag, count in rows.tags:
            summary.messages[tag] = summary.messages.get(tag, 0) + count
        for relation, count in rows.relations:
            summary.changes[relation] = summary.changes.get(relation, 0) + count


def _cursor(state: ScanState) -> ScanCursor:
    fragment, summary = state.fragment, state.summary
    epoch, xids = summary.epochs[-1], summary.xids
    return ScanCursor(
        kind=_kind(fragment),
        fragment=state.fragment_number,
        fragments=state.fragments,
        fragment_xid=0 if fragment is None else fragment.xid or 0,
        fragment_lsn=0 if fragment is None else fragment.commit_lsn or 0,
        fragment_ts=0 if fragment is None else fragment.commit_ts or 0,
        changes=0 if fragment is None else fragment.changes,
        is_damaged=fragment is not None and fragment.is_damaged,
        is_pending=bool(summary.interrupted) and summary.interrupted[-1].next_lsn is None,
        has_commits=epoch is not None,
        first_commit=0 if epoch is None else epoch[0],
        last_commit=0 if epoch is None else epoch[1],
        commit_lsn=state.commit_lsn,
        has_xids=xids is not None,
        oldest_xid=0 if xids is None else xids[0],
        newest_xid=0 if xids is None else xids[1],
        first_lsn=summary.first_lsn or 0,
        last_lsn=summary.last_lsn or 0,
        head_matters=state.head_matters,
        head_ended=summary.head_ended,
        ordinal=state.ordinal,
        accounted_to=state.accounted_to,
        origin=loop.KNOWN_ORIGIN if fragment is not None and fragment.origin is not None else loop.NO_ORIGIN,
    )


def _kind(fragment: Fragment | None) -> int:
    if fragment is None:
        return loop.NO_KIND
    match fragment.kind:
        case FragmentKind.HEAD:
            return loop.HEAD_FRAGMENT
        case FragmentKind.SEGMENT:
            return loop.SEGMENT
        case FragmentKind.TRANSACTION:
            return loop.OTHER if fragment.commit_lsn is None else loop.TRANSACTION
        case FragmentKind.PREPARED:
            return loop.OTHER
