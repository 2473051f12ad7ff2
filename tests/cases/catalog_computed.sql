-- catalog
-- a generated column that is not sent changes nothing that is
-- right: public.t public.u public.v public.r public.parent public.child
create table t(id int primary key, a int); insert into t values (1,1),(2,2);
create table u(id int primary key, a int); insert into u values (1,1),(2,2); alter table u replica identity full;
create table v(id int primary key, a int, g int generated always as (a*2) stored); insert into v values (1,1),(2,2);
create table r(id int, a int, primary key(id)) partition by range (id);
create table r1 partition of r for values from (0) to (10); create table r2 partition of r default;
insert into r values (1,1),(20,2);
create table parent(id int primary key, a int); create table child(primary key(id)) inherits (parent);
insert into parent values (1,1); insert into child values (2,2);
-- night
alter table t add g int generated always as (a*2) stored;
alter table u add g int generated always as (a*2) stored; update u set a=10 where id=1; delete from u where id=2;
alter table v add h int generated always as (a*3) stored; alter table v add b int default 3;
alter table r add g int generated always as (a*2) stored;
alter table parent add g int generated always as (a*2) stored;
-- night
alter table t add b int default 7; alter table t rename a to c;
insert into u(id,a) values (3,3); alter table v drop g; insert into v(id,a) values (3,3);
update r set a=5 where id=1; insert into r(id,a) values (2,2);
update child set a=5; insert into parent(id,a) values (3,3);
