-- via-root
create table log(id int, at date, v text, primary key(id,at)); insert into log select i,'2024-01-01','v' from generate_series(1,5) i;
-- night
begin; alter table log rename to log_old; create table log(id int, at date, v text, primary key(id,at)) partition by range(at); alter table log attach partition log_old default; commit; insert into log values (100,'2024-03-01','new');
-- night
insert into log values (101,'2024-03-01','new');
