"""Export of learning curves to TensorBoard, W&B, MLflow and tables.

An exporter only reads rows. It runs in its own process, during training or afterwards, and its failures do not affect
any trial. The exported files themselves record how far the export is, so they hold every epoch of a trial once and in
order, even after the exporter was killed.

The trials' rows belong in `storage`, and the copy of a study for Optuna in `engine`.
"""
