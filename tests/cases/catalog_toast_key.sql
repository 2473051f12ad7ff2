-- catalog
-- a key that gets a new column, with unsent large values
create table t(id int primary key, v text); alter table t alter v set storage external; insert into t values (1,repeat('x',5000)),(2,'b');
-- night
alter table t add k int default 0; alter table t drop constraint t_pkey; alter table t add primary key(id,k); update t set k=1 where id=1; insert into t values (1,'z',0);
