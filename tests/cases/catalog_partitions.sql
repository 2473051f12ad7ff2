-- catalog
-- a root's new columns, whose values only its partitions have
-- via-root
create table r(id int, p int, primary key(id,p)) partition by list(p); create table r1 partition of r for values in (1); create table r2 partition of r for values in (2); insert into r values (1,1),(2,2);
-- night
alter table r add c int default 7; insert into r values (3,1,8);
-- night
alter table r add d text default 'x'; alter table r drop c; create table r3 partition of r for values in (3); insert into r values (4,3,'y'); 
