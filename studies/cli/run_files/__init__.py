"""Run files: the options of a command in TOML or YAML.

A file is read as the words of a command line, so that each option is declared once, in `cli.parsers`, and what is typed
beside the file wins. What a command does belongs to `cli.commands`.
"""
