"""Options of studies and workers, each declared once.

From a declaration come the option of commands, the key of run files, the keyword of Python, and the entry of stored
configurations. Nothing here imports anything slow, since the command line reads it first. What an option does belongs
to those who read its value: `engine.tune_options`, `workers` and `cli.commands`.
"""
