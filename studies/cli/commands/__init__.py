"""Commands of the command line, one module per command or small family.

The options are in `cli.parsers`, which names the function of each command. How results look belongs to `cli.output`;
what a study does belongs to the packages below `cli`.
"""
