"""Functions and classes take what scripts of 2015 give them: names, order and defaults."""

import functools
import inspect

import pytest

import brainstorm as bs

#: Where to find them, and their arguments of 2015 (those of all hooks: HOOK); others stand behind.
TABLE = """
layers.Input: out_shapes
layers.NoOp Mask Merge Highway SoftmaxCE SigmoidCE SquaredError SquaredDifference
    BinomialCrossEntropy L1Decay L2Decay: name=None
layers.Loss: importance=1.0, name=None
layers.DeltasScaling: factor, name=None
layers.FullyConnected: size=None, activation='rel', name=None
layers.Elementwise: activation='rel', name=None
layers.Dropout: drop_prob=0.5, name=None
layers.BatchNorm: name=None, decay=0.9, epsilon=1e-05
layers.Convolution2D: num_filters, kernel_size, stride=(1, 1), padding=0, activation='rel',
    name=None
layers.Pooling2D: kernel_size, type='max', stride=(1, 1), padding=0, name=None
layers.Recurrent Lstm Clockwork ClockworkLstm: size, activation='tanh', name=None
Network.from_layer: some_layer
Network.from_architecture: architecture
Network.from_hdf5: filename
Network.get: path
Network.get_input: name
Network.initialize: default_or_init_dict=None, seed=None, **kwargs
Network.set_weight_modifiers set_gradient_modifiers: default_or_mod_dict=None, **kwargs
Network.set_handler: handler
Network.provide_external_data: data, all_inputs=True
Network.forward_pass: training_pass=False, context=None
Network.save_as_hdf5: filename, comment=''
training.SgdStepper: learning_rate=0.1
training.MomentumStepper NesterovStepper: learning_rate=0.1, momentum=0.0, scale_learning_rate=True
training.ForwardStepper: use_training_pass=False
training.Linear: initial_value, final_value, num_changes
training.Exponential: initial_value, factor, minimum=None, maximum=None
training.MultiStep: initial_value, steps, values
training.DecreaseAfterEpoch: initial_value, T
training.Trainer: stepper, verbose=True
training.Trainer.train: net, training_data_iter, **named_data_iters
training.Trainer.evaluate: net, **named_data_iters
training.Trainer.add_hook: hook
hooks.Hook StopOnSigQuit: HOOK
hooks.SaveBestNetwork: log_name, filename=None, criterion=None, HOOK
hooks.SaveLogs SaveNetwork: filename, name=None, timescale='epoch', interval=1
hooks.MonitorLayerDeltas MonitorLayerGradients MonitorLayerInOuts MonitorLayerParameters:
    layer_name, HOOK
hooks.MonitorLoss: iter_name, HOOK
hooks.MonitorScores: iter_name, scorers, HOOK
hooks.EarlyStopper: log_name, patience=1, criterion=None, HOOK
hooks.StopAfterEpoch: max_epochs, HOOK
hooks.StopAfterThresholdReached: log_name, threshold, criterion=None, HOOK
hooks.StopOnNan: logs_to_check=(), check_parameters=True, check_training_loss=True, HOOK
hooks.BokehVisualizer: log_names, filename=None, timescale='epoch', interval=1, name=None,
    verbose=None
hooks.ProgressBar: -
hooks.InfoUpdater: run, name=None, timescale='epoch', interval=1
hooks.ModifyStepperAttribute: schedule, attr_name='learning_rate', timescale='epoch', interval=1,
    name=None, verbose=None
value_modifiers.ConstrainL2Norm: limit
value_modifiers.ClipValues: low=-1.0, high=1.0
value_modifiers.MaskValues: mask
value_modifiers.FreezeValues: weights=None
value_modifiers.L1Decay L2Decay: factor
initializers.ArrayInitializer: array
initializers.DenseSqrtFanIn DenseSqrtFanInOut: scale='rel'
initializers.EchoState: spectral_radius=1.0
initializers.Gaussian: std=0.1, mean=0.0
initializers.Identity: scale=1.0, std=0.01, enforce_square=True
initializers.LstmOptInit: input_block=0.0, input_gate=0.0, forget_gate=0.0, output_gate=0.0
initializers.Orthogonal: scale=1.0
initializers.RandomWalk: act_func='linear', scale=None
initializers.SparseInputs SparseOutputs: sub_initializer, connections=15
initializers.Uniform: low=0.1, high=None
initializers.evaluate_initializer: initializer, shape, fallback=None, seed=None
scorers.Scorer Accuracy MeanSquaredError: out_name='', targets_name='targets', mask_name='',
    name=None
scorers.Hamming: threshold=0.5, out_name='', targets_name='targets', mask_name='', name=None
tools.evaluate: network, iter, scorers=(), out_name='', targets_name='targets', mask_name=None
tools.extract: network, iter, buffer_names
tools.extract_and_save: network, iter, buffer_names, file_name
tools.get_in_out_layers: task_type, in_shape, out_shape, data_name='default',
    targets_name='targets', projection_name=None, outlayer_name=None, mask_name=None, use_conv=None
tools.create_net_from_spec: task_type, in_shape, out_shape, spec, data_name='default',
    targets_name='targets', mask_name=None, use_conv=None
tools.draw_network: network, file_name='network.png'
tools.shuffle_data: *arrays, seed=None
tools.split: *arrays, ratios=(9, 1)
data_iterators.DataIterator: data_shapes, length
data_iterators.Undivided: **named_data
data_iterators.Minibatches: batch_size=1, shuffle=True, cut_according_to='mask', **named_data
data_iterators.AddGaussianNoise: iter, std_dict, mean_dict=None
data_iterators.AddSaltNPepper: iter, prob_dict, ratio_dict=None
data_iterators.Flip: iter, prob_dict=None
data_iterators.Pad: iter, size_dict, value_dict=None
data_iterators.RandomCrop: iter, shape_dict
data_iterators.OneHot MultiHot: iter, vocab_size_dict
randomness.Seedable: seed=None
randomness.RandomState.create_random_state: seed=None
handlers.DebugHandler: handler
handlers.Handler.allocate ones zeros: shape
handlers.Handler.copy_to: src, dest
handlers.Handler.copy_to_if: src, dest, cond
handlers.Handler.create_from_numpy: arr
handlers.Handler.fill: mem, val
handlers.Handler.fill_if: mem, val, cond
handlers.Handler.get_numpy_copy: mem
handlers.Handler.set_from_numpy: mem, arr
handlers.Handler.is_fully_finite: a
handlers.Handler.abs_t log_t sqrt_t sign_t: a, out
handlers.Handler.add_into_if: a, out, cond
handlers.Handler.add_st mult_st mult_add_st: s, t, out
handlers.Handler.add_tt subtract_tt mult_tt mult_add_tt divide_tt modulo_tt merge_tt: a, b, out
handlers.Handler.clip_t: a, a_min, a_max, out
handlers.Handler.add_mv subtract_mv mult_mv mult_add_mv divide_mv index_m_by_v: m, v, out
handlers.Handler.dot_mm dot_add_mm: a, b, out, transa=False, transb=False
handlers.Handler.sum_t broadcast_t: a, axis, out
handlers.Handler.binarize_v: v, out
handlers.Handler.split_add_tt: x, out_a, out_b
handlers.Handler.fill_gaussian: mean, std, out
handlers.Handler.generate_probability_mask: mask, probability
handlers.Handler.conv2d_forward_batch: inputs, weights, bias, outputs, padding, stride
handlers.Handler.conv2d_backward_batch: inputs, weights, padding, stride, in_deltas, out_deltas,
    weight_deltas, bias_deltas
handlers.Handler.maxpool2d_forward_batch: inputs, window, outputs, padding, stride, argmax
handlers.Handler.maxpool2d_backward_batch: inputs, window, outputs, padding, stride, argmax,
    in_deltas, out_deltas
handlers.Handler.avgpool2d_forward_batch: inputs, window, outputs, padding, stride
handlers.Handler.avgpool2d_backward_batch: inputs, window, outputs, padding, stride, in_deltas,
    out_deltas
handlers.Handler.sigmoid tanh rel el: x, y
handlers.Handler.sigmoid_deriv tanh_deriv rel_deriv el_deriv: x, y, dy, dx
handlers.Handler.softmax_m: m, out
"""
HOOK = "name=None, timescale='epoch', interval=1, verbose=None"
ROWS = [
    (f"{paths.rpartition('.')[0]}.{name}", given)
    for line in TABLE.replace("\n    ", " ").replace("HOOK", HOOK).strip().splitlines()
    for paths, given in [line.split(": ")]
    for name in paths.rpartition(".")[2].split()
]


@pytest.mark.parametrize(("path", "given"), ROWS, ids=[path for path, _ in ROWS])
def test_the_arguments_of_2015_are_the_first(path, given):
    """Those that came later must have defaults.

    Such that can be given by name alone may stand in front of all data by name, ``**named_data``.
    """
    function = functools.reduce(getattr, path.split("."), bs)
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    by_name = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    if parameters and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD:
        assert all(p.default is not p.empty for p in by_name)
        parameters = [p for p in parameters if p not in by_name]
    count = len(given.split(", ")) - given.count("(1, 1)") - given.count("(9, 1)")
    if "**" in given:  # stands behind what came later
        parameters.insert(count - 1, parameters.pop())
    texts = [str(p.replace(annotation=inspect.Parameter.empty)) for p in parameters]
    if given == "-":
        assert texts == []
        return
    assert ", ".join(texts[:count]) == given
    assert all(p.default is not p.empty for p in parameters[count:])
