"""Commands of the command line, one module each or one for a small family.

Each module adds its options to the parser (`add_parser`) and runs what they ask for. How results look belongs to
`cli.output`; what a study does belongs to the packages below `cli`.
"""
