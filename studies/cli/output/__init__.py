"""Output of the command line: tables and live progress.

Nothing here parses options or changes a database. Commands belong in `cli.commands`.
"""
