"""The interface of environments, and what every kind of them shares: specs, curricula, encodings of spaces.

Nothing here makes or steps an environment; that belongs into the packages beside this one.
"""
