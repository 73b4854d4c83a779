"""Commands that answer questions about studies.

Commands that read results and train nothing belong here. The answers are computed in `studies.analysis` and
`studies.report`.
"""
