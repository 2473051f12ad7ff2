-- catalog
-- via-root
-- rule: {match: "public.h", mode: history}
-- rule: {match: "public.s", mode: soft_delete}
-- right: public.l public.n public.d public.m public.z public.t public.h public.s public.g
-- rows leave with their partition: lists and ranges, nested, dropped, and rows that came later
create table l(id int, p text, v text, primary key(id,p)) partition by list(p); create table l1 partition of l for values in ('a', 'it''s', E'back\\slash'); create table l2 partition of l for values in ('b'); create table ld partition of l default;
insert into l values (1,'a','x'),(2,'it''s','x'),(3,E'back\\slash','x'),(4,'b','x'),(5,'c','x');
create table n(id int, p int) partition by list(p); alter table n replica identity full; create table n1 partition of n for values in (1, null); create table n2 partition of n for values in (-2); alter table n1 replica identity full; alter table n2 replica identity full;
insert into n values (1,1),(2,null),(2,null),(3,-2);
create table d(id int, at date, v text, primary key(id,at)) partition by range(at); create table d0 partition of d for values from (minvalue) to ('2024-01-01'); create table d1 partition of d for values from ('2024-01-01') to ('2024-02-01'); create table d2 partition of d for values from ('2024-02-01') to (maxvalue);
insert into d values (1,'2023-12-31','x'),(2,'2024-01-01','x'),(3,'2024-01-31','x'),(4,'2024-02-01','x'),(5,'-infinity','x'),(6,'infinity','x');
create table m(id int, a int, b numeric(8,2), primary key(id,a,b)) partition by range(a,b); create table m1 partition of m for values from (1, minvalue) to (1, 1.5); create table m2 partition of m for values from (1, 1.5) to (2, -2.5); create table m3 partition of m for values from (2, -2.5) to (maxvalue, maxvalue);
insert into m values (1,1,-7),(2,1,1.49),(3,1,1.5),(4,2,-2.51),(5,2,-2.5),(6,3,0);
create table z(id int, at timestamptz, v text, primary key(id,at)) partition by range(at); create table z1 partition of z for values from ('2024-01-01 00:00:00+01') to ('2024-02-01 00:00:00+01'); create table z2 partition of z for values from ('2024-02-01 00:00:00+01') to ('2024-03-01 00:00:00+01');
insert into z values (1,'2024-01-31 22:59:59.999999+00','x'),(2,'2024-01-31 23:00:00+00','x');
create table t(id int, at timestamp, p int, primary key(id,at,p)) partition by list(p); create table t1 partition of t for values in (1) partition by range(at); create table t2 partition of t for values in (2); create table t11 partition of t1 for values from ('2024-01-01') to ('2024-02-01 12:00'); create table t12 partition of t1 for values from ('2024-02-01 12:00') to ('2025-01-01');
insert into t values (1,'2024-02-01 11:59',1),(2,'2024-02-01 12:00',1),(3,'2024-02-01 11:59',2);
create table h(id int, p int, v text, primary key(id,p)) partition by list(p); create table h1 partition of h for values in (1); create table h2 partition of h for values in (2); insert into h values (1,1,'x'),(2,2,'x');
create table s(id int, p int, v text, primary key(id,p)) partition by list(p); create table s1 partition of s for values in (1); create table s2 partition of s for values in (2); insert into s values (1,1,'x'),(2,2,'x');
create table g(id int, p int, v text, primary key(id,p)) partition by list(p); create table g1 partition of g for values in (1); create table g2 partition of g for values in (2); insert into g values (1,1,'x'),(2,2,'x');
-- night
alter table l detach partition l1; insert into l values (7,'a','new');
alter table n detach partition n1; drop table d0; drop table d1; insert into d values (8,'2024-02-02','y');
begin; insert into m values (9,1,1.6); alter table m detach partition m2; create table m4 partition of m for values from (1, 1.5) to (2, -2.5); insert into m values (10,1,1.7); commit;
alter table z detach partition z1; alter table t detach partition t1; alter table h detach partition h1; drop table s1;
begin; alter table g detach partition g1; rollback;
begin; update g set v='y'; savepoint a; drop table g2; rollback to a; commit;
-- night
drop table t11; insert into t1 values (4,'2024-03-01',1); create table h3 partition of h for values in (1); insert into h values (1,1,'again'); insert into g values (3,2,'z');
-- night
drop table l1; insert into l values (11,'b','later'); alter table d rename at to day; drop table d2; update h set v='u';
