"""Views: every way to reach a buffer, and what a wrong one is told."""

import copy
import operator
import pickle

import numpy as np
import pytest

from brainstorm.errors import NetworkValidationError, NullBufferError, UnknownPathError
from brainstorm.handlers import DebugHandler, NumpyHandler
from brainstorm.structure.buffer_views import BufferView, Members
from brainstorm.structure.null_buffers import NullBuffer

W, BIAS, LOSS = np.arange(6.0).reshape(2, 3), np.ones(2), np.zeros((4, 5, 1))


@pytest.fixture
def view():
    parameters = BufferView(["W", "bias"], [W, BIAS], np.zeros(8), {("W", "bias"): np.zeros(8)})
    outputs = BufferView(["default", "loss"], [np.zeros((4, 5, 2), np.float32), LOSS])
    return BufferView(["parameters", "outputs", "size"], [parameters, outputs, np.zeros(3)])


# -- reaching -------------------------------------------------------------------------------------


def test_all_ways_lead_to_the_same_object(view):
    weights, bias = view.parameters  # in the order of declaration
    parameters, (_, loss), _ = view
    ways = [weights, parameters.W, view.parameters.W, view["parameters"]["W"], view["parameters.W"]]
    for found in (*ways, view[0][0], view[-3].W, next(iter(view.parameters))):
        assert found is W
    assert (bias is BIAS, loss is LOSS) == (True, True)
    assert view.parameters[0:2] == [W, BIAS]


def test_it_is_an_ordered_mapping(view):
    parameters = view.parameters
    assert parameters.keys() == parameters._buffer_names == ("W", "bias")
    assert [v is w for v, w in zip(parameters.values(), (W, BIAS), strict=True)] == [True, True]
    assert list(parameters._asdict()) == [name for name, _ in parameters.items()] == ["W", "bias"]
    assert [name in parameters for name in ("W", "R", W.shape)] == [True, False, False]
    assert (len(parameters), parameters._keys) == (2, {"W", "bias"})
    assert parameters._full_buffer.shape == (8,)
    assert view.outputs._full_buffer is None
    assert {"parameters", "outputs", "size"} <= set(dir(view))  # for the completion with tab


def test_views_are_compared_by_identity(view):
    twin = BufferView(["W", "bias"], [W, BIAS])
    assert (view == view, view != view) == (True, False)
    assert (view.parameters == twin, view.parameters != twin) == (False, True)


def test_children_called_like_members_do_not_break_them():
    names = ["keys", "items", "count", "joint", "_keys", "_full_buffer", "_children"]
    view = BufferView(names, [np.full(1, i) for i in range(len(names))], full_buffer=W)
    assert view.keys() == tuple(names)
    assert [view[name][0] for name in names] == list(range(len(names)))
    assert view._full_buffer is W
    assert len(repr(view).splitlines()) == len(names)


# -- what is not there ----------------------------------------------------------------------------


CHOICES = "unknown buffer 'parameter'. Choices are: parameters, outputs, size. Did you mean 'p"


@pytest.mark.parametrize(
    ("reach", "error", "message"),
    [
        (lambda view: view["parameter"], UnknownPathError, CHOICES),
        (lambda view: view["parameter.W"], KeyError, CHOICES),
        (lambda view: view.parameter, AttributeError, CHOICES),
        (lambda view: view["parameters.w"], KeyError, "unknown buffer 'w'. Choices are: W, bias."),
        (lambda view: view["parameters.W.x"], UnknownPathError, "'W' is an array, not a group."),
        (lambda view: view[3], IndexError, "list index out of range"),
        (lambda view: view.__foo__, AttributeError, "^__foo__$"),  # is not looked up as a buffer
        (lambda view: BufferView("ab", [1]), ValueError, "as many buffers as names .*'b'.*, got 1"),
        (lambda view: view.parameters.joint("bias", "W"), UnknownPathError,
         "unknown joint buffer 'bias, W'. Choices are: W, b"),
        (lambda view: view.outputs.joint("loss"), UnknownPathError,
         r"unknown joint buffer 'loss'\. There are none\."),
    ],
)  # fmt: skip
def test_what_is_not_there_is_told_the_choices(view, reach, error, message):
    with pytest.raises(error, match=message):
        reach(view)


# -- changing and copying -------------------------------------------------------------------------


