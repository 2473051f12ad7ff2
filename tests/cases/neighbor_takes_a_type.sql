-- a column is dropped, and its neighbor renamed and given its type
create table t(id int primary key, a int, b text, z int); create table k(v text, a int primary key, b text, z int);
insert into t values (1,10,'20',0),(2,11,'21',0); insert into k values ('x',1,'11',0),('y',2,'12',0);
-- night
begin; alter table t drop a; alter table t rename b to c; alter table t alter c type int using c::int; commit; insert into t values (3,22,0);
begin; alter table k drop a; alter table k rename b to c; alter table k alter c type int using c::int; alter table k add primary key(c); commit; insert into k values ('z',13,0);
