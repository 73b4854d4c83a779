"""The database: transactions, tables, column types, retries, clock and guard.

Anything that knows tables but not tasks belongs here; the meaning of the rows belongs to `storage`.
"""
