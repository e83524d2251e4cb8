"""The public surface: where names are, and that each is documented; mypy asks for annotations."""

import dataclasses
import importlib
import inspect
import types

import numpy as np
import pytest

import brainstorm
from brainstorm.layers import constraints
from brainstorm.training import LearningRateSearch
from tools import measure

#: Packages in brainstorm, some with names in `__all__` that are no classes or functions of theirs.
PLAIN = """
data_iterators describable errors ext.estimators ext.onnx_exchange ext.optimize
ext.safetensors_files ext.state_dicts ext.tensorboard hooks layers network optional references
scorers tools training value_modifiers
"""
RE_EXPORTING = """
backend OpTreeNode
handlers register_activation
initializers InitializationError
optree OPERATORS
randomness global_rnd
structure Network copy_modifier_for order_and_copy_modifiers resolve_references
testing HANDLER_PROPERTIES LAYER_PROPERTIES MODIFIER_PROPERTIES SIZES STEPPER_PROPERTIES
utils Array Arrays InitializationError IteratorValidationError LayerValidationError NAME_BLACKLIST
    NetworkValidationError PYTHON_IDENTIFIER StructureValidationError ValidationError
"""


def table(text):
    """Yield the first word and the others of each line; further lines of a row are indented."""
    for line in text.strip().replace("\n    ", " ").splitlines():
        first, *others = line.split()
        yield first, others


PACKAGES = {f"brainstorm.{name}": set() for name in PLAIN.split()}
PACKAGES |= {f"brainstorm.{name}": set(names) for name, names in table(RE_EXPORTING)}

#: What `brainstorm.all` collects.
COLLECTED = ["data_iterators", "handlers", "hooks", "initializers", "layers", "scorers", "tools"]
COLLECTED += ["training", "value_modifiers"]

#: Further modules that editors and type checkers know as attributes of `brainstorm`.
REACHED = ["errors", "randomness", "structure"]

#: Layers that `brainstorm.all` holds under another name, ending in Layer.
LAYERS_WITH_OTHER_NAMES = ["Accuracy", "L1Decay", "L2Decay"]

#: Where what was written for the release of 2015 imports from; more names: test_signatures.py.
TABLE = """
brainstorm get_description create_from_description global_rnd Network generate_architecture Trainer
    __version__ initializers data_iterators value_modifiers tools hooks layers handlers training
    scorers describable structure randomness utils optional
brainstorm.layers Layer
brainstorm.layers.base_layer Layer get_layer_class_from_typename
brainstorm.layers.batch_normalization_layer BatchNormLayerImpl
brainstorm.layers.convolution_layer_2d Convolution2DLayerImpl
brainstorm.layers.dropout_layer DropoutLayerImpl
brainstorm.layers.elementwise_layer ElementwiseLayerImpl
brainstorm.layers.fully_connected_layer FullyConnectedLayerImpl
brainstorm.layers.input_layer InputLayerImpl
brainstorm.layers.loss_layer LossLayerImpl
brainstorm.layers.lstm_layer LstmLayerImpl
brainstorm.layers.mask_layer MaskLayerImpl
brainstorm.layers.merge_layer MergeLayerImpl
brainstorm.layers.noop_layer NoOpLayerImpl
brainstorm.layers.pooling_layer_2d Pooling2DLayerImpl
brainstorm.layers.recurrent_layer RecurrentLayerImpl
brainstorm.layers.sigmoid_ce_layer SigmoidCELayerImpl
brainstorm.layers.softmax_ce_layer SoftmaxCELayerImpl
brainstorm.layers.squared_difference_layer SquaredDifferenceLayerImpl
brainstorm.layers.squared_error_layer SquaredErrorLayerImpl
brainstorm.handlers NumpyHandler DebugHandler default_handler
brainstorm.handlers.base_handler Handler
brainstorm.handlers.numpy_handler NumpyHandler
brainstorm.handlers.debug_handler DebugHandler DebugArray
brainstorm.training.steppers TrainingStepper ForwardStepper SgdStepper MomentumStepper
    NesterovStepper
brainstorm.training.schedules Linear Exponential MultiStep DecreaseAfterEpoch
brainstorm.training.trainer Trainer
brainstorm.initializers Initializer InitializationError
brainstorm.value_modifiers ValueModifier GradientModifier
brainstorm.scorers gather_losses_and_scores aggregate_losses_and_scores
brainstorm.tools print_network_info get_network_info run_network create_layer
brainstorm.describable Describable get_description create_from_description
brainstorm.randomness RandomState Seedable global_rnd
brainstorm.utils ValidationError NetworkValidationError LayerValidationError IteratorValidationError
    StructureValidationError InitializationError product PYTHON_IDENTIFIER NAME_BLACKLIST
    is_valid_layer_name get_inheritors flatten convert_to_nested_indices sort_by_index_key
    get_by_path get_normalized_path flatten_time flatten_keys flatten_time_and_features
    flatten_features flatten_all_but_last progress_bar silence get_brainstorm_info
brainstorm.structure Network generate_architecture
brainstorm.structure.construction UniquelyNamed LayerDetails ConstructionWrapper
brainstorm.structure.architecture Connection get_layer_description generate_architecture
    parse_connection collect_all_outgoing_connections collect_all_connections validate_architecture
    get_canonical_layer_order get_kwargs instantiate_layers_from_architecture
    combine_buffer_structures
brainstorm.structure.buffer_structure StructureTemplate BufferStructure combine_buffer_structures
brainstorm.structure.layout Hub create_layout create_layout_stub gather_array_nodes
    get_layout_stub_for_layer get_connections get_backward_connection layout_hubs get_all_sources
    get_forced_orders get_order get_parameter_order get_gradient_order merge_connections
    group_into_hubs get_forward_closure
brainstorm.structure.buffers BufferManager create_buffer_views_from_layout BufferView
    get_total_size_slices_and_shapes
brainstorm.structure.buffer_views BufferView
brainstorm.structure.view_references resolve_references get_regex_for_reference
    get_key_to_references_mapping prune_view_references order_and_copy_modifiers copy_modifier_for
brainstorm.optional has_pycuda pycuda_mock has_bokeh bokeh_mock MissingDependencyMock
"""

