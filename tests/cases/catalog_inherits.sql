-- catalog
-- children of a table that gets a column
create table p(id int primary key); create table c(x int) inherits (p); alter table c add primary key(id); insert into p values (1); insert into c values (2,2);
-- night
alter table p add v text default 'd'; insert into p values (3,'a'); insert into c values (4,4,'b');
