"""Building, text, identity, and what NumPy may not do with a tree."""

import copy
import fractions
import pickle
import re

import numpy as np
import pytest

from brainstorm.errors import ValidationError
from brainstorm.optree import (
    OpTreeNode,
    Variable,
    View,
    linearise,
    postorder,
    register_operator,
    registry,
    substitute,
)
from brainstorm.optree import functions as fn
from tests.optree.helpers import value

X = Variable((2, 3), name="x")
Y = Variable((2, 4), name="y")
I = Variable((5,), np.int64, "i")  # noqa: E741


def test_text():
    f = X + Variable((2, 3), name="x1")
    assert repr(f) == str(f) == "({'shape': (2, 3), 'op': 'add'}, x, x1)"
    assert f.pp() == OpTreeNode.pp(f) == "x + x1"
    assert (-(X + 1) / fn.tanh(X) ** 2).pp() == "(-(x + 1)) / (tanh(x) ** 2)"
    assert fn.sum(X, axis=0).pp() == "sum(x, axis=(0,), keepdims=True)"
    assert fn.where(X > 0, X, 0).pp() == "where(x > 0, x, 0)"
    assert fn.reshape(X, 6).pp() == "reshape(x, shape=(6,))"
    assert (Variable((2,)) + 1).pp() == "<float32 (2,)> + 1"
    assert X.pp() == "x"


def test_a_node_is_a_tuple_of_op_dict_and_operands():
    node = X * 2
    op_dict, left, right = node
    assert isinstance(node, tuple)
    assert len(node) == 3
    assert op_dict == {"shape": (2, 3), "op": "mul"} == node[0]
    assert left is X is node[1]
    assert right == 2 == node[2]
    assert fn.exp(X)[2] is None
    assert node.operands == (X, 2)  # tuples compare by identity first
    total = fn.sum(X, axis=-1)
    assert dict(total[0]) == {"shape": (2, 1), "op": "sum", "axis": (1,), "keepdims": True}


def test_op_dicts_are_dicts_and_postfix_lists_are_those_of_neon():
    tree, stack = (X + 1) * fn.exp(X), ["before"]
    assert type(tree[0]) is dict
    assert OpTreeNode.traverse(tree, stack) is stack
    before, x, one, add, again, exp, mul = stack
    assert (before, x, one, again) == ("before", X, 1, X)  # tuples compare by identity first
    assert [d["op"] for d in (add, exp, mul)] == ["add", "exp", "mul"]
    assert X.traverse([]) == [X]
    assert len(deep(2000).traverse([])) == 4001


def deep(levels):
    tree = X
    for _ in range(levels):
        tree = tree + 1
    return tree


def test_shape_of_anything():
    assert OpTreeNode.shape(X) == OpTreeNode.shape(X + 1) == (X + 1).shape == (2, 3)
    assert (OpTreeNode.shape(2.0), (X * 1).ndim, (X * 1).size) == ((), 2, 6)
    x = Variable((2, 3, 4))
    for tree in ((x * 1).transpose(1, 0, 2), (x * 1).transpose((1, 0, 2)), x.transpose(1, 0, 2)):
        assert tree.shape == (3, 2, 4)
    assert (x * 1).transpose().shape == x.transpose().shape == x.T.shape == (4, 3, 2)


def test_nodes_are_immutable():
    node = X + 1
    with pytest.raises(AttributeError, match="op-trees are immutable: cannot set 'op'"):
        node.op = "mul"
    node[0]["op"] = "mul"  # a dict as any other, of which nothing is read
    assert node.op == "add"
    with pytest.raises(AttributeError):
        X.shape = (1,)


