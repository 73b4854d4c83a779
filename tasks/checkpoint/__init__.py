"""State as data: trees, their packed form, and which checkpoints to keep.

Manifests, chunks of large tensors, policy files and the interface of a storage belong here. Databases, leases and a
store's files do not: they implement `storage.Storage` elsewhere.
"""
