-- right: public.t public.u
-- rule: {match: "public.t", columns: {at: {converted_from: timestamp, time_zone: Europe/Berlin}}}
-- rule: {match: "public.u", key: [at], columns: {at: {converted_from: timestamptz, time_zone: America/New_York}}}
create table t(id int primary key, at timestamp, ats timestamp(0)); insert into t values (1,'2026-03-29 02:30',now()),(2,'2026-10-25 02:30',null),(3,'infinity',null),(4,null,null);
create table u(at timestamptz not null, v text); alter table u replica identity full; insert into u values ('2026-01-01 00:00+00','a'),('2026-07-01 00:00+00','b');
-- night
begin; set local timezone='Europe/Berlin'; alter table t alter at type timestamptz; commit; insert into t values (5,'2026-11-28 00:00+00',null); update t set ats=null where id=2;
begin; set local timezone='America/New_York'; alter table u alter at type timestamp; commit; update u set v='c' where v='a'; delete from u where v='b';
