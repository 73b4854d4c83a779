"""Worker processes of a study, on one machine or a Ray cluster.

Which segments exist is decided in `engine`; who may train one is decided in `storage.locks`. Command-line options are
parsed in `cli`.
"""

URL_VARIABLE = "REKINDLE_STORAGE"  # environment variable with the URL of the storage
DEFAULT_URL = "sqlite:///rekindle.db"  # URL of the storage unless one is given
