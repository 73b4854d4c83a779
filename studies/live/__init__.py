"""Studies while they train: views, and a server that shows them.

`views` reads only what changed since the last look, `serving` shows it and the report to browsers. Nothing here writes
to a storage; what a terminal shows is in `cli.output`.
"""
