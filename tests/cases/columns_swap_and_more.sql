-- two columns exchange their names, while the step also adds, drops, or retypes another one
create table a(id int primary key, x int, y int, z int); create table b(id int primary key, x int, y int, z int); create table c(id int primary key, x int, y int, z int);
insert into a values (1,10,20,30); insert into b values (1,10,20,30); insert into c values (1,10,20,30);
-- night
begin; alter table a rename x to t; alter table a rename y to x; alter table a rename t to y; alter table a add n text; commit; insert into a values (2,1,2,3,'n');
begin; alter table b rename x to t; alter table b rename y to x; alter table b rename t to y; alter table b drop z; commit; insert into b values (2,1,2);
begin; alter table c rename x to t; alter table c rename y to x; alter table c rename t to y; alter table c alter z type text; commit; insert into c values (2,1,2,'z');
