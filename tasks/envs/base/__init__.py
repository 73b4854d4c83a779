"""The interface of environments, their specs, curricula, errors, and encodings of spaces.

Nothing here creates or steps an environment; the neighboring packages do that.
"""