def test_absent_operands_are_none():
    node = OpTreeNode({"shape": (7,), "op": "add"}, X, None)  # which checks nothing
    assert (node.shape, node.operands, node.params) == ((7,), (X,), {})
    parts = OpTreeNode({"op": "sum", "axis": (1,), "shape": (2,)}, X).params
    assert dict(parts) == {"axis": (1,)}
    assert OpTreeNode.build("sqrt", X, None).pp() == "sqrt(x)"


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (
            lambda: X + Y,
            r"op-tree 'add' of x of shape \(2, 3\) and y of shape \(2, 4\): expected shapes that "
            r"broadcast: .* Reshape or transpose an operand.* The tree: x \+ y",
        ),
        (
            lambda: fn.tanh(X).T @ X.T,
            r"'dot' of transpose\(tanh\(x\).*\) of shape \(3, 2\) and transpose\(x.*\) of shape "
            r"\(3, 2\): expected \(\.\.\., m, k\) and \(\.\.\., k, n\)\. Transpose an operand",
        ),
        (lambda: fn.dot(X, Variable((3,))), "expected operands of rank 2 or more. Reshape vectors"),
        (lambda: fn.sum(X, axis=2), r"'sum' of x .* expected axes from -2 to 1, got axis=2"),
        (lambda: fn.sum(X, axis=(0, -2)), r"expected each axis once, got axis=\(0, -2\)"),
        (lambda: fn.sum(X, axis=0.5), "expected axis to be integers or None, got axis=0.5"),
        (lambda: fn.max(Variable((0, 2)), axis=0), "expected at least one element on the reduced"),
        (lambda: fn.softmax(Variable((2, 0))), "'softmax' of .* expected at least one element"),
        (lambda: fn.transpose(X, (0, 0)), r"expected each of the 2 axes once, got axes=\(0, 0\)"),
        (lambda: fn.transpose(X, 3), "expected axes from -2 to 1, got axis=3"),
        (lambda: fn.transpose(X, 1.5), "expected the axes as integers, got axes=1.5"),
        (lambda: fn.reshape(X, 1.5), r"integers, got 1.5. The tree: reshape\(x, shape=1.5\)"),
        (lambda: fn.broadcast_to(X, None), "expected a shape of integers, got None"),
        (lambda: Variable((2.5,)), r"expected a shape of integers, got \(2.5,\)"),
        (lambda: Variable(2, complex, "z"), "a dtype of z of real numbers, got complex128"),
        (lambda: fn.full(2, 1, "int23"), "'full': expected a dtype of real numbers, got 'int23'"),
        (lambda: fn.full(2, X), "^op-tree 'full': expected a number as value, got Variable"),
        (lambda: fn.full(2, "one"), "expected a number as value, got str"),
        (lambda: fn.softmax(Variable(())), "expected an operand with axes, got a scalar and axis"),
        (lambda: fn.concatenate(X + 1), "expected a list of op-trees, got OpTreeNode"),
        (lambda: fn.reshape(X, (4, 2)), r"expected a shape of 6 elements, got \(4, 2\)"),
        (lambda: fn.reshape(X, (4, -1)), r"expected a shape of 6 elements, got \(4, -1\)"),
        (lambda: fn.broadcast_to(X, (2, 1)), r"expected a shape that the operand broadcasts to"),
        (lambda: fn.concatenate([X, Y], axis=0), "expected equal lengths on every axis but axis 0"),
        (lambda: fn.gather(X, Variable((3, 1))), "expected indices of the operand's shape but for"),
        (lambda: fn.take(X, I, 2), "'take' of x .* expected axes from -2 to 1, got axis=2"),
        (lambda: fn.take(X, 0, 2), "'take' of x .* expected axes from -2 to 1, got axis=2"),
        (lambda: fn.take(X, 3, -1), r"index into x of .* expected an index from -3 to 2, got 3"),
        (lambda: fn.take(X, 0.5), "'take': expected an op-tree or variable, got a number"),
        (lambda: fn.gather(X, X, 2), "'gather' of x .* expected axes from -2 to 1, got axis=2"),
        (lambda: fn.onehot(X[:, :1], 1, -4), "expected a shape without negative lengths, got -4"),
        (lambda: fn.onehot(X, 1, 4), "expected indices of length 1 on axis 1. Reshape them"),
        (lambda: fn.cross_entropy_with_logits(X, Y), "expected logits and target probabilities of"),
        (lambda: X[2], r"index into x of shape \(2, 3\): expected an index from -2 to 1, got 2"),
        *(
            (lambda key=key: X[key], "expected at most 2 indices and one '...'")
            for key in ((0, 0, 0), (..., ...))
        ),
        (lambda: X[1.5:], "expected a slice of integers: slice indices must be integers"),
        (lambda: X[::0], "expected a slice of integers: slice step cannot be zero"),
        (lambda: X["a"], "got str. Several indices are an array of integers"),
        (lambda: X[[0, 1]], "index into x of .* got an array, and there are no tensors in the"),
        (lambda: X[X > 0], "expected integers, got a mask.*choose by where"),
        (lambda: X[np.array([True, False])], "expected integers, got a mask"),
        (lambda: X[[0.5]], "expected integers, got an array of float64"),
        (lambda: X[0, I], r"expected slices, None and '...' beside an array.* x\[0\]\[indices\]"),
        (lambda: X[I, I], "for one element per row use gather"),
        (lambda: (X + 1).execute(), r"expected an assignment to execute, .*Write out\[:\] = tree"),
        *(
            (
                lambda op=op: OpTreeNode.build(op, X, X, axis=0, size=-4),
                f"'{op}' of x .* expected a shape without negative lengths, got -4",
            )
            for op in ("put", "scatter")
        ),
        (lambda: OpTreeNode.build("exp", X, axis=0), "'exp' of x .* unexpected .*'axis'"),
        (
            lambda: OpTreeNode.build("slice", X, start=(0,), step=(1,), length=(1,)),
            "'slice' of x .* expected one start, step and length per axis",
        ),
        (lambda: OpTreeNode.build("exp", X, X), "op-tree 'exp': expected 1 operands, got 2"),
        (lambda: X * 1j, "expected op-trees, variables and real numbers as operands, got complex"),
        (lambda: OpTreeNode.build("assign", X, X), "expected a tensor to assign to, got the plain"),
        (lambda: OpTreeNode.build("assign", 2, X), "a tensor to assign to, got int. Use be.empty"),
        (lambda: OpTreeNode.build("exp", X, out=np.ones(3)), "to assign to, got ndarray. Use"),
        (lambda: (X + 1).asnumpyarray(), r"expected tensors in .*'add'.*, x, 1\). Evaluate the tr"),
        (lambda: bool(X + 1), r"but x \+ 1 was used as a truth value. Compare trees with 'is'"),
        (lambda: substitute([X + 1], [(X, Y)]), r"a replacement of shape \(2, 3\) for x, got y"),
        (lambda: substitute([X + 1], [(X, 5)]), "for x, got 5 of shape none"),
        (lambda: OpTreeNode.build("tann", X), r"unknown operator 'tann'. Choices.*Did you mean"),
    ],
)
def test_error_texts(build, text):
    with pytest.raises(ValidationError, match=text):
        build()


