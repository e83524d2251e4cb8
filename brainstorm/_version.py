"""The version, in a module without imports so that files and metadata can read it."""

__version__ = "1.0.0.dev0"
