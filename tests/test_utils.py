"""Small helpers: names, paths, nesting, shapes and texts."""

import copy
import json
import pickle
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import brainstorm as bs
from brainstorm import __version__, utils
from brainstorm.errors import UnknownPathError, ValidationError
from brainstorm.layers import FullyConnected, Input
from brainstorm.network import Network
from brainstorm.utils import get_by_path, get_normalized_path, progress_bar


@pytest.mark.parametrize("name", ["a", "_", "Layer_1", "defaults", "T"])
@pytest.mark.parametrize("ending", ["", " b", ".b", "-b", "\n", "é"])
def test_valid_layer_names(name, ending):
    assert utils.is_valid_layer_name(name + ending) == (ending == "")
    for invalid in ("", "1a", "default", "fallback"):
        assert not utils.is_valid_layer_name(invalid)


def test_inheritors_are_found_at_any_depth_and_once():
    a = type("A", (), {})
    b, c = type("B", (a,), {}), type("C", (a,), {})
    d = type("D", (b, c), {})
    assert utils.get_inheritors(a) == {b, c, d}
    assert utils.get_inheritors(d) == set()


nested_lists = st.recursive(st.integers(), lambda inner: st.lists(inner, max_size=4), max_leaves=12)


@settings(max_examples=30)
@given(st.lists(nested_lists, max_size=4))
def test_nested_indices_count_what_flatten_yields(nested):
    flat = list(utils.flatten(nested))
    indices = list(utils.convert_to_nested_indices(nested))
    assert list(utils.flatten(indices)) == list(range(len(flat)))
    assert _shape(indices) == _shape(nested)


def _shape(nested):
    return [_shape(item) for item in nested] if isinstance(nested, (list, tuple)) else None


def test_flatten_takes_tuples_too():
    assert (utils.product([2, 3, 4]), utils.product([])) == (24, 1)
    assert list(utils.flatten([1, (2, [3, ()]), "ab"])) == [1, 2, 3, "ab"]
    assert list(utils.convert_to_nested_indices(["a", ("b", "c")], [5])) == [5, [6, 7]]


def test_copies_of_containers_share_nothing_but_what_is_in_them():
    thing = object()
    value = {"a": [1, (thing, [2])], "b": ()}
    copied = utils.copy_containers(value)
    assert copied == value
    assert copied["a"][1][0] is thing
    copied["a"][1][1].append(3)
    assert value == {"a": [1, (thing, [2])], "b": ()}


def test_numbers_of_numpy_are_copied_as_numbers_of_python_which_json_knows():
    layer = Input(out_shapes={"default": ("T", "B", 2)}) >> FullyConnected(np.int64(3))
    net = Network.from_layer(layer)
    assert json.loads(json.dumps(net.architecture))["FullyConnected"]["size"] == 3
    assert type(utils.copy_containers([np.float32(0.5)])[0]) is float


def test_sorting_by_index_puts_what_has_none_first():
    layout = {"b": {"@index": 1}, "@type": "BufferView", "a": {"@index": 0}}
    found = [key for key, _ in sorted(layout.items(), key=utils.sort_by_index_key)]
    assert found == ["@type", "a", "b"]


TREE = {"Lstm": {"internals": {"Fb": 5}, "outputs": {}}, "x": 1}


def test_get_by_path():
    assert get_by_path(TREE, "Lstm.internals.Fb") == 5
    assert get_by_path(TREE, "Lstm.internals") == {"Fb": 5}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("Lstn.internals",
         "path 'Lstn.internals', at the top: unknown name 'Lstn'. Choices are: Lstm, x. "
         "Did you mean 'Lstm'?"),
        ("Lstm.internals.Fc",
         "path 'Lstm.internals.Fc', at Lstm.internals: unknown name 'Fc'. Choices are: Fb."),
        ("x.y", "path 'x.y', at x: unknown name 'y'. There are none."),
    ],
)  # fmt: skip
def test_a_path_that_leads_nowhere_says_where_it_breaks_off(path, message):
    with pytest.raises(UnknownPathError, match=f"^{re.escape(message)}"):
        get_by_path(TREE, path)


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        (("a", "b.c", "d"), "a.b.c.d"),
        (("a.b", "..c"), "a.c"),
        (("Layer.outputs", "..parameters.W"), "Layer.parameters.W"),
        (("a", "b", "..c", "..d"), "a.d"),
    ],
)
def test_normalized_paths(parts, path):
    assert get_normalized_path(*parts) == path


