"""What keeps a database in order: fsck, gc, export and import."""
