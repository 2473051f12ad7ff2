-- right: public.o public.p
-- ascii
create table o(id int primary key, v text); create table p(id int primary key, v text[]); create table b(id int primary key, v text);
insert into o values (1,'a'); insert into p values (1,'{a}'); insert into b values (1,'a');
-- night
insert into b values (2, 'caf' || chr(233)); insert into o values (2,'b'); insert into p values (2,'{b}');
do $$ begin
  execute 'create table "caf' || chr(233) || '"(id int primary key)'; execute 'insert into "caf' || chr(233) || '" values (1)';
  execute 'create table c(id int primary key, "caf' || chr(233) || '" int)'; execute 'insert into c values (1,1)';
  execute 'create type "t' || chr(233) || '" as enum (''x'')'; execute 'create table e(id int primary key, v "t' || chr(233) || '")';
  execute 'insert into e values (1,''x'')';
end $$;
-- night
insert into o values (3,'c'); insert into p values (3,'{c}'); insert into b values (3,'c');
