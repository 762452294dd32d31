-- oracle: duckdb
select a, count(distinct a) over (order by c) as n from t where c is not null;
with recursive r(n) as (select 1 as n union all select n + 1 from r where n < 1000) select count(*) as n, max(n) as m from r;
