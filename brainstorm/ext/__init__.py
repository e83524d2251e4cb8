"""Optional integrations: one module each, which the rest of the package does not import.

Each requires a library of its own; if that is missing, the error names the extra to install.
"""