ROWS = [(module, name) for module, names in table(TABLE) for name in names]


@pytest.mark.parametrize(("module", "name"), ROWS, ids=lambda value: value)
def test_names_are_where_they_were_and_those_of_structure_also_in_the_package(module, name):
    assert hasattr(importlib.import_module(module), name)
    if module.startswith("brainstorm.structure."):
        assert hasattr(brainstorm.structure, name)


# -- explicit lists -------------------------------------------------------------------------------


def is_code(value):
    return inspect.isclass(value) or inspect.isfunction(value)


@pytest.mark.parametrize("package", PACKAGES)
def test_all_is_exactly_what_is_public(package):
    module = importlib.import_module(package)
    own = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and is_code(value) and value.__module__.startswith(package)
    }
    assert len(set(module.__all__)) == len(module.__all__)
    assert set(module.__all__) == own | PACKAGES[package]
    for name in module.__all__:
        assert not isinstance(getattr(module, name), types.ModuleType)


def test_all_of_brainstorm_is_its_packages_and_the_most_used_names():
    packages = {name for name in brainstorm.__all__ if inspect.ismodule(getattr(brainstorm, name))}
    assert packages == {*COLLECTED, *REACHED}
    own = {
        name
        for name, value in vars(brainstorm).items()
        if not name.startswith("_") and is_code(value)
    }
    assert set(brainstorm.__all__) == packages | own | {"__version__", "global_rnd"}


def test_brainstorm_all_holds_everything_and_nothing_else():
    flat = importlib.import_module("brainstorm.all")
    expected = set(brainstorm.__all__) - {*COLLECTED, *REACHED}
    for name in COLLECTED:
        expected |= set(getattr(brainstorm, name).__all__)
    expected |= {f"{name}Layer" for name in LAYERS_WITH_OTHER_NAMES}
    assert set(flat.__all__) == expected
    namespace = {}
    exec("from brainstorm.all import *", namespace)  # as a script does
    del namespace["__builtins__"]
    assert set(namespace) == expected
    assert not [name for name, value in namespace.items() if inspect.ismodule(value)]


