-- catalog
-- via-root
-- right: public.k
-- a partition that returns brings rows that are not sent again; bounds that say nothing: a hash, an expression, DEFAULT, an order of texts
create table r(id int, p int, v text, primary key(id,p)) partition by list(p); create table r1 partition of r for values in (1); create table r2 partition of r for values in (2);
insert into r values (1,1,'x'),(2,2,'x');
create table k(id int, p text, primary key(id,p)) partition by range(p); create table k1 partition of k for values from ('a') to ('n'); create table k2 partition of k for values from ('n') to ('zz'); insert into k values (1,'b'),(2,'x');
create table c(id int, p text collate "C", primary key(id,p)) partition by range(p); create table c1 partition of c for values from ('A') to ('a'); create table c2 partition of c for values from ('a') to ('zz'); insert into c values (1,'B'),(2,'x');
create table h(id int primary key, v text) partition by hash(id); create table h0 partition of h for values with (modulus 2, remainder 0); create table h1 partition of h for values with (modulus 2, remainder 1); insert into h select i, 'x' from generate_series(1,6) i;
create table e(id int, v text) partition by list((lower(v))); alter table e replica identity full; create table e1 partition of e for values in ('a'); create table e2 partition of e for values in ('b'); alter table e1 replica identity full; alter table e2 replica identity full; insert into e values (1,'A'),(2,'b');
create table f(id int, p int, primary key(id,p)) partition by list(p); create table f1 partition of f for values in (1); create table fd partition of f default; insert into f values (1,1),(2,2);
-- night
alter table r detach partition r1; update r set v='u';
-- night
alter table r attach partition r1 for values in (1); update r set v='w' where id=2; alter table c detach partition c1;
drop table h0; drop table e1; drop table fd; truncate k; alter table k detach partition k1; insert into k values (3,'y');
