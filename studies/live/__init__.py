"""Studies while they train: what happens now, and a server that shows it.

`views` reads only what changed since the last look, `serving` shows it and the report to browsers. Nothing here writes
to a storage; what a terminal shows is in `cli.output`.
"""
