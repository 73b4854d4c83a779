"""Commands to running studies, checked against the study's configuration.

The rows of commands belong in `storage.commands`; the code that carries out commands, in `engine` and `workers`.
"""
