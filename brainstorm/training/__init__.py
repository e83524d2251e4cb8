"""Training: the trainer's loop, steppers (optimisers), schedules and logs."""

from __future__ import annotations

from brainstorm.training.adaptive_steppers import (
    AdadeltaStepper,
    AdagradStepper,
    AdamStepper,
    AdamWStepper,
    RMSPropStepper,
)
from brainstorm.training.logs import Logs
from brainstorm.training.loss_scaling import LossScaling
from brainstorm.training.schedules import (
    Cosine,
    DecreaseAfterEpoch,
    Exponential,
    Linear,
    MultiStep,
    Schedule,
    Warmup,
)
from brainstorm.training.steppers import (
    ForwardStepper,
    MomentumStepper,
    NesterovStepper,
    SgdStepper,
    TrainingStepper,
)
from brainstorm.training.trainer import Trainer

__all__ = [
    "AdadeltaStepper",
    "AdagradStepper",
    "AdamStepper",
    "AdamWStepper",
    "Cosine",
    "DecreaseAfterEpoch",
    "Exponential",
    "ForwardStepper",
    "Linear",
    "Logs",
    "LossScaling",
    "MomentumStepper",
    "MultiStep",
    "NesterovStepper",
    "RMSPropStepper",
    "Schedule",
    "SgdStepper",
    "Trainer",
    "TrainingStepper",
    "Warmup",
]
