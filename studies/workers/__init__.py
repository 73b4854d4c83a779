"""Workers: processes that train a study's segments, on this machine or on a Ray cluster, and their supervisor.

Which segments exist belongs to `engine`; who may train one belongs to `storage.locks`. Nothing here parses options.
"""

URL_VARIABLE = "REKINDLE_STORAGE"  # environment variable with the URL of the storage
