"""A live PostgreSQL server, or files that it wrote: catalog queries, COPY, and pg_dump."""
