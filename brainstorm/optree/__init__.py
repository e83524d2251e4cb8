"""Op-trees: formulas written once, with derived derivatives.

A tree is built from variables by operators and functions and holds no values:

    from brainstorm.optree import functions as fn

    x, w = Variable((32, 10), name="x"), Variable((10, 4), name="w")
    y = fn.tanh(x @ w)
    dx, dw = gradients(y, [x, w])
    y_value, dw_value = evaluate([y, dw], {x: x_array, w: w_array})

`nodes` defines the nodes of trees, `registry` and the two files of `operators` the operators,
`autodiff` differentiates, `program` flattens trees for executors, of which `interpreter` is the
simplest. A `Formula` is a function that builds trees, with programs for any shapes.
"""

from brainstorm.optree import operators as operators
from brainstorm.optree import shaped_operators as shaped_operators
from brainstorm.optree.autodiff import gradients, is_expensive, saved_nodes, views_overlap
from brainstorm.optree.formula import Formula, formula
from brainstorm.optree.graph import postorder, substitute
from brainstorm.optree.interpreter import evaluate
from brainstorm.optree.nodes import Expression, OpTreeNode, Variable, View
from brainstorm.optree.program import Constant, Program, Step, linearise
from brainstorm.optree.registry import OPERATORS, Operator, get_operator, register_operator

__all__ = [
    "OPERATORS",
    "Constant",
    "Expression",
    "Formula",
    "OpTreeNode",
    "Operator",
    "Program",
    "Step",
    "Variable",
    "View",
    "evaluate",
    "formula",
    "get_operator",
    "gradients",
    "is_expensive",
    "linearise",
    "postorder",
    "register_operator",
    "saved_nodes",
    "substitute",
    "views_overlap",
]
