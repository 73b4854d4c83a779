"""A backend that spreads environments over several processes, and replaces a process that dies."""
