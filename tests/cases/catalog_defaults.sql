-- catalog
-- new columns with a DEFAULT of many types
create table t(id int primary key); insert into t values (1),(2);
create type mood as enum ('a','b'); create domain pos as int; create type pr as (n int, x text);
-- night
alter table t add a int[] default '{1,2}', add b mood[] default '{a,b}', add c pos default 5, add d pr default row(1,'x y'), add e timestamptz default now(), add f jsonb default '{"a":1}', add g numeric default 'NaN', add h text default E'q''"\\', add i bytea default '\x00ff', add j interval default '1 day', add k bool default true, add l varchar(3) default 'abc', add m float8 default 0.1, add n date default 'infinity', add o char(5) default 'x', add p uuid default '00000000-0000-0000-0000-000000000001', add q int4range default '[1,5)', add r point default '(1,2)', add s inet default '10.0.0.1', add u time default '10:00';
insert into t(id) values (3);
