"""Every operator that works element by element, and every activation, of operands with NaN."""

import numpy as np

from brainstorm.optree import OPERATORS, Variable, evaluate
from brainstorm.optree import functions as fn
from brainstorm.optree.activations import ACTIVATIONS
from brainstorm.optree.nodes import build

#: Lengths less than a vector, of whole vectors, and with a rest.
LENGTHS = (1, 7, 16, 37)

#: What is a number although an operand is NaN.
_ANSWERS = {name for name, row in OPERATORS.items() if row.kind == "comparison"}


def trees(shape, dtype):
    """Return three variables, and {name: tree} for the whole table, lowered operators too."""
    x, y, z = (Variable(shape, dtype, name) for name in "xyz")
    found = {
        name: build(name, (x, y, z)[: row.arity])
        for name, row in OPERATORS.items()
        if row.is_elementwise
    }
    found |= {f"activation {name}": row(x) for name, row in ACTIVATIONS.items()}
    found["clip"] = fn.clip(x, -1.0, 1.0)
    found["clip by trees"] = fn.clip(x, y, z)
    for exponent in (-1, 0.5, 1, 2, 3):
        found[f"x ** {exponent}"] = x**exponent
    for limit in (-1.0, 0.0, 2.0):
        found[f"maximum {limit}"] = fn.maximum(limit, x) + fn.maximum(x, limit)
        found[f"minimum {limit}"] = fn.minimum(limit, x) + fn.minimum(x, limit)
    return (x, y, z), found


def check(dtype, compute):
    """Compare what ``compute(trees, bindings)`` returns with NumPy, and see NaN come out."""
    rnd = np.random.RandomState(0)
    for length in LENGTHS:
        variables, found = trees((4, length), dtype)
        values = [rnd.uniform(0.1, 0.9, (4, length)).astype(dtype) for _ in variables]
        for row, array in enumerate(values):
            array[row, length // 2 :] = np.nan  # the last row has none
        bindings = dict(zip(variables, values, strict=True))
        expected = evaluate(list(found.values()), bindings)
        for name, tree, got, value in zip(
            found, found.values(), compute(list(found.values()), bindings), expected, strict=True
        ):
            np.testing.assert_allclose(got, value, 1e-5, 1e-6, err_msg=name)
            used = [x for x in variables if any(node is x for node in tree.traverse())]
            has_nan = np.any([np.isnan(bindings[x]) for x in used], axis=0)
            if name == "where":
                has_nan = np.isnan(bindings[variables[1]])  # a condition that is NaN is not 0
            if name not in (*_ANSWERS, "arccosh"):  # which is NaN for all numbers below 1
                np.testing.assert_array_equal(np.isnan(got), has_nan, err_msg=name)