def test_error_text_of_a_huge_tree_is_short():
    tree = X
    for _ in range(60):
        tree = tree * tree
    with pytest.raises(ValidationError) as error:
        tree + Y
    assert len(str(error.value)) < 1500
    assert len(tree.pp()) < 200_000


def test_constants():
    assert (X * np.float32(2))[2] == 2.0
    assert (np.float64(2) * X)[1] == 2.0
    assert (X * fractions.Fraction(1, 4))[2] == 0.25
    assert type((X * True)[2]) is int
    assert type((X + 1)[2]) is int
    assert (np.float32(1) < X).op == "gt"
    assert fn.exp(0) == 1.0
    assert fn.power(2, 3) == 8.0


@pytest.mark.parametrize(
    ("compute", "text"),
    [
        (lambda: X * np.ones(3), "^op-tree 'mul': .* got ndarray. Put the values into a variable"),
        (lambda: np.ones(3) * X, "got ndarray. Put the values into a variable"),
        (lambda: np.asarray(X + 1), "an op-tree holds no values"),
        (lambda: np.exp(X + 1), "__array_ufunc__"),
        (lambda: (1, 2) + (X + 1), "real numbers as operands, got"),
        (lambda: (X + 1) * [2], "real numbers as operands, got"),
        (lambda: [1] + (X + 1), "real numbers as operands, got"),
        (lambda: list(X), "not iterable"),
        (lambda: X in X, "not a container|not iterable"),
    ],
)
def test_arrays_and_sequences_are_no_operands_and_trees_are_none(compute, text):
    with pytest.raises(TypeError, match=text):
        compute()


def test_comparisons_build_nodes_and_identity_hashes():
    for node in (X, X + 1):
        assert ((node == node).op, (node != 1).op) == ("eq", "ne")
        assert {node: 1}[node] == 1
        with pytest.raises(ValidationError, match="truth value"):
            node in [X + 2]  # noqa: B015


def test_working_type():
    wide, index = Variable((2, 3), np.float64), Variable((2, 3), np.int64)
    assert (X + 1.5).dtype == np.float32
    assert (X + wide).dtype == np.float64
    assert (X * index).dtype == np.float32
    assert (index / 2).dtype == np.float32
    assert (wide > 0).dtype == np.float64
    assert fn.take(X, fn.argmax(wide, axis=0)).dtype == np.float32
    array = np.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(value(index / 4, {index: array}), array / 4)


