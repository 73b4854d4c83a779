"""The store: tasks, leases, checkpoints, studies and trials in one SQL database.

`sql` holds the database itself (tables, transactions, retries), and `locks` the leases that allow writing a task. The
modules here read and write rows inside a transaction; `store.Store` makes them available to the other packages. The
store holds JSON and bytes and knows neither algorithms nor schedulers.
"""
