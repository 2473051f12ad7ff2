"""A live PostgreSQL server, or files that one wrote: JDBC, catalog queries, COPY and pg_dump."""
