create domain d62 as numeric(6,2); create domain d83 as numeric(8,3);
create table t(a d62 primary key, z int);
insert into t values (1.5,1),(2.25,2),(3,3);
-- night
alter table t alter a type d83; insert into t values (4,4); update t set z=9 where a=1.5; delete from t where a=3;
