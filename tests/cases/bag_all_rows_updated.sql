-- right: public.t public.u public.c public.p public.q
-- columns with defaults, of which the server then sends all values: as an UPDATE of every row, in several transactions, by rows that equal each other; and composites that get or lose an attribute
create table t(id int); alter table t replica identity full;
create table u(id int, v text, n numeric); alter table u replica identity full;
create table c(id int); alter table c replica identity full;
insert into t values (1),(2),(3); insert into u values (1,'5',1.5),(2,'6',null),(3,null,2); insert into c values (1),(1),(2);
create type a as (n int, x text); create type d as (n int, x text, y int);
create table p(id int, v a, w a); alter table p replica identity full; create table q(id int, v d); alter table q replica identity full;
insert into p values (1,(1,'x, "y"'),(null,'')),(2,(2,null),null),(2,(2,null),null); insert into q values (1,(1,'x',1)),(1,(1,'x',2)),(3,(null,null,null));
-- night
alter type a add attribute z int; update p set id=id+10;
alter type d drop attribute n; update q set id=id+10;
alter table t add c int default 7, add d timestamptz default now();
update t set id=id;
alter table u alter v type int using v::int*100, alter n type text using 'n'||n;
update u set id=id+10;
-- night
insert into t values (4); update t set c=8 where id=1; delete from t where id=2;
delete from u where id=12; update u set v=0 where id=11;
begin; alter table c add d int default 7; delete from c where id=1; update c set d=d; commit;
