-- catalog
-- what only catalog Messages show: changes with no row after them
create type mood as enum ('red', 'blue'); create type pair as (n int, x text);
create table t(id int primary key, v text, w int); insert into t values (1,'a',1),(2,'b',2);
create table bag(id int, m mood, p pair); alter table bag replica identity full; insert into bag values (1,'red',(1,'x')),(1,'red',(1,'x')),(2,'blue',null);
create table k(m mood primary key, a mood[], v text); insert into k values ('red','{red,blue}','1'),('blue','{}','2');
create table load(id int primary key, v text); insert into load values (1,'old');
create table made_as as select 1 as id, 'red'::mood as m, row(1,'x')::pair as p; select 1 as id, 'red'::mood as m into made_into;
-- night
alter table t add c numeric(8,2) default 1.5, add d timestamptz default '2024-01-01 00:00:00+00'; alter table t drop v; alter table t rename w to x;
alter table bag add e int default 7; alter type mood rename value 'red' to 'crimson'; alter type pair add attribute y int;
create table load_new(like load including all); insert into load_new values (1,'new'),(2,'more'); begin; drop table load; alter table load_new rename to load; commit;
create table made(id int primary key, v text); insert into made values (1,'x');
-- night
insert into t values (3,3); update t set x=9 where id=1; delete from bag where id=1; insert into bag values (3,'crimson',(3,'z',1),8); delete from k where m='crimson'; update load set v='u' where id=2; delete from made;
begin; alter table t drop c; alter table t add c numeric(8,2) default 2.5; savepoint s; alter table t drop d, add d timestamptz default now(); rollback to s; alter table t rename x to w; commit;
