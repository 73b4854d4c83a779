"""Live views of running studies, and a server that shows them.

`views` reads only what changed since the last refresh; `serving` serves the views and the report to browsers. Nothing
here writes to a storage. Terminal output belongs in `cli.output`.
"""
