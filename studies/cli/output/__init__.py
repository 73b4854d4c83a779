"""Output of the command line: tables and live progress.

Nothing here parses options or changes a database. Commands live in `cli.commands`.
"""
