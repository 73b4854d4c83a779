"""Locks: leases with fencing tokens, their owners, and the planning lock.

The SQL of locks and the leases that a process holds belong here; what is written under a lease does not.
"""
