"""Commands that answer questions about finished studies.

The modules of commands that read results and train nothing belong here; what they say is made in `studies.analysis`.
"""
