-- catalog
-- tables and schemas that exchange names, with and without rows
create schema s2; create table t(id int primary key, v text); insert into t values (1,'a'); create table w(id int primary key, v text); insert into w values (1,'w');
-- night
begin; alter table t rename to t_old; create table t(id int primary key, v text, n int); insert into t values (5,'n',1); commit; alter table w set schema s2;
-- night
begin; alter table t rename to x; alter table t_old rename to t; alter table x rename to t_old; commit; alter schema s2 rename to s3;
-- night
update t set v='z'; drop table t_old; create table t_old(id int primary key); insert into t_old values (9);
