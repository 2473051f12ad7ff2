-- a domain's modifier is not sent: the server pads t, and rounds u and v
create domain d62 as numeric(6,2); create domain d83 as numeric(8,3); create domain t0 as timestamp(0);
create table t(id int primary key, a d62, z int); create table u(id int primary key, a d83, b numeric(8,3), z int); create table v(id int primary key, a timestamp, z int);
insert into t values (1,1.5),(2,-0.25); insert into u values (1,1.505,1.505),(2,2.5,2.5); insert into v values (1,'2024-01-01 00:00:00.6');
-- night
alter table t alter a type d83; alter table u alter a type d62, alter b type d62; alter table v alter a type t0;
insert into t values (3,7.125); insert into u values (3,7.12,7.12); insert into v values (2,'2024-01-01');
