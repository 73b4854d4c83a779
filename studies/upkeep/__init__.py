"""Database maintenance: fsck, gc, deletion, shrinking, export and import.

Code that reads or changes a whole database while workers use it belongs here. It runs its own transactions on
`Store.database`. The meaning of individual rows belongs in `storage`.
"""
