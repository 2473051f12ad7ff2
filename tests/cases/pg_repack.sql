-- right: public.t
-- as pg_repack does it: a copy of the table is made, and the two swap their files
create table t(id int primary key, v text); insert into t select i, 'a' from generate_series(1,20) i; delete from t where id % 2 = 0;
-- night
create schema repack; create table repack.table_1 as select * from t order by id desc; create unique index index_1 on repack.table_1(id); with swap(one, other) as (values ('t'::regclass, 'repack.table_1'::regclass), ('t_pkey', 'repack.index_1')), files as (select s.one as oid, c.relfilenode from swap s join pg_class c on c.oid = s.other union all select s.other, c.relfilenode from swap s join pg_class c on c.oid = s.one) update pg_class c set relfilenode = f.relfilenode from files f where f.oid = c.oid;
update t set v = 'b' where id = 3; insert into t values (30, 'c'); delete from t where id = 5; drop table repack.table_1;
-- night
update t set v = 'd' where id > 10;
