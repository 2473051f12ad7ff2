-- catalog
-- a generated column that is not sent, and goes
create table t(id int primary key, a int, g int generated always as (a*2) stored); insert into t(id,a) values (1,1),(2,2);
-- night
alter table t add b int default 3; alter table t drop a cascade; insert into t(id,b) values (3,4);
