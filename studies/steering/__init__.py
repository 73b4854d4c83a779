"""Commands about running studies, checked against their configurations.

Rows of commands belong to `storage.commands`; what workers obey, to `engine` and `workers`.
"""
