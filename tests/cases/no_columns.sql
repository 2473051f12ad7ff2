-- right: public.z public.o
-- tables that have no columns, or lose their last one, or get their first one
create table z(); alter table z replica identity full; create table o(id int primary key);
insert into z default values; insert into z default values; insert into o values (1),(2);
-- night
insert into z default values; begin; insert into z default values; delete from z where ctid=(select min(ctid) from z); commit;
alter table o drop id; insert into o default values;
-- night
delete from z where ctid=(select min(ctid) from z); alter table z add v int; insert into z values (1); delete from z where v is null; alter table o add w text; insert into o values ('a');
