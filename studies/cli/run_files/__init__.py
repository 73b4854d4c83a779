"""Run files: the options of a command in TOML or YAML.

A file is translated into the words of a command line. Each option is thus declared only once, in `cli.parsers`, and
options that are typed beside the file win. What a command does belongs in `cli.commands`.
"""