def test_key_is_structural():
    def formula(x):
        y = x * 2
        return fn.sum(y * y, axis=0)

    same = fn.sum((X * 2) * (X * 2), axis=0)
    assert formula(X).key() == same.key()
    assert hash(formula(X).key()) == hash(same.key())
    assert formula(X).key() != formula(Variable((2, 3))).key()
    assert formula(X).key() != fn.sum((X * 2) * (X * 2), axis=1).key()
    view = View("memory", 0, (2, 3), (12, 4))
    twins = [Variable((2, 3), identity=view) for _ in range(2)]
    assert formula(twins[0]).key() == formula(twins[1]).key()


def test_substitute_keeps_sharing():
    y = X * 2
    z = Variable((2, 3), name="z")
    (tree,) = substitute([y + fn.exp(y)], [(X, z)])
    assert tree.pp() == "(z * 2) + exp(z * 2)"
    assert len(postorder([tree])) == 4


def test_deep_trees_need_no_recursion():
    tree = deep(10_000)
    assert len(tree.traverse()) == len(tree.key()) == 10_001
    assert str(tree).endswith("...")
    del tree


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda tree: pickle.loads(pickle.dumps(tree))]
)
def test_copies_and_pickles_compute_the_same(duplicate):
    x, y = Variable((2, 3), np.float64, "x"), Variable((3,), np.float64, "y")
    shared = fn.exp(x) * 2.5
    for _ in range(1200):  # deeper than anything that recurses
        shared = shared + y
    tree = fn.sum(shared * shared[:, 1:2], axis=1)
    again = duplicate(tree)
    assert str(again) == str(tree)
    assert len(again.traverse()) == len(tree.traverse())
    leaves = {leaf.name: leaf for leaf in again.traverse() if isinstance(leaf, Variable)}
    values = {"x": np.arange(6.0).reshape(2, 3), "y": np.ones(3)}
    computed = [
        value(tree, {x: values["x"], y: values["y"]}),
        value(again, {leaves[name]: values[name] for name in values}),
    ]
    np.testing.assert_array_equal(*computed)


def test_two_trees_that_are_copied_together_share_their_variables():
    x = Variable((2,), name="x")
    first, second = copy.deepcopy([x + 1, x * 2])
    assert first[1] is second[1]
    assert first[1] is not x


@pytest.mark.usefixtures("own_table")
@pytest.mark.parametrize(
    ("lowering", "got"),
    [
        (lambda x: fn.sum(x), "one of shape (1, 1)"),
        (lambda x: x[:1], "one of shape (1, 4)"),
        (lambda x: 1.0, "a float"),
        (lambda x: None, "a NoneType"),
        (lambda x: np.zeros((3, 4)), "a ndarray"),
    ],
)
def test_a_lowering_is_not_believed(lowering, got):
    register_operator("odd", 1, None, lowering=lowering)
    text = (
        f"op-tree: operator 'odd': expected its lowering to return an op-tree of shape (3, 4), got "
        f"{got}. Correct the function that was given to register_operator."
    )
    with pytest.raises(ValidationError, match=f"^{re.escape(text)}$"):
        linearise(OpTreeNode.build("odd", Variable((3, 4))) + 1)


@pytest.mark.usefixtures("own_table")
@pytest.mark.parametrize("lowering", [lambda x: None, lambda x: Variable((2,)), lambda x: "1"])
def test_nor_is_one_of_numbers(lowering):
    register_operator("odd", 1, None, lowering=lowering)
    with pytest.raises(ValidationError, match="'odd': expected its lowering to return a number, "):
        OpTreeNode.build("odd", 2.0)


@pytest.mark.usefixtures("own_table")
def test_register_operator():
    cube = register_operator("cube", 1, lambda x, out: np.power(x, 3, out=out), (None,))
    assert registry._table["cube"] is cube
    with pytest.raises(ValidationError, match="operator 'cube' exists already. Choose another"):
        register_operator("cube", 1, np.exp)
    with pytest.raises(ValidationError, match="unknown kind of operator 'elementwize'"):
        register_operator("other", 1, np.exp, kind="elementwize")
    with pytest.raises(ValidationError, match=r"one derivative rule per operand \(2\), got 1"):
        register_operator("other", 2, np.hypot, (None,))
    assert "other" not in registry._table
    for name, given, text in (
        ("", {}, "register_operator: expected a name, got ''"),
        ("odd", {"numpy": "np.exp"}, "'odd': expected functions, and a tuple of .* got 'np.exp'"),
        ("odd", {"derivative": [None]}, r"'odd': expected functions, .* got \[None\]"),
        ("odd", {"C": "exp({0})"}, "'odd': unknown attribute 'C'. Choices are: name, arity, "),
    ):
        with pytest.raises(ValidationError, match=text):
            register_operator(name, 1, **({"numpy": np.exp} | given))
