-- catalog
-- rule: {match: "public.h", mode: history}
-- user types, nested in each other, that nobody declares
create schema app; create domain price as numeric(10,2); create domain posint as int check (value > 0); create domain many as posint; create domain ints as int[];
create domain padded as char(5); create domain moment as timestamp(0); create domain bytes as bytea;
create type _status as enum ('a','b'); create type app.vector as enum ('[1,2]','x'); create type custom as (i posint, p price, s _status, at moment);
create type outer_row as (c custom, l custom[], t text); create domain row_domain as outer_row; create domain status as _status;
create type heights as range (subtype = float8); create type prices as range (subtype = price); create type points as range (subtype = posint);
create table t(id posint primary key, a price, b price[], c posint[], d many[], e ints, f ints[], g padded, h padded[], i moment, j moment[], k bytes[], z int);
create table u(id int primary key, a _status, b _status[], c status, d status[], e app.vector, f app.vector[], g custom, h custom[], i outer_row, j row_domain, k row_domain[], z int);
create table v(id int primary key, a heights, b heights[], c prices, d points, e points[], z int);
create table h(id int primary key, a price, b posint[], c custom, d _status);
insert into t values (1,1.5,'{1.5,NULL,-0.25}','{1,2}','{3}','{1,2}','{"{1,2}","{3}"}','ab','{ab,c}','2024-01-01 00:00:00.6','{2024-01-01}','{"\\x00ff"}',1),(2,'NaN','{NaN}','{{1,2},{3,4}}',null,'{}','{}','','{}','infinity','{infinity}','{}',2);
insert into u values (1,'a','{a,NULL}','b','{a,b}','[1,2]','{"[1,2]",x}',row(1,2.5,'a','2024-01-01'),array[row(1,2.5,'a','2024-01-01')::custom,null],row(row(1,2.5,'b',null),array[row(7,8,'a','2024-01-01 01:02:03')::custom],'x,y'),row(null,null,''),array[row(row(1,2,'a',null),null,'q"')::row_domain],1);
insert into v values (1,'[1.5,2.5)','{"[1.5,2.5)",empty}','[1,2)','[1,2)','{"[1,2)"}',1),(2,'empty',null,'(,)','(,9)','{}',2);
insert into h values (1,1.5,'{1}',row(1,2.5,'a',null),'a'),(2,2.5,'{}',null,'b'); update h set a=7 where id=1; delete from h where id=2;
-- night
update t set a=a+1, z=3 where id=1; update u set z=2; update v set z=3; insert into h values (3,9.99,'{4}',row(2,0.01,'b','2024-06-01'),null);
insert into u (id,g,a,b) values (2,row(9,1,'b',null),'b','{b}');
-- night
alter table t add more price[] default '{1,2}', add status _status default 'a'; alter table h add more posint[] default '{5}'; alter table h alter a type numeric(12,2);
update u set z=4; insert into t(id,more) values (5,'{3}'); alter domain price rename to amount; alter type custom set schema app; update t set z=9; update u set z=5; delete from v where id=1;