def test_adjust_points_to_other_buffers_in_place(view):
    parameters, other = view.parameters, np.zeros((7, 3))
    full = np.zeros(9)
    assert parameters.adjust(["W", "bias"], [other, BIAS], full_buffer=full) is parameters
    assert view.parameters is parameters
    assert view["parameters.W"] is view.parameters[0] is view.parameters.W is other
    assert parameters._full_buffer is full
    outputs = BufferView(["default", "loss"], [W, LOSS])
    assert view.adjust(view.keys(), [parameters, outputs, W]).outputs is view[1] is outputs


def test_every_look_finds_the_present_arrays(view):
    present, parameters = Members({}, None, {}), view.parameters
    parameters._find = lambda: present
    looks = {
        "attribute": lambda: parameters.bias,
        "name": lambda: parameters["bias"],
        "path": lambda: view["parameters.bias"],
        "number": lambda: parameters[-1],
        "slice": lambda: parameters[1:][0],
        "unpacking": lambda: (lambda _, bias: bias)(*parameters),
        "list": lambda: list(parameters)[1],
        "reversed": lambda: next(reversed(parameters)),
        "sum": lambda: operator.add(parameters, [])[1],
        "copy": lambda: parameters.copy()[1],
        "values": lambda: parameters.values()[1],
        "items": lambda: dict(parameters.items())["bias"],
        "full buffer": lambda: parameters._full_buffer,
        "deep copy": lambda: copy.deepcopy(parameters).bias,
    }
    for size, (what, look) in enumerate(looks.items(), 3):
        present = Members({"W": np.zeros(1), "bias": np.zeros(size)}, np.zeros(size), {})
        assert look().shape == (size,), what
    assert len(parameters) == 2


@pytest.mark.parametrize("names", [["bias", "W"], ["W"], ["W", "bias", "R"]])
def test_adjust_refuses_other_names(view, names):
    with pytest.raises(ValueError, match=r"^expected the names \('W', 'bias'\), got"):
        view.parameters.adjust(names, [W] * len(names))
    assert view.parameters.W is W


def test_copies_have_memory_of_their_own(view):
    for other in (copy.deepcopy(view), pickle.loads(pickle.dumps(view))):
        assert other["parameters.W"] is other.parameters[0]
        np.testing.assert_array_equal(other.parameters.W, W)
        other.parameters.W[:] = -1
        assert W[1, 2] == 5
        assert other.parameters._full_buffer is not view.parameters._full_buffer
        assert other.parameters.joint("W", "bias").shape == (8,)
    assert copy.copy(view).parameters is view.parameters


# -- looking --------------------------------------------------------------------------------------


def test_a_view_contains_what_can_be_looked_up_by_name(view):
    inside, outside = ("parameters", "parameters.W", "size"), ("W", "parameters.w", "size.x", "", 0)
    assert [name in view for name in (*inside, *outside)] == [True] * 3 + [False] * 5


def test_repr_is_the_tree(view):
    assert repr(view) == "\n".join(
        [
            "parameters",
            "  W        float64[2, 3]      48 B",
            "  bias     float64[2]         16 B",
            "outputs",
            "  default  float32[4, 5, 2]  160 B",
            "  loss     float64[4, 5, 1]  160 B",
            "size       float64[3]         24 B",
        ]
    )


def test_repr_leaves_out_empty_groups_and_marks_what_has_no_memory():
    view = BufferView(["a", "b", "c", "d"], [BufferView([], []), NULL, None, DEBUG.zeros((2, 3))])
    assert repr(view) == "b  not allocated\nc  not allocated\nd  float64[2, 3]  48 B"


def test_the_tree_looks_at_values_if_asked():
    arrays = [np.array([1.0, np.nan]), NULL, np.zeros((0, 3))]
    view = BufferView(["x", "null", "none"], arrays)
    assert repr(view.tree(values=True)).split("\n") == [
        "                           min  mean  max  NaN  Inf",
        "x     float64[2]     16 B    1     1    1    1    0",
        "null  not allocated",
        "none  float64[0, 3]   0 B",
    ]


def test_html_and_rich_show_the_same(view):
    assert view._repr_html_() == view.tree(values=True)._repr_html_()
    assert "float64[2, 3]" in view._repr_html_()
    labels = [str(child.label) for child in view.__rich__().children]
    assert labels == ["parameters", "outputs", "size  float64[3]  24 B"]


