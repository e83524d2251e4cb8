"""Hooks: everything that is done at intervals during training."""

from __future__ import annotations

from brainstorm.hooks.averaging import AverageWeights, WithAverages
from brainstorm.hooks.base import Hook
from brainstorm.hooks.checkpoints import SaveCheckpoint
from brainstorm.hooks.live_page import LivePage
from brainstorm.hooks.modifiers import InfoUpdater, ModifyStepperAttribute
from brainstorm.hooks.monitors import (
    MonitorLayerDeltas,
    MonitorLayerGradients,
    MonitorLayerInOuts,
    MonitorLayerParameters,
    MonitorLoss,
    MonitorScores,
)
from brainstorm.hooks.returning import ReturnToCheckpoint
from brainstorm.hooks.savers import SaveBestNetwork, SaveLogs, SaveNetwork
from brainstorm.hooks.stoppers import (
    EarlyStopper,
    StopAfterEpoch,
    StopAfterThresholdReached,
    StopOnNan,
    StopOnSigQuit,
)
from brainstorm.hooks.visualizers import BokehVisualizer, LogPlotter, ProgressBar

__all__ = [
    "AverageWeights",
    "BokehVisualizer",
    "EarlyStopper",
    "Hook",
    "InfoUpdater",
    "LivePage",
    "LogPlotter",
    "ModifyStepperAttribute",
    "MonitorLayerDeltas",
    "MonitorLayerGradients",
    "MonitorLayerInOuts",
    "MonitorLayerParameters",
    "MonitorLoss",
    "MonitorScores",
    "ProgressBar",
    "ReturnToCheckpoint",
    "SaveBestNetwork",
    "SaveCheckpoint",
    "SaveLogs",
    "SaveNetwork",
    "StopAfterEpoch",
    "StopAfterThresholdReached",
    "StopOnNan",
    "StopOnSigQuit",
    "WithAverages",
]
