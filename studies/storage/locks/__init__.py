"""Locks: leases with fencing tokens, their owners, and the planning lock.

The SQL of the locks and the leases held by this process belong here; the data written under a lease belongs in
`storage`.
"""
