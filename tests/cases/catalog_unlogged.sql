-- catalog
-- rows that are written while a table is UNLOGGED, also a new one
create table t(id int primary key, v text); insert into t values (1,'a'); create unlogged table n(id int primary key, v text); insert into n values (1,'x');
-- night
alter table t set unlogged; insert into t select i,'bulk' from generate_series(2,5) i; alter table n set logged; insert into n values (2,'y');
-- night
alter table t set logged; insert into t values (6,'z'); update n set v='u';
