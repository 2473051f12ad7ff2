-- server: 18
-- catalog
-- generated
-- what the server computes for older rows of a column that is sent: only new tables are right
-- right: public.plain
create table t(id int primary key, a int); insert into t values (1,1),(2,2);
create table u(id int primary key, a int, g int generated always as (a*2) stored); insert into u values (1,1),(2,2);
create table w(id int primary key, a int, g int generated always as (a*2) stored); insert into w values (1,1),(2,2);
create table plain(id int primary key, a int); insert into plain values (1,1),(2,2);
create table d(id int primary key); insert into d values (1),(2);
-- night
alter table t add g int generated always as (a*2) stored;
alter table u alter g set expression as (a*3);
alter table w add x int default 4;
alter table plain add v int generated always as (a*2) virtual;
alter table d add b float8 default random();
-- night
insert into t(id,a) values (3,3); insert into u(id,a) values (3,3); insert into w(id,a) values (3,3);
insert into plain(id,a) values (3,3); alter table plain add b int default 5;
