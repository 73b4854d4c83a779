"""Output of the command line: JSON for programs, tables and live progress for people.

Nothing here parses options or changes a database. Commands live in `cli.commands`.
"""
