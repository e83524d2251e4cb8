"""Optional integrations: one module each, imported by nothing else in the package.

Each needs a library of its own and says with which extra to install it where that is missing.
"""
