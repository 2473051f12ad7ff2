-- catalog
-- a default in the command that rewrites the table, which removes it from the catalog
create table t(id int primary key, a numeric(10,2)); insert into t values (1,1.5);
-- night
alter table t add more int default 5, alter a type numeric(12,3); insert into t values (2);
