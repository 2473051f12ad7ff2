-- rule: {match: "public.t", columns: {id: {renamed_from: id_big}}}
-- right: public.t
create table t(id int primary key, v text, w text); alter table t alter w set storage external; insert into t select i, 'a' || i, repeat('x' || i, 3000) from generate_series(1, 4) i; alter table t add id_big bigint; update t set id_big=id; alter table t alter id_big set not null;
-- night
begin; alter table t drop constraint t_pkey; alter table t drop column id; alter table t rename id_big to id; alter table t add primary key(id); commit; insert into t(v,id) values ('c',3000000000); update t set v='b2' where id=2; delete from t where id=3; update t set id=40 where id=4;
-- night
update t set v='b3' where id=40; delete from t where id=1; delete from t where id=3000000000;
