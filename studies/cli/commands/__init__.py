"""Commands of the command line, one module per command or small family.

Options belong in `cli.parsers`, which names the function of each command, and the layout of results in `cli.output`.
What a study does belongs in the packages below `cli`.
"""
