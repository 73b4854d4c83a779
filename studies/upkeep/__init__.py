"""Database maintenance: fsck, gc, shrinking, export and import.

Code that reads or changes a whole database while workers use it belongs here. It runs its own transactions on
`Store.database`. The meaning of single rows belongs in `storage`.
"""
