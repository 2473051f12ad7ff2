-- catalog
-- binary
-- attributes that come and go, also inside of other types: u is rewritten
create domain price as numeric(10,2); create type custom as (i int, p price); create type outer_row as (c custom, t price[]);
create table t(id int primary key, c custom, l custom[]); insert into t values (1,row(1,2.5),array[row(1,2.5)::custom]);
create table u(id int primary key, o outer_row); insert into u values (1,row(row(1,2.5),'{1.5}'));
-- night
alter type custom add attribute q price[]; insert into t values (2,row(1,2,'{1}'),null); insert into u values (2,row(row(1,2,'{1}'),null));
-- night
alter type custom drop attribute p; insert into t values (3,row(1,'{2}'),null); update u set o=row(row(1,'{1}'),null);
