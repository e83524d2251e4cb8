"""The model of many ranks, and the tables of docs/distributed.md."""

import re

import numpy as np
import pytest

from benchmarks.mpi import PAGE, model_rows, step_rows, sum_rows
from benchmarks.mpi_model import FABRICS, Fabric, allreduce, efficiency, fit, step

FABRIC = Fabric("test", alpha=1e-5, beta=1e-9, gamma=1e-10)


def test_the_shorter_algorithm_is_taken():
    assert allreduce(FABRIC, 8, 8) == pytest.approx(3 * (1e-5 + 1.1e-9 * 8))
    assert allreduce(FABRIC, 8, 1e8) == pytest.approx(6e-5 + 7 / 8 * 2.1e-9 * 1e8)


def test_a_step_is_the_sum_of_its_parts_and_slices_hide_two_thirds_of_it():
    summing = allreduce(FABRIC, 4, 4e6)
    weighting, exchange = 4e6 * 1e-10, 2e-5
    assert step(FABRIC, 4, 10**6, 0.003) == pytest.approx(0.003 + summing + weighting + exchange)
    hidden = step(FABRIC, 4, 10**6, 0.003, overlaps=True)
    assert hidden == pytest.approx(0.003 + summing - 0.002 + weighting + exchange)
    assert step(FABRIC, 4, 10**6, 1.0, overlaps=True) == pytest.approx(1 + weighting + exchange)


@pytest.mark.parametrize("fabric", FABRICS)
def test_efficiency_falls_with_the_ranks(fabric):
    shares = [efficiency(fabric, ranks, 648_010, 0.0033, False) for ranks in (1, 4, 64, 1024)]
    assert shares[0] == 1
    assert shares == sorted(shares, reverse=True)


def test_latency_and_time_per_byte_are_found_again():
    values = np.array([1000, 10_000, 1_000_000])
    latency, per_byte = fit(values, 3e-6 + 4 * values * 2e-10)
    assert latency == pytest.approx(3e-6)
    assert per_byte == pytest.approx(2e-10)


def test_tables():
    found = {
        2: {
            "sums": [
                {"values": n, "arrays": 6, "ours": t, "packed": 2 * t, "one by one": 3 * t}
                for n, t in ((1000, 2e-6), (1_000_000, 1e-3))
            ],
            "steps": [
                {"key": "mlp", "values": 1000, "step": 0.002, "sliced": 0.0025, "alone": 0.001}
            ],
        }
    }
    assert sum_rows(found)[1] == ["2", "1,000", "6", "2", "4", "6", "2.00"]
    network = "MLP 784-500-500-10, B=128"
    assert step_rows(found)[1][:4] == ["2", network, "1,000", "1.000"]
    assert step_rows(found)[1][5:] == ["2.000", "2.500", "50 %"]
    rows = model_rows(found[2]["steps"])
    assert rows[0][-1] == "1,024 ranks"
    assert [row[:2] for row in rows[1:]] == [[fabric.name, network] for fabric in FABRICS]
    assert all(re.fullmatch(r"\d+ to \d+", cell) for row in rows[1:] for cell in row[2:])


def test_the_page_has_the_tables():
    page = PAGE.read_text(encoding="utf-8")
    for name in ("sums", "steps", "model"):
        section = page.partition(f"<!-- begin {name} -->")[2].partition(f"<!-- end {name} -->")[0]
        assert section.count("\n| ") > 8
