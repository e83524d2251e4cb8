"""A plugin of pytest that writes the outcome of each test to disk immediately.

    pytest -p tools.gpu_properties --gpu-results FILE ...

Tests that have passed according to the file do not run again. A process whose GPU has failed exits,
and xdist starts another one.
"""

import ctypes
import os
from pathlib import Path

import pytest

from tools.gpu_results import Results

#: Of cuda.h: no error; no driver, no context.
_USABLE = (0, 3, 201)
_failed = False


def pytest_addoption(parser):
    """Add the option."""
    parser.addoption("--gpu-results", type=Path, required=True, metavar="FILE")


def pytest_configure(config):
    """Read what is known; the process that gives out the tests tells the others."""
    if hasattr(config, "workerinput"):
        config.gpu_known = set(config.workerinput["gpu_known"])
    else:
        config.gpu_results = Results(config.getoption("--gpu-results"))
        config.gpu_known = set(config.gpu_results.lines)
        config.pluginmanager.register(_Recorder(config.gpu_results))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Tell a process what is known: all must have the same tests, whenever they start."""
    node.workerinput["gpu_known"] = sorted(node.config.gpu_known)


def pytest_collection_modifyitems(config, items):
    """Leave out what is known."""
    known = [item for item in items if item.nodeid in config.gpu_known]
    items[:] = [item for item in items if item.nodeid not in config.gpu_known]
    config.hook.pytest_deselected(items=known)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """End the process if a test that failed took the GPU with it."""
    if _failed and ctypes.CDLL("libcuda.so.1").cuCtxSynchronize() not in _USABLE:
        os._exit(1)


def pytest_runtest_logreport(report):
    """Remember that a test failed."""
    global _failed
    _failed = report.failed


class _Recorder:
    """Puts outcomes on disk, in the process that gives out the tests."""

    def __init__(self, results):
        self.results = results

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or not report.passed:
            error = str(report.longrepr)[-2000:] if report.failed else ""
            self.results.add(
                report.nodeid, outcome=report.outcome, seconds=report.duration, error=error
            )
