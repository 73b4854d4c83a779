"""Commands of the command line, one module per command or small family.

Each module adds its options to the parser (`add_parser`) and runs what they ask for. How results look belongs to
`cli.output`; what a study does belongs to the packages below `cli`.
"""
