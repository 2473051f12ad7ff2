-- catalog
-- via-root
-- rule: {match: "public.h", mode: history}
-- right: public.t public.h public.u public.late
-- a root without a replica identity of its own: its key is a fact of the catalog, which its partitions' old tuples have
create table t(id int, region text, doc text, primary key(id,region)) partition by list(region); alter table t alter doc set storage external;
create table t_n partition of t for values in ('n'); create table t_s partition of t for values in ('s'); alter table t replica identity full;
create table h(id int, region text, v text, primary key(id,region)) partition by list(region); create table h_n partition of h for values in ('n'); alter table h replica identity full;
create table u(v text, region text not null, id int not null, unique(region,id)) partition by list(region); create table u_n partition of u for values in ('n'); alter table u_n replica identity using index u_n_region_id_key; alter table u replica identity full;
create table late(id int not null, region text not null, v text) partition by list(region); create table late_n partition of late for values in ('n'); alter table late replica identity full; alter table late_n replica identity full;
insert into t select i, r, string_agg(md5(j::text||r),'') from generate_series(1,3) i, unnest('{n,s}'::text[]) r, generate_series(1,200) j group by 1,2;
insert into h values (1,'n','a'),(2,'n','a'); insert into u values ('a','n',1),('a','n',2); insert into late values (1,'n','a'),(2,'n','b');
-- night
update t set id=id+10 where id=1; update t set region='s', id=9 where id=2 and region='n'; delete from t where id=3 and region='s'; update h set v='b' where id=1; delete from h where id=2; update u set v='b' where id=1; delete from u where id=2; update late set v='x' where id=1;
-- night
begin; update t set doc='short' where id=9; update t set id=10 where id=9; update t set id=9 where id=10; commit; alter table late add primary key(id,region); alter table late_n replica identity default; update late set v='y' where id=1; delete from late where id=2; alter table t rename id to nr; alter table t drop doc; update t set region=region;
