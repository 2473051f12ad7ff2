-- an old tuple that several stored rows may be: 1 was written before both columns were added, or before the second one
create table t(id int); alter table t replica identity full; insert into t values (1),(2);
-- night
alter table t add c int default 7; insert into t values (1); alter table t add d int default 9; update t set id=11 where c=7 and id=1;
delete from t where id=2;
