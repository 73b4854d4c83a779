"""The interface of environments, their specs, curricula, and encodings of spaces.

Nothing here makes or steps an environment; that belongs into the packages beside this one.
"""
