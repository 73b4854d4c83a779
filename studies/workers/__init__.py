"""Worker processes of a study, on one machine or a Ray cluster.

Which segments exist belongs to `engine`; who may train one belongs to `storage.locks`. Nothing here parses options.
"""

URL_VARIABLE = "REKINDLE_STORAGE"  # environment variable with the URL of the storage
