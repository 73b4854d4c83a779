"""The store: tasks, leases, checkpoints, studies and trials in one SQL database.

`sql` holds the database itself (tables, transactions, retries), `locks` the right to write a task; the modules here
read and write rows within a transaction, and `store.Store` offers them to the rest. JSON and bytes are stored; the
store knows neither algorithms nor schedulers.
"""
