"""A shim: all metadata is in pyproject.toml."""

from setuptools import setup

setup()
