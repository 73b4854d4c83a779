"""The version of Rekindle."""

__version__ = "0.1.0.dev0"