def test_layers_whose_plain_name_is_taken_can_be_reached():
    flat, layers = importlib.import_module("brainstorm.all"), brainstorm.layers
    taken = [n for n in layers.__all__ if getattr(flat, n) is not getattr(layers, n)]
    assert sorted(taken) == LAYERS_WITH_OTHER_NAMES
    for name in taken:
        assert getattr(flat, f"{name}Layer") is getattr(layers, name)
    assert flat.L1Decay is brainstorm.value_modifiers.L1Decay
    assert flat.L2Decay is brainstorm.value_modifiers.L2Decay
    assert flat.Accuracy is brainstorm.scorers.Accuracy


# -- documented -----------------------------------------------------------------------------------


def public_code():
    """Yield (full name, function or class) of everything public, members included."""
    for package in ["brainstorm", *PACKAGES]:
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if not is_code(value):
                continue
            yield f"{package}.{name}", value
            if inspect.isclass(value):
                yield from public_members(f"{package}.{name}", value)


def public_members(path, cls):
    for name in dir(cls):
        if name.startswith("_") and name != "__init__":
            continue
        member = inspect.getattr_static(cls, name)
        if isinstance(member, property):
            member = member.fget
        member = inspect.unwrap(getattr(member, "__func__", member))
        if inspect.isfunction(member) and member.__module__.startswith("brainstorm"):
            yield f"{path}.{name}", member


PUBLIC = dict(public_code())


def test_every_public_name_has_a_docstring():
    assert {"brainstorm.Network", "brainstorm.handlers.Handler.dot_mm"} <= set(PUBLIC)
    assert len(PUBLIC) > 500
    missing = []
    for path, value in PUBLIC.items():
        owner, _, name = path.rpartition(".")
        inherited = inspect.getdoc(getattr(PUBLIC.get(owner), name, None))  # of a method
        doc = value.__doc__ if inspect.isclass(value) else inspect.getdoc(value) or inherited
        if name != "__init__" and not doc:
            missing.append(path)
    assert missing == []


def test_no_public_class_prints_as_an_address():
    assert measure.find_printing_as_addresses() == []


def test_what_a_user_holds_prints_as_what_it_is():
    net = brainstorm.tools.create_net_from_spec("classification", 4, 3, "F5")
    net.provide_external_data({"default": np.zeros((1, 2, 4)), "targets": np.zeros((1, 2, 1))})
    plan = net.plan()
    long = brainstorm.handlers.traces.Trace(net.handler)
    long.steps = plan.steps * 100
    report, memory = plan.report(), net.memory(T=1, B=2)
    memory.layers = {f"L{i}": {} for i in range(500)}
    search = LearningRateSearch([0.1, 0.3, 1.0], [1.0, 0.5, 2.0], [1.0, 0.5, 2.0])
    first = plan.steps[0]  # another operation where there is no oneDNN
    assert repr(first).startswith(f"<FullyConnected, forward: {first.operation} (2, 4) (5, 4) (")
    assert repr(long).startswith(f"<trace of {len(long.steps)} calls>\n")
    assert [len(repr(shown).splitlines()) for shown in (long, memory)] == [102, 101]
    assert len(str(memory).splitlines()) > 500
    assert repr(report) == str(report)
    assert repr(search) == "LearningRateSearch: 3 rates from 0.1 to 1"
    assert repr(net.alone()) == "<lock of a network, free>"
    assert repr(net.handler.create_random_stream(1)) == "<NumpyStream of random numbers>"
    assert repr(constraints.number(0, 1)) == "<option: a number in [0, 1]>"


def public_classes():
    """Return the classes in ``__all__`` of packages, without data classes and estimators.

    The former print by Python's own code, the latter by scikit-learn's.
    """
    packages = [importlib.import_module(name) for name in [*PACKAGES, "brainstorm.all"]]
    found = [getattr(package, name) for package in packages for name in package.__all__]
    classes = {cls for cls in found if isinstance(cls, type) and not dataclasses.is_dataclass(cls)}
    ours = [cls for cls in classes if not hasattr(cls, "get_params")]
    return sorted(ours, key=lambda cls: cls.__qualname__)


@pytest.mark.parametrize("cls", public_classes(), ids=lambda cls: cls.__qualname__)
def test_an_object_whose_constructor_failed_can_be_printed(cls):
    try:
        unfinished = cls.__new__(cls)
    except TypeError:
        return  # abstract, or made by __new__ alone
    assert cls.__name__ in repr(unfinished) or isinstance(
        unfinished, (dict, list, str, BaseException)
    )
    if hasattr(cls, "_repr_html_"):
        assert "<" in unfinished._repr_html_()
