create domain d62 as numeric(6,2); create domain v5 as varchar(5);
create table t(id int primary key, a d62, b numeric(6,2), c v5, d varchar(5), z int);
insert into t values (1,1.5,1.5,'ab','ab',1),(2,-0.25,12.30,'abcde','',2),(3,null,null,null,null,3);
-- night
alter table t alter a type numeric(6,2), alter b type d62, alter c type varchar(5), alter d type v5; insert into t values (4,7.1,7.1,'x','y',4);
-- night
alter table t alter a type d62, alter b type numeric(6,2), alter c type v5, alter d type varchar(5); insert into t values (5,7.1,7.1,'x','y',4); update t set z=z+1;
