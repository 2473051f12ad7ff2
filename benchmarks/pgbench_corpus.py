"""pgbench's default transactions: updates of accounts, tellers, and branches, and a row of history."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.corpora import Corpus, corpus
from benchmarks.landing_files import Block, Landed, even_cuts, initial_cuts, interleaved, land
from benchmarks.typed_columns import BEGUN, TableFiles, printed, stamps, wall_clock, write_expected
from benchmarks.wire_arrays import Column, Ints, Table, begins, commits, inserts, relation, updates
from pgoutput_etl.protocol.framing import Framing

_INT4, _BPCHAR, _TIMESTAMP = 23, 1042, 1114
_PER_BRANCH, _TELLERS = 100_000, 10
_FILLER = " " * 84
_BLOCK = 20_000  # transactions
_LSN, _LSN_STEP = 0x1_0000_0000, 1024
_XID = 1000

_ACCOUNTS = Table(
    16401,
    "pgbench_accounts",
    (
        Column("aid", _INT4, is_key=True),
        Column("bid", _INT4),
        Column("abalance", _INT4),
        Column("filler", _BPCHAR, 88),
    ),
)
_TELLERS_TABLE = Table(
    16402,
    "pgbench_tellers",
    (
        Column("tid", _INT4, is_key=True),
        Column("bid", _INT4),
        Column("tbalance", _INT4),
        Column("filler", _BPCHAR, 88),
    ),
)
_BRANCHES = Table(
    16403,
    "pgbench_branches",
    (Column("bid", _INT4, is_key=True), Column("bbalance", _INT4), Column("filler", _BPCHAR, 92)),
)
_HISTORY = Table(
    16404,
    "pgbench_history",
    (
        Column("tid", _INT4),
        Column("bid", _INT4),
        Column("aid", _INT4),
        Column("delta", _INT4),
        Column("mtime", _TIMESTAMP),
        Column("filler", _BPCHAR, 26),
    ),
)
_TABLES = (_ACCOUNTS, _TELLERS_TABLE, _BRANCHES, _HISTORY)


def pgbench(
    transactions: int, accounts: int, files: int, framing: Framing = Framing.RECVLOGICAL, name: str = "pgbench"
) -> Corpus:
    """Six messages per transaction. The first night creates the tables and has a fiftieth of the transactions."""
    parameters = {"transactions": transactions, "accounts": accounts, "files": files, "framing": framing.value}

    def generate(first: Path, second: Path, expected: Path) -> tuple[Landed, list[TableFiles]]:
        warm = max(transactions // 50, 1)
        run = _Run.drawn(warm + transactions, accounts)
        blocks = [_initial_rows(run), *(_block(run, *part) for part in _parts(0, warm))]
        land(first, blocks, framing, initial_cuts(accounts))
        messages = 6 * transactions + len(_TABLES)
        landed = land(
            second,
            (_block(run, *part) for part in _parts(warm, warm + transactions)),
            framing,
            even_cuts(messages, files),
        )
        return landed, _expected(run, warm, expected)

    return corpus(name, parameters, generate)


@dataclass(frozen=True, slots=True)
class _Run:
    """Every transaction's columns, and the balances after it. before: the number of earlier transactions."""

    accounts: int
    branches: int
    aid: Ints
    tid: Ints
    bid: Ints
    delta: Ints
    abalance: Ints
    tbalance: Ints
    bbalance: Ints
    time: Ints
    before: int = 0

    @classmethod
    def drawn(cls, transactions: int, accounts: int) -> _Run:
        rng = np.random.default_rng(20260601)
        branches = _branches(accounts)
        aid = rng.integers(1, accounts + 1, transactions)
        tid = rng.integers(1, branches * _TELLERS + 1, transactions)
        bid = rng.integers(1, branches + 1, transactions)
        delta = rng.integers(-5000, 5001, transactions)
        time = BEGUN + np.cumsum(rng.integers(1, 2000, transactions))
        abalance, tbalance, bbalance = (_running_sum(key, delta) for key in (aid, tid, bid))
        return cls(accounts, branches, aid, tid, bid, delta, abalance, tbalance, bbalance, time)

    @property
    def lsn(self) -> Ints:
        """The commit LSNs; the step before the first is the commit of the initial rows."""
        return _LSN + _LSN_STEP * (self.before + np.arange(1, len(self.aid) + 1))

    @property
    def xid(self) -> Ints:
        return _XID + self.before + np.arange(1, len(self.aid) + 1)

    def bid_of_account(self, aid: Ints) -> Ints:
        return np.minimum((aid - 1) // _PER_BRANCH + 1, self.branches)

    def bid_of_teller(self, tid: Ints) -> Ints:
        return (tid - 1) // _TELLERS + 1


def long_pgbench(folder: Path, transactions: int, accounts: int, files: int) -> Landed:
    """Writes a night of any size to `folder`/second, and the initial rows to `folder`/first, in constant memory.

    There are no expected tables. pgbench's own invariant holds instead: the balances of the accounts, of the tellers
    and of the branches, and the deltas of the history, have the same sum.
    """
    land(folder / "first", [_initial_rows(_Run.drawn(0, accounts))], Framing.RECVLOGICAL)
    messages = 6 * transactions + len(_TABLES)
    blocks = (_block(run, 0, len(run.aid), run.before == 0) for run in _following_runs(transactions, accounts))
    return land(folder / "second", blocks, Framing.RECVLOGICAL, even_cuts(messages, files))


def _following_runs(transactions: int, accounts: int) -> Iterator[_Run]:
    """Runs of some transactions; each begins with the balances after the one before."""
    rng = np.random.default_rng(20260602)
    branches, time = _branches(accounts), BEGUN
    totals = [np.zeros(size + 1, np.int64) for size in (accounts, branches * _TELLERS, branches)]
    for at in range(0, transactions, _BLOCK):
        size = min(_BLOCK, transactions - at)
        keys = [rng.integers(1, len(total), size) for total in totals]
        delta = rng.integers(-5000, 5001, size)
        times = time + np.cumsum(rng.integers(1, 2000, size))
        balances = [total[key] + _running_sum(key, delta) for total, key in zip(totals, keys, strict=True)]
        (aid, tid, bid), (abalance, tbalance, bbalance) = keys, balances
        yield _Run(accounts, branches, aid, tid, bid, delta, abalance, tbalance, bbalance, times, at)
        for total, key in zip(totals, keys, strict=True):
            np.add.at(total, key, delta)
        time = int(times[-1])


def _branches(accounts: int) -> int:
    return max(accounts // _PER_BRANCH, 1)


def _running_sum(key: Ints, delta: Ints) -> Ints:
    """The balance of each transaction's key after the transaction."""
    order = np.argsort(key, kind="stable")
    sums = np.cumsum(delta[order])
    begins_key = np.r_[True, np.diff(key[order]) != 0]
    before = np.where(begins_key, sums - delta[order], 0)
    starts = np.maximum.accumulate(np.where(begins_key, np.arange(len(key)), 0))
    balance = np.empty_like(sums)
    balance[order] = sums - before[starts]
    return balance


def _parts(begin: int, end: int) -> Iterator[tuple[int, int, bool]]:
    for at in range(begin, end, _BLOCK):
        yield at, min(at + _BLOCK, end), at == begin


def _text(values: Ints) -> pa.Array:
    return printed(pa.array(values, pa.int64()))


def _accounts(run: _Run, aid: Ints, balance: Ints) -> list[pa.Array | None]:
    filler = pa.repeat(pa.scalar(_FILLER), len(aid))
    return [_text(aid), _text(run.bid_of_account(aid)), _text(balance), filler]


def _block(run: _Run, begin: int, end: int, connects: bool) -> Block:
    """Transactions [begin, end). connects: the first has the Relation messages of a new connection."""
    part, size = slice(begin, end), end - begin
    aid, tid, bid, lsn = run.aid[part], run.tid[part], run.bid[part], run.lsn[part]
    mtime = printed(wall_clock(run.time[part]))
    history = [_text(tid), _text(bid), _text(aid), _text(run.delta[part]), mtime, None]
    kinds = [
        begins(lsn, run.time[part], run.xid[part]),
        updates(_ACCOUNTS, _accounts(run, aid, run.abalance[part]), size),
        updates(_TELLERS_TABLE, [_text(tid), _text(run.bid_of_teller(tid)), _text(run.tbalance[part]), None], size),
        updates(_BRANCHES, [_text(bid), _text(run.bbalance[part]), None], size),
        inserts(_HISTORY, history, size),
        commits(lsn, run.time[part]),
    ]
    order = (np.arange(6) * size + np.arange(size)[:, None]).ravel()
    lsns = (lsn[:, None] - _LSN_STEP + 64 + 128 * np.arange(6)).ravel()
    if connects:
        kinds.append(pa.array([relation(table) for table in _TABLES], pa.binary()))
        order = np.r_[order[:1], 6 * size + np.arange(len(_TABLES)), order[1:]]
        lsns = np.r_[lsns[:1], np.repeat(lsns[:1], len(_TABLES)), lsns[1:]]
    return Block(interleaved(kinds, order), lsns)


def _initial_rows(run: _Run) -> Block:
    """The rows of `pgbench -i`, in one transaction."""
    aid = np.arange(1, run.accounts + 1)
    tid = np.arange(1, run.branches * _TELLERS + 1)
    bid = np.arange(1, run.branches + 1)
    lsn, time, xid = (np.array([value]) for value in (_LSN, BEGUN, _XID))
    messages = pa.concat_arrays(
        [
            begins(lsn, time, xid),
            pa.array([relation(table) for table in _TABLES], pa.binary()),
            inserts(_BRANCHES, [_text(bid), _text(0 * bid), None], len(bid)),
            inserts(_TELLERS_TABLE, [_text(tid), _text(run.bid_of_teller(tid)), _text(0 * tid), None], len(tid)),
            inserts(_ACCOUNTS, _accounts(run, aid, 0 * aid), len(aid)),
            commits(lsn, time),
        ]
    )
    return Block(messages, np.full(len(messages), _LSN - 64))


def _expected(run: _Run, warm: int, folder: Path) -> list[TableFiles]:
    aid = np.arange(1, run.accounts + 1)
    tid = np.arange(1, run.branches * _TELLERS + 1)
    bid = np.arange(1, run.branches + 1)
    tables = []
    for table, key, transaction_keys, balances, others in (
        (_ACCOUNTS, aid, run.aid, run.abalance, {"bid": run.bid_of_account(aid)}),
        (_TELLERS_TABLE, tid, run.tid, run.tbalance, {"bid": run.bid_of_teller(tid)}),
        (_BRANCHES, bid, run.bid, run.bbalance, {}),
    ):
        last = _last_transactions(key, transaction_keys)
        touched = last >= 0
        values = {table.columns[0].name: key, **others}
        values[table.columns[-2].name] = np.where(touched, balances[last], 0)
        filler = pa.repeat(pa.scalar(_FILLER), len(key)) if table is _ACCOUNTS else pa.nulls(len(key), pa.string())
        columns = {name: pa.array(value, pa.int32()) for name, value in values.items()}
        metadata = stamps(*(np.where(touched, column[last], initial) for column, initial in _initial_stamps(run)))
        final = pa.table({**columns, "filler": filler, **metadata})
        tables.append(write_expected(folder, "public", table.name, table.key, final, last >= warm))
    columns = {name: pa.array(getattr(run, name), pa.int32()) for name in ("tid", "bid", "aid", "delta")}
    columns |= {"mtime": wall_clock(run.time), "filler": pa.nulls(len(run.aid), pa.string())}
    final = pa.table({**columns, **stamps(run.lsn, run.time, run.xid)})
    in_net = np.arange(len(run.aid)) >= warm
    tables.append(write_expected(folder, "public", _HISTORY.name, (), final, in_net, inserts_only=True))
    return tables


def _initial_stamps(run: _Run) -> list[tuple[Ints, int]]:
    return [(run.lsn, _LSN), (run.time, BEGUN), (run.xid, _XID)]


def _last_transactions(keys: Ints, transaction_keys: npt.NDArray[np.int64]) -> Ints:
    """The number of the last transaction that wrote each key (1, 2, …), or -1."""
    last = np.full(len(keys), -1)
    np.maximum.at(last, transaction_keys - 1, np.arange(len(transaction_keys)))
    return last
