"""Layers: for each, a function that adds it to an architecture, and the class that computes it.

`Layer` is the base class for your own layers, `ExpressionLayer` for those that are a formula;
see `brainstorm.testing.check_layer`.
"""

from __future__ import annotations

from brainstorm.layers.accuracy_layer import Accuracy
from brainstorm.layers.add_layer import Add
from brainstorm.layers.argmax_layer import Argmax
from brainstorm.layers.base_layer import Layer
from brainstorm.layers.batch_normalization_layer import BatchNorm
from brainstorm.layers.bidirectional_layer import BidirectionalWrapper
from brainstorm.layers.binary_accuracy_layer import BinaryAccuracy
from brainstorm.layers.binomial_cross_entropy_layer import BinomialCrossEntropy
from brainstorm.layers.channel_pooling_layer import ChannelPooling
from brainstorm.layers.clockwork_layer import Clockwork
from brainstorm.layers.clockwork_lstm_layer import ClockworkLstm
from brainstorm.layers.convolution_layer_1d import Convolution1D
from brainstorm.layers.convolution_layer_2d import Convolution2D
from brainstorm.layers.convolution_layer_3d import Convolution3D
from brainstorm.layers.convolution_transpose_layer_2d import ConvolutionTranspose2D
from brainstorm.layers.crop_layer import Crop
from brainstorm.layers.ctc_layer import CTC
from brainstorm.layers.deltas_scaling_layer import DeltasScaling
from brainstorm.layers.depth_to_space_layer import DepthToSpace
from brainstorm.layers.dropout_layer import Dropout
from brainstorm.layers.elementwise_layer import Elementwise
from brainstorm.layers.embedding_layer import Embedding, LookupTable
from brainstorm.layers.expression_layer import Expression, ExpressionLayer
from brainstorm.layers.fully_connected_layer import FullyConnected
from brainstorm.layers.global_pooling_layer_2d import GlobalPooling2D
from brainstorm.layers.glu_layer import GLU, SwiGLU
from brainstorm.layers.group_norm_layer import GroupNorm
from brainstorm.layers.gru_layer import Gru
from brainstorm.layers.highway_layer import Highway
from brainstorm.layers.hinge_loss_layer import HingeLoss
from brainstorm.layers.huber_loss_layer import HuberLoss
from brainstorm.layers.input_layer import Input
from brainstorm.layers.l1_decay_layer import L1Decay
from brainstorm.layers.l2_decay_layer import L2Decay
from brainstorm.layers.layer_norm_layer import LayerNorm
from brainstorm.layers.learned_positional_encoding_layer import LearnedPositionalEncoding
from brainstorm.layers.local_response_normalization_layer import LocalResponseNormalization
from brainstorm.layers.loss_layer import Loss
from brainstorm.layers.lstm_layer import Lstm
from brainstorm.layers.mask_layer import Mask
from brainstorm.layers.merge_layer import Merge
from brainstorm.layers.multi_head_attention_layer import MultiHeadAttention
from brainstorm.layers.multi_head_self_attention_layer import MultiHeadSelfAttention
from brainstorm.layers.multiply_layer import Multiply
from brainstorm.layers.noop_layer import NoOp
from brainstorm.layers.padding_layer import Padding
from brainstorm.layers.pooling_layer_1d import Pooling1D
from brainstorm.layers.pooling_layer_2d import Pooling2D
from brainstorm.layers.pooling_layer_3d import Pooling3D
from brainstorm.layers.positional_encoding_layer import PositionalEncoding
from brainstorm.layers.power_layer import Power
from brainstorm.layers.prelu_layer import PReLU
from brainstorm.layers.recurrent_layer import Recurrent
from brainstorm.layers.repeat_over_time_layer import RepeatOverTime
from brainstorm.layers.reshape_layer import Reshape
from brainstorm.layers.reverse_layer import Reverse
from brainstorm.layers.rms_norm_layer import RMSNorm
from brainstorm.layers.sigmoid_ce_layer import SigmoidCE
from brainstorm.layers.slice_layer import Slice
from brainstorm.layers.softmax_ce_layer import SoftmaxCE
from brainstorm.layers.space_to_depth_layer import SpaceToDepth
from brainstorm.layers.split_layer import Split
from brainstorm.layers.squared_difference_layer import SquaredDifference
from brainstorm.layers.squared_error_layer import SquaredError
from brainstorm.layers.tied_fully_connected_layer import TiedFullyConnected
from brainstorm.layers.time_pooling_layer import TimePooling
from brainstorm.layers.upsampling_layer_2d import Upsampling2D

__all__ = [
    "CTC",
    "GLU",
    "Accuracy",
    "Add",
    "Argmax",
    "BatchNorm",
    "BidirectionalWrapper",
    "BinaryAccuracy",
    "BinomialCrossEntropy",
    "ChannelPooling",
    "Clockwork",
    "ClockworkLstm",
    "Convolution1D",
    "Convolution2D",
    "Convolution3D",
    "ConvolutionTranspose2D",
    "Crop",
    "DeltasScaling",
    "DepthToSpace",
    "Dropout",
    "Elementwise",
    "Embedding",
    "Expression",
    "ExpressionLayer",
    "FullyConnected",
    "GlobalPooling2D",
    "GroupNorm",
    "Gru",
    "Highway",
    "HingeLoss",
    "HuberLoss",
    "Input",
    "L1Decay",
    "L2Decay",
    "Layer",
    "LayerNorm",
    "LearnedPositionalEncoding",
    "LocalResponseNormalization",
    "LookupTable",
    "Loss",
    "Lstm",
    "Mask",
    "Merge",
    "MultiHeadAttention",
    "MultiHeadSelfAttention",
    "Multiply",
    "NoOp",
    "PReLU",
    "Padding",
    "Pooling1D",
    "Pooling2D",
    "Pooling3D",
    "PositionalEncoding",
    "Power",
    "RMSNorm",
    "Recurrent",
    "RepeatOverTime",
    "Reshape",
    "Reverse",
    "SigmoidCE",
    "Slice",
    "SoftmaxCE",
    "SpaceToDepth",
    "Split",
    "SquaredDifference",
    "SquaredError",
    "SwiGLU",
    "TiedFullyConnected",
    "TimePooling",
    "Upsampling2D",
]
