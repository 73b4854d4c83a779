"""The database: URL and transactions, tables and column types, retries, clock, and a guard of SQLite files.

Anything that knows tables but not tasks belongs here; the meaning of the rows belongs to `storage`.
"""
