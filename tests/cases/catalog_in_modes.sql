-- catalog
-- rule: {match: "public.h", mode: history}
-- rule: {match: "public.s", mode: soft_delete}
-- rule: {match: "public.hb", mode: history}
-- changes of columns in tables that keep more than the newest rows
create type mood as enum ('red', 'blue');
create table h(id int primary key, m mood, v text); insert into h values (1,'red','a'),(2,'blue','b'); update h set v='c' where id=1; delete from h where id=2;
create table s(m mood primary key, v text); insert into s values ('red','a'),('blue','b'); delete from s where m='red';
create table hb(id int, m mood); alter table hb replica identity full; insert into hb values (1,'red'),(1,'red');
-- night
alter type mood rename value 'red' to 'crimson'; alter table h add c int default 7; alter table h drop v; alter table s add c int default 8; alter table hb add c int default 9;
-- night
insert into h values (3,'crimson',1); update h set c=8 where id=1; insert into s values ('crimson','z',1); delete from hb where id=1; insert into hb values (4,'blue',1);
