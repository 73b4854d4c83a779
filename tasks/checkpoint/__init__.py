"""State as data: trees, their packed form, and which checkpoints stay.

Manifests, chunks of large tensors, policy files and the interface of a storage belong here. Databases, leases and files
of a store do not: they implement `storage.Storage` elsewhere.
"""
