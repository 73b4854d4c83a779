"""Upkeep of a database: fsck, gc, shrinking, export and import.

What reads or changes a whole database, beside the workers that use it, belongs here. It works on `Store.database` in
transactions of its own; the meaning of single rows belongs to `storage`.
"""