def test_paths_by_pattern(view):
    inner = ["parameters.W", "parameters.bias", "outputs.default", "outputs.loss"]
    assert view.paths() == view.paths("*s*") == [*inner, "size"]
    assert view.paths("par*.W") == ["parameters.W"]
    assert view.outputs.paths("W") == []
    assert BufferView(["a", "b"], [NULL, None]).paths() == []


def test_replacing_a_buffer_is_refused(view):
    message = "^buffer 'W' cannot be replaced. Write into its memory: buffer.'W'..:. = ...$"
    with pytest.raises(NetworkValidationError, match=message):
        view.parameters.W = W + 1
    for item in ("W", 0):
        with pytest.raises(NetworkValidationError, match=message):
            view.parameters[item] = W + 1
    with pytest.raises(NetworkValidationError, match="^buffer 'W, bias' cannot be replaced"):
        view.parameters[:] = [W, BIAS]
    view.parameters.W += 0  # which assigns what it has changed
    view.parameters["W"] += 0
    view.parameters[0] += 0
    assert view.parameters.W is W
    with pytest.raises(AttributeError, match=r"^unknown buffer .w.\. Choices are: W, bias\.$"):
        view.parameters.w = W


@pytest.mark.parametrize(
    "change",
    [
        lambda view: view.append(W),
        lambda view: view.clear(),
        lambda view: view.extend([W]),
        lambda view: view.insert(0, W),
        lambda view: view.pop(),
        lambda view: view.remove(W),
        lambda view: view.reverse(),
        lambda view: view.sort(key=id),
        lambda view: operator.delitem(view, 0),
        lambda view: operator.iadd(view, [W]),
        lambda view: operator.imul(view, 2),
        lambda view: operator.mul(view, 2),
        lambda view: operator.mul(2, view),
        lambda view: [W] + view,  # noqa: RUF005
        lambda view: delattr(view, "W"),
    ],
)
def test_a_view_is_no_list_to_be_changed(view, change):
    with pytest.raises(
        NetworkValidationError,
        match=r"^buffers '\*' cannot be added, removed or moved\. Take a list of them: list\(view",
    ):
        change(view.parameters)
    assert list(view.parameters) == list.copy(view.parameters) == [W, BIAS]


# -- null buffers ---------------------------------------------------------------------------------

NULL = NullBuffer("A.input_deltas.default", "it is not needed. Set net.keep_input_deltas = True.")


PLAIN, DEBUG = NumpyHandler(np.float64), DebugHandler(NumpyHandler(np.float64))
ARITHMETIC = (
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv),
    *(operator.mod, operator.pow, operator.matmul, operator.gt, operator.le),
)
USES = [
    *(np.asarray, np.sum, len, list, float, int, abs, operator.neg, operator.pos),
    *(lambda b: b[0], lambda b: b.__setitem__(0, 1), lambda b: b.mean(), lambda b: b.dtype),
    *(lambda b, f=f: f(b, 2) for f in ARITHMETIC),
    *(lambda b, f=f: f(2, b) for f in ARITHMETIC),
    *(lambda b: np.ones(3) * b, lambda b: 0 in b),
    lambda b: PLAIN.get_numpy_copy(b),
    lambda b: PLAIN.set_from_numpy(b, np.ones(3)),
    lambda b: PLAIN.copy_to(b, PLAIN.zeros((3,))),
    lambda b: PLAIN.copy_to(PLAIN.zeros((3,)), b),
    lambda b: PLAIN.sum_t(b, None, PLAIN.zeros((1,))),
    lambda b: DEBUG.get_numpy_copy(b),
    lambda b: DEBUG.mult_st(2.0, b, DEBUG.zeros((3,))),
]


@pytest.mark.parametrize("read", USES)
def test_reading_a_null_buffer_says_how_to_have_it(read):
    text = "A.input_deltas.default is not allocated: it is not needed. Set net.keep_input_deltas ="
    with pytest.raises(NullBufferError, match=f"^{text} True.$"):
        read(NULL)


def test_a_null_buffer_is_false_and_empty():
    assert not NULL
    assert (NULL.shape, NULL.size) == ((0,), 0)
    assert copy.deepcopy(NULL).path == pickle.loads(pickle.dumps(NULL)).path == NULL.path
    assert repr(NULL).startswith("<A.input_deltas.default is not allocated: it is not needed")
