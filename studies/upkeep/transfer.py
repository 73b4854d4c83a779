"""A study as one file, and back: rows as JSON lines, states as blobs named by their sha256, nothing that runs.

    export_study(store, "cartpole", Path("cartpole.rekindle"))
    import_study(other, Path("cartpole.rekindle"))

Equal content is equal bytes, on any database. A file is read and checked whole before anything of it is stored; the
same file again changes nothing; a study that is there with other content is refused.
"""

from __future__ import annotations

from .archive import BadArchive
from .archive_rows import Transferred
from .exporting import export_study
from .importing import import_study

__all__ = ["BadArchive", "Transferred", "export_study", "import_study"]
