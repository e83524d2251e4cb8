"""A short version of `make test-long`."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.long.run import train


@pytest.mark.timeout(600)  # without a compiler, on a busy machine
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="looks into /proc")
def test_nothing_grows(tmp_path):
    # In a process of its own: in one that has run other tests, other memory comes and goes.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        samples = process.submit(train, tmp_path, 5000).result()
    assert [sample.updates for sample in samples] == list(range(0, 5001, 500))
    # Of short logs, which are lists still, there are six of each update.
    settled = samples[4:]
    assert settled[-1].resident - settled[0].resident < 2_500_000  # of which 1.5 MB are the logs
    assert len({(sample.files, sample.threads) for sample in settled}) == 1
