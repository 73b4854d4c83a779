"""The self-test, which finds an exact way to restore an environment.

`attempts` repeats the test until its premises hold, `ways` judges by the episodes that environments play on a `bench`.
The ways themselves belong in `gym`.
"""
