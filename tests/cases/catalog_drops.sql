-- catalog
-- columns that go with their type
create type m as enum('a','b'); create domain dd as text; create table t(id int primary key, v m, d dd, z int); insert into t values (1,'a','x',1); create view vw as select v from t;
-- night
drop type m cascade; drop domain dd cascade; 
-- night
alter table t add v int default 3; update t set z=2; 
