"""The database: transactions, tables, column types, retries, clock and guard.

Code that knows the tables but not their meaning belongs here; the meaning of rows belongs in `storage`.
"""
