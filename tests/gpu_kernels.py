"""Every kernel of ours, once: for NVIDIA's sanitizers, which slow kernels down a hundredfold.

    python -m tests.gpu_kernels [--smoke] [--precision NAME ...]

All operations of the handler, and tiny training steps of all kinds, as graphs and one by one, in
some or all precisions. With ``--smoke`` a few operations, and steps of one kind.
"""

import argparse

from benchmarks import gpu_ours
from benchmarks.gpu_workloads import GPU_WORKLOADS, shrunk
from benchmarks.workloads import Lstm
from brainstorm.handlers import PyCudaHandler
from brainstorm.testing import check_handler
from tests import cudashim

#: Units of a recurrent layer whose matrix is kept by clusters of blocks.
CLUSTERED_UNITS = 200


def main() -> None:
    """Run them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="a few of them")
    parser.add_argument(
        "--precision", nargs="+", choices=gpu_ours.PRECISIONS, default=gpu_ours.PRECISIONS
    )
    arguments = parser.parse_args()
    is_smoke = arguments.smoke
    missing = cudashim.available()
    if missing:
        raise SystemExit(missing)
    operations = ["add_tt", "dot_mm"] if is_smoke else None
    check_handler(PyCudaHandler(seed=1), operations, properties=["results equal the reference"])
    workloads = list(map(shrunk, GPU_WORKLOADS))
    lstm = next(workload for workload in workloads if workload.key == "lstm")
    workloads.append(lstm._replace(hidden=(Lstm(CLUSTERED_UNITS),)))
    for workload in workloads[: 1 if is_smoke else None]:
        for precision in arguments.precision:
            for timed in gpu_ours.contestants(workload, precision).values():
                timed.call()
    print("all kernels ran")


if __name__ == "__main__":
    main()
