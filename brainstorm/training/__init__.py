"""Training: the trainer's loop, steppers (optimisers), schedules and logs."""

from __future__ import annotations

from brainstorm.training.accumulation import GradientAccumulation
from brainstorm.training.adaptive_steppers import (
    AdadeltaStepper,
    AdagradStepper,
    AdamStepper,
    AdamWStepper,
    AmsGradStepper,
    CenteredRMSPropStepper,
    RMSPropStepper,
)
from brainstorm.training.base_stepper import TrainingStepper
from brainstorm.training.learning_rates import LearningRateSearch, find_learning_rate
from brainstorm.training.logs import Logs
from brainstorm.training.loss_scaling import LossScaling
from brainstorm.training.parameter_groups import ParameterGroup
from brainstorm.training.schedules import (
    Cosine,
    CosineRestarts,
    DecreaseAfterEpoch,
    Exponential,
    Linear,
    MultiStep,
    OneCycle,
    ReduceOnPlateau,
    Schedule,
    Warmup,
)
from brainstorm.training.steppers import (
    ForwardStepper,
    MomentumStepper,
    NesterovStepper,
    SgdStepper,
)
from brainstorm.training.trainer import Trainer

__all__ = [
    "AdadeltaStepper",
    "AdagradStepper",
    "AdamStepper",
    "AdamWStepper",
    "AmsGradStepper",
    "CenteredRMSPropStepper",
    "Cosine",
    "CosineRestarts",
    "DecreaseAfterEpoch",
    "Exponential",
    "ForwardStepper",
    "GradientAccumulation",
    "LearningRateSearch",
    "Linear",
    "Logs",
    "LossScaling",
    "MomentumStepper",
    "MultiStep",
    "NesterovStepper",
    "OneCycle",
    "ParameterGroup",
    "RMSPropStepper",
    "ReduceOnPlateau",
    "Schedule",
    "SgdStepper",
    "Trainer",
    "TrainingStepper",
    "Warmup",
    "find_learning_rate",
]
