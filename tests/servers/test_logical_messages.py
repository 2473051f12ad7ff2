"""Messages and origins of a running server, received more than once."""

from __future__ import annotations

import time

import pytest

from pgoutput_etl.protocol.decoder import decode
from pgoutput_etl.protocol.framing import Framing, frames, stands_in_stream
from pgoutput_etl.protocol.messages import Message
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.transactions.origin_filter import Origins
from tests.support.servers.postgres import Server, Version
from tests.support.servers.walsender_client import WalsenderClient, WalsenderGoneError

pytestmark = pytest.mark.e2e

SCRIPT = """
create table t (id int primary key, v text);
create publication p for table t;
select pg_replication_origin_create('elsewhere');
"""
HISTORY = """
select pg_logical_emit_message(false, 'none', 'alone');
begin;
insert into t values (1, 'one');
select pg_logical_emit_message(true, 'outbox', 'one');
select pg_logical_emit_message(false, 'none', 'beside one');
savepoint s;
select pg_logical_emit_message(true, 'outbox', 'dropped');
rollback to s;
select pg_logical_emit_message(true, 'outbox', '\\x00ff'::bytea);
commit;
begin;
select pg_logical_emit_message(true, 'outbox', 'gone');
select pg_logical_emit_message(false, 'none', 'beside gone');
rollback;
begin;
insert into t select i, repeat('x', 100) from generate_series(1000, 3000) i;
select pg_logical_emit_message(true, 'outbox', 'streamed');
select pg_logical_emit_message(false, 'none', 'beside streamed');
savepoint s;
select pg_logical_emit_message(true, 'outbox', 'streamed and dropped');
insert into t select i, repeat('x', 100) from generate_series(4000, 6000) i;
rollback to s;
insert into t select i, repeat('x', 100) from generate_series(7000, 9000) i;
commit;
begin;
insert into t select i, repeat('x', 100) from generate_series(10000, 13000) i;
select pg_logical_emit_message(true, 'outbox', 'streamed and gone');
rollback;
select pg_replication_origin_session_setup('elsewhere');
begin;
select pg_replication_origin_xact_setup('0/ABCDEF', now());
insert into t values (2, 'two');
select pg_logical_emit_message(true, 'outbox', 'from elsewhere');
commit;
"""
OUTBOX = [b"one", b"\0\xff", b"streamed", b"from elsewhere"]
NONE = [b"alone", b"beside one", b"beside gone", b"beside streamed"]


def received(server: Server, streaming: str) -> bytes:
    """All changes of a slot, without confirming any."""
    options = {"proto_version": "2", "publication_names": "p", "messages": "true", "streaming": streaming}
    for attempt in range(50):
        try:
            with WalsenderClient(server, "slot", options) as client:
                return b"".join(client.frames(1.5))
        except WalsenderGoneError as error:  # the previous walsender may not have noticed its closed connection yet
            if "is active for PID" not in str(error) or attempt == 49:
                raise
            time.sleep(0.1)
    raise AssertionError


def messages_in(content: bytes) -> tuple[list[tuple[int | None, Message]], int]:
    """The Messages with the LSNs of their frames, and the number of Messages in stream segments."""
    logical_messages, in_stream, streamed = [], False, 0
    for frame in frames(content, Framing.COPYDATA):
        body = content[frame.start : frame.end]
        if body[:1] == b"M":
            message = decode(body, in_stream)
            assert isinstance(message, Message)
            assert message.transactional or not in_stream, "in a segment, every Message belongs to a transaction"
            logical_messages.append((frame.lsn, message))
            streamed += in_stream
        in_stream = stands_in_stream(body[0], in_stream)
    return logical_messages, streamed


@pytest.mark.parametrize("version", [pytest.param(16, marks=pytest.mark.soak), 18])
def test_a_message_received_twice_counts_once(version: Version) -> None:
    settings = {"logical_decoding_work_mem": "64kB", "max_replication_slots": "4"}
    with Server(version, settings) as server:
        server.psql(SCRIPT)
        server.create_slot("slot")
        server.psql(HISTORY)
        contents = [received(server, streaming) for streaming in ("off", "on")]

    first, _ = messages_in(contents[0])
    assert all(lsn == message.lsn for lsn, message in first), "a frame has its Message's LSN"
    again, streamed = messages_in(contents[1])
    assert streamed > 0
    assert {m.lsn for _, m in first} <= {m.lsn for _, m in again}, "a resent Message has the same LSN"

    replay = Replay()
    for number, content in enumerate(contents):
        replay.add_file(f"{number:03}.copydata", content)
    stored = replay.logical_messages()
    assert sorted(m["content"] for m in stored if m["transactional"]) == sorted(OUTBOX)
    assert [m["content"] for m in stored if not m["transactional"]] == NONE
    by_content = {m["content"]: m for m in stored}
    assert by_content[b"one"]["xid"] == by_content[b"\0\xff"]["xid"] is not None
    assert len({m["lsn"] for m in stored}) == len(stored), "one LSN, one Message"

    for origins, expected in ((Origins(), True), (Origins(accepted=frozenset()), False)):
        replay = Replay(origins=origins)
        replay.add_file("000.copydata", contents[1])
        assert (b"from elsewhere" in {m["content"] for m in replay.logical_messages()}) == expected
        assert ("elsewhere" in {row["origin"] for row in replay.committed()}) == expected