def test_leaves_are_flattened_in_order():
    nested = {"b": [1], "a": {"x.y": None, "c": {"d": (2,)}}, "empty": {}}
    assert list(utils.flatten_items(nested)) == [("b", [1]), ("a.x.y", None), ("a.c.d", (2,))]
    assert utils.flatten_keys(nested) == ["b", "a.x.y", "a.c.d"]


shapes = st.lists(st.integers(1, 4), min_size=3, max_size=5).map(tuple)


@settings(max_examples=30)
@given(shapes)
def test_flattening_gives_views_of_the_right_shape(shape):
    T, B, *features = shape
    n = int(np.prod(features))
    a = np.arange(np.prod(shape)).reshape(shape)
    for flat, expected in (
        (utils.flatten_time(a), (T * B, *features)),
        (utils.flatten_time_and_features(a), (T * B, n)),
        (utils.flatten_features(a), (T, B, n)),
        (utils.flatten_features(a, start_idx=1), (T, B * n)),
        (utils.flatten_all_but_last(a), (a.size // shape[-1], shape[-1])),
    ):
        assert flat.shape == expected
        assert np.shares_memory(flat, a)
        assert np.array_equal(flat.ravel(), a.ravel())


@pytest.mark.parametrize("function", [utils.flatten_time, utils.flatten_time_and_features])
def test_time_needs_three_dimensions(function):
    text = rf"^{function.__name__} needs at least 3 dimensions, got shape \(2, 3\)$"
    with pytest.raises(ValidationError, match=text):
        function(np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        *((0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536 << 10, "1.5 MiB")),
        *((5 << 30, "5.0 GiB"), (5 << 40, "5120.0 GiB")),
        (10**400, "9.31e+290 GiB"),
    ],
)
def test_format_bytes(number, text):
    assert utils.format_bytes(number) == text


def test_misspelt_names_of_layers_hooks_and_logs_are_named_with_the_choices():
    net = Network.from_layer(Input({"default": ("T", "B", 2)}) >> FullyConnected(3, name="Hidden"))
    trainer = bs.Trainer(bs.training.SgdStepper(), verbose=False)
    trainer.add_hook(bs.hooks.StopAfterEpoch(1, name="Hidden"))
    trainer.logs.append("validation", {"Hidden": 1.0})
    described = copy.deepcopy(bs.create_from_description(bs.get_description(trainer)))
    state = bs.training.Logs.from_state(trainer.logs.get_state())
    named = (net.layers, trainer.hooks, described.hooks, trainer.logs["validation"])
    for names in (*named, state["validation"], pickle.loads(pickle.dumps(net)).layers):
        with pytest.raises(UnknownPathError, match="unknown name 'Hiden'.* Did you mean 'Hidden'?"):
            names["Hiden"]
        assert names.get("Hiden") is None
    with pytest.raises(KeyError, match="Choices are: Hidden.parameters.W, Hidden.parameters.bias"):
        net.parameter_slices["Hidden.W"]


def test_the_info_line_names_the_version():
    assert utils.get_brainstorm_info() == f"Created with brainstorm {__version__}".encode()


def test_progress_bar_gives_what_is_new():
    bar = progress_bar(10, prefix="<", bar="0123456789", suffix="> {0}")
    assert next(bar) == "<"
    assert [bar.send(x) for x in (0, 3, 3, 2)] == ["", "012", "", ""]
    assert bar.send(10) == "3456789> 0:00:00"
    with pytest.raises(StopIteration):
        bar.send(10)


@settings(max_examples=30)
@given(st.lists(st.floats(0, 1), max_size=8), st.floats(0.01, 1e6))
def test_a_progress_bar_is_whole_in_the_end(fractions, maximum):
    bar = progress_bar(maximum)
    pieces = [next(bar)]
    for fraction in [*sorted(f for f in fractions if f < 1), 1]:
        pieces.append(bar.send(fraction * maximum))
    whole = "".join(pieces)
    assert whole == "[====1====2====3====4====5====6====7====8====9====0] Took: 0:00:00\n"


def test_silence(capsys):
    with utils.silence():
        print("unheard")
    print("heard")
    assert capsys.readouterr().out == "heard\n"
