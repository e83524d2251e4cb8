"""Layers: for each a function that adds it to an architecture, and the class that computes it.

`Layer` is the base class for layers of your own; see `brainstorm.testing.check_layer`.
"""

from __future__ import annotations

from brainstorm.layers.base_layer import Layer
from brainstorm.layers.batch_normalization_layer import BatchNorm
from brainstorm.layers.convolution_layer_2d import Convolution2D
from brainstorm.layers.dropout_layer import Dropout
from brainstorm.layers.elementwise_layer import Elementwise
from brainstorm.layers.fully_connected_layer import FullyConnected
from brainstorm.layers.input_layer import Input
from brainstorm.layers.loss_layer import Loss
from brainstorm.layers.lstm_layer import Lstm
from brainstorm.layers.mask_layer import Mask
from brainstorm.layers.merge_layer import Merge
from brainstorm.layers.noop_layer import NoOp
from brainstorm.layers.pooling_layer_2d import Pooling2D
from brainstorm.layers.recurrent_layer import Recurrent
from brainstorm.layers.sigmoid_ce_layer import SigmoidCE
from brainstorm.layers.softmax_ce_layer import SoftmaxCE
from brainstorm.layers.squared_difference_layer import SquaredDifference
from brainstorm.layers.squared_error_layer import SquaredError

__all__ = [
    "BatchNorm",
    "Convolution2D",
    "Dropout",
    "Elementwise",
    "FullyConnected",
    "Input",
    "Layer",
    "Loss",
    "Lstm",
    "Mask",
    "Merge",
    "NoOp",
    "Pooling2D",
    "Recurrent",
    "SigmoidCE",
    "SoftmaxCE",
    "SquaredDifference",
    "SquaredError",
]
