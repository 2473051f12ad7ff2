-- catalog
-- other types, by a cast that is certain or not, and by USING
create table a(id int primary key, at timestamp); insert into a values (1,'2024-01-01 12:00'); 
create table b(id int primary key, n numeric); insert into b values (1,1.5),(2,2);
create table c(id int primary key, v varchar(5)); insert into c values (1,'abc');
create table d(id int primary key, v text); insert into d values (1,'abc'),(2,'12');
create table e(id int primary key, v int); insert into e values (1,5);
create table f(id int primary key, v char(5)); insert into f values (1,'ab');
-- night
set timezone='Europe/Berlin'; alter table a alter at type timestamptz; insert into a values (2,'2024-01-01 12:00+00');
alter table b alter n type int; insert into b values (3,3);
alter table c alter v type varchar(20); insert into c values (2,'abcdefgh');
alter table d alter v type varchar(2) using left(v,2); insert into d values (3,'x');
alter table e alter v type bool using v<>0; insert into e values (2,false);
alter table f alter v type text; insert into f values (2,'x');
