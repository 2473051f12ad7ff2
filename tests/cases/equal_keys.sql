-- Keys that PostgreSQL calls equal although their spellings differ: a key gets another spelling, by an UPDATE or anew
-- right: public.n public.c public.f public.a public.i public.g
-- rule: {match: public.g, key: [k]}
create table n(k numeric primary key, v text); insert into n values (1.0,'a'),(2,'b'),(3.10,'c'),('NaN','d');
create table c(k char(4) primary key, v text); insert into c values ('a','a'),('b  ','b');
create table f(k float8 primary key, v text); insert into f values (0,'a'),('-Infinity','b'),('NaN','c');
create table a(k float8[] primary key, v text); insert into a values ('{0,NaN}','a'),('{1}','b');
create table i(k interval primary key, v text); insert into i values ('1 mon','a'),('1 day','b'),('1 day 00:00:01','c');
create table g(k numeric unique, v text); alter table g replica identity full; insert into g values (1.0,'a'),(2,'b');
-- night
update n set k = 1.00 where k = 1; update n set v = 'later' where k = 1; update n set v = 'B' where k = 2.00;
insert into n values (2.000,'upsert') on conflict (k) do update set v = excluded.v;
begin; delete from n where k = 3.1; insert into n values (3.100,'again'); commit; update n set v = 'D' where k = 'NaN';
update c set k = 'a ', v = 'A' where k = 'a   '; update c set v = 'B' where k = 'b';
update f set k = '-0', v = 'A' where k = 0; update f set v = v || '2' where k = 0; update f set v = 'C' where k = 'NaN';
update a set k = '{-0,NaN}', v = 'A' where k = '{0,NaN}'; update a set v = v || '2' where k = '{0,NaN}';
update i set k = '30 days' where k = '1 mon'; update i set v = 'A' where k = '1 mon';
begin; delete from i where k = '1 day'; insert into i values ('24:00:00','again'); commit;
update g set k = 1.00 where k = 1; update g set v = 'later' where k = 1;
begin; delete from g where k = 2; insert into g values (2.000,'again'); commit;
-- night
update n set v = 'last'; update c set v = 'last'; update f set v = 'last'; update a set v = 'last';
update i set v = 'last'; update g set v = 'last'; delete from n where k = 2;
delete from f where k = 0; delete from i where k = '1 mon';
delete from a where k = '{0,NaN}'; delete from g where k = 1;
