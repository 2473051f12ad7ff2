-- catalog
-- via-root
-- server: 18
-- rule: {match: "public.s", mode: history}
-- right: public.r public.s
-- partitions that are truncated by themselves, where a trigger tells
create table r(id int, p int, "at" date, primary key(id,p,"at")) partition by list(p); create table r1 partition of r for values in (1) partition by range("at"); create table "R 11" partition of r1 for values from ('2024-01-01') to ('2025-01-01'); create table r12 partition of r1 for values from ('2025-01-01') to ('2026-01-01'); create table r2 partition of r for values in (2);
create table s(id int, p int, primary key(id,p)) partition by list(p); create table s1 partition of s for values in (1); create table s2 partition of s for values in (2);
select pgoutput_etl.watch_truncate('r'), pgoutput_etl.watch_truncate('s');
insert into r values (1,1,'2024-05-01'),(2,1,'2025-05-01'),(3,2,'2024-05-01'); insert into s values (1,1),(2,2);
-- night
truncate "R 11"; begin; insert into r values (4,2,'2024-01-01'); truncate r2; insert into r values (5,2,'2024-01-01'); commit; begin; truncate r12; rollback; truncate s1;
-- night
truncate s; insert into s values (3,1); truncate r1; insert into r values (6,1,'2024-06-01');
-- night
select pgoutput_etl.watch_truncate('r', false); insert into r values (7,1,'2024-06-01'); truncate s1, s2;
