"""What is timed on a GPU: the training steps that are timed on CPUs too, and larger ones."""

from __future__ import annotations

from benchmarks.workloads import (
    WORKLOADS,
    Attention,
    BatchNorm,
    Convolution,
    Dense,
    Embed,
    Lstm,
    Part,
    Pool,
    Positions,
    Residual,
    Workload,
)

__all__ = ["GPU_WORKLOADS", "shrunk"]


def _stage(filters: int) -> tuple[Part, ...]:
    convolution = Convolution(filters, 3, 1, is_linear=True)
    block = Residual((BatchNorm(), convolution, BatchNorm(), convolution))
    return (convolution, block, block, block)


GPU_WORKLOADS = (
    *(workload for workload in WORKLOADS if not workload.predicts),
    Workload(
        "mlp_4096", "MLP 4096-4096-4096, B=1024", 1, 1024, (4096,), 4096, (Dense(4096),),
    ),
    Workload(
        "lstm_1024", "LSTM 512-1024 + FC 512, T=100, B=64", 100, 64, (512,), 512, (Lstm(1024),),
    ),
    # After He et al., arXiv:1603.05027: blocks of normalization, relu and convolution, twice.
    Workload(
        "resnet", "residual CNN 32x32x3, 16-32-64 filters, B=128", 1, 128, (32, 32, 3), 10,
        (*_stage(16), Pool(2, 2), *_stage(32), Pool(2, 2), *_stage(64), BatchNorm(), Pool(8, 8)),
    ),
)  # fmt: skip

#: Sizes of layers, heads, sequences and time steps in a shrunk workload.
_SIZE, _FILTERS, _HEADS, _SEQUENCES, _STEPS = 8, 4, 2, 2, 6


def shrunk(workload: Workload) -> Workload:
    """Return a workload of the same parts, with so little to do that anything can run it."""
    is_flat = len(workload.features) == 1
    return workload._replace(
        T=min(workload.T, _STEPS),
        B=_SEQUENCES,
        features=(min(workload.features[0], _SIZE),) if is_flat else workload.features,
        classes=_SIZE,
        hidden=tuple(map(_shrunk_part, workload.hidden)),
    )


def _shrunk_part(part: Part) -> Part:
    match part:
        case Residual(parts):
            return Residual(tuple(map(_shrunk_part, parts)))
        case Convolution():
            return part._replace(filters=_FILTERS)
        case Attention():
            return part._replace(heads=_HEADS)
        case Dense() | Lstm() | Embed() | Positions():
            return part._replace(size=_SIZE)
    return part
