"""Copies of curves for other tools: TensorBoard, W&B, MLflow and tables.

Whoever copies reads rows, and nothing else: it runs beside the training or afterwards, in a process of its own, and
what happens to it happens to no trial. A tool's own files say how far they are, so each epoch of a trial is written
once and in order, whoever was killed. Trials' rows, `storage`, and the copy for Optuna, `engine`, do not belong here.
"""
