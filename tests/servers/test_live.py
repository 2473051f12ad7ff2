"""From a real server with a workload to Delta tables with the same rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.jobs import Job
from tests.support.servers.postgres import Server
from tests.support.truth import assert_equals_truth

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

TABLES = ["public.account", "public.part", "public.event", "public.full_row", 'public.Odd "name']
SETUP = """
create table account (id int primary key, owner text, balance numeric(12,2), note text, since date, seen timestamptz);
create table part (a int, b text, doc text, pic text, primary key (a, b));
alter table part alter doc set storage external, alter pic set storage external;
create table event (at timestamp, kind text, amount float8);
alter table event replica identity full;
create table full_row (id int, big text, flag bool);
alter table full_row alter big set storage external, replica identity full;
create table "Odd ""name" (id uuid not null, "a.b" text, data bytea);
create unique index odd_id on "Odd ""name" (id);
alter table "Odd ""name" replica identity using index odd_id;
create publication p for all tables;
create function big(n int) returns text language sql volatile
  as $$ select string_agg(md5(random()::text), '') from generate_series(1, 100 + n) $$;
"""
FIRST = """
insert into account select i, 'owner ' || i, i * 1.25, null, date '2024-01-01' + i, '2024-01-01 12:00+00'
  from generate_series(1, 40) i;
insert into account values (100, null, -0.01, '', 'infinity', '-infinity');
insert into part select i, 'b', big(i), big(i) from generate_series(1, 12) i;
insert into event select timestamp '2024-01-01' + (i % 3) * interval '1 h', 'k', (i % 2) * '-0'::float8
  from generate_series(1, 30) i;
insert into full_row select i, big(i), i % 2 = 0 from generate_series(1, 6) i;
insert into "Odd ""name" select md5(i::text)::uuid, 'v' || i, decode(md5(i::text), 'hex') from generate_series(1, 5) i;
begin; -- streamed, with a part rolled back
insert into account select i, 'kept', i, repeat('x', 50), null, null from generate_series(1000, 1500) i;
savepoint s;
insert into account select i, 'not kept', i, repeat('x', 50), null, null from generate_series(2000, 2500) i;
update account set owner = 'not kept';
rollback to s;
update account set owner = 'updated' where id < 20;
commit;
begin; -- ends after the first night
update account set balance = balance + 1 where id between 20 and 30;
update part set a = a + 100 where a = 1;
insert into event values (null, 'prepared', 'NaN');
prepare transaction 'later';
update part set a = a + 50, doc = 'short' where a = 2;
update part set b = 'moved' where a = 3;
begin; -- a swap through a third key, of values that aren't sent
update part set a = 99 where a = 4;
update part set a = 4 where a = 5;
update part set a = 5 where a = 99;
commit;
"""
SECOND = """
commit prepared 'later';
begin;
insert into account select i, 'never', i, repeat('y', 50), null, null from generate_series(5000, 5500) i;
rollback;
update part set a = a + 1000 where a > 4;
update part set pic = null where a = 52;
update part set b = 'again' where b = 'moved';
delete from account where id % 7 = 0;
insert into account values (7, 'back', 0, null, null, now());
delete from event where ctid in (select ctid from event where kind = 'k' limit 9);
update event set kind = 'changed' where ctid in (select ctid from event where amount = 0 limit 5);
update full_row set flag = not flag;
delete from full_row where id = 1;
truncate "Odd ""name", full_row;
insert into full_row values (7, big(7), null), (7, 'same', true), (7, 'same', true);
insert into "Odd ""name" values (md5('n')::uuid, null, '');
update "Odd ""name" set id = md5('m')::uuid, "a.b" = 'moved';
"""


@pytest.mark.soak
def test_two_nights_of_a_live_server(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    job = Job(spark, tmp_path, landing)
    with Server(18) as server:
        server.psql(SETUP)
        server.create_slot("slot", two_phase=True)
        for night, work in enumerate([FIRST, SECOND]):
            server.psql(work)
            file = landing / f"{night}.bin"
            server.recvlogical("slot", file, publications=["p"], proto_version=4, streaming="parallel")
            summary = job.run()
            assert summary.exit_code == 0
            assert night or {"S", "E", "A"} <= summary.messages.keys(), "something was streamed"
            assert summary.open_transactions == 1 - night, "the prepared one"
            for table in TABLES:
                truth = tmp_path / "truth.csv"
                server.copy_csv(table, truth)
                assert_equals_truth(job.rows(*table.split(".", 1)), truth)
