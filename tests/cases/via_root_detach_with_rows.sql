-- a partition is detached, and then has rows of its own, which prove that the root no longer has its former ones
-- via-root
create table r(id int, k text, v text, primary key (id, k)) partition by list (k);
create table r_n partition of r for values in ('n'); create table r_m partition of r for values in ('m');
insert into r values (1,'n','a'),(2,'n','b'),(3,'m','c');
-- night
alter table r detach partition r_n;
update r_n set v='x' where id=1; insert into r_n values (4,'n','d'); insert into r values (5,'m','e');
