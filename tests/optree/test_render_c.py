import re

import numpy as np
import pytest

from brainstorm.optree import Step, Variable, gradients, linearise, register_operator
from brainstorm.optree import functions as fn
from brainstorm.optree.collapse import collapse
from brainstorm.optree.loops import Line, Loop, Read, Write, line_of, render_body
from brainstorm.optree.nodes import build
from brainstorm.optree.render_c import render_kernel
from brainstorm.optree.stages import NotRenderableError, split_into_stages


def stages(*trees):
    return split_into_stages(linearise(list(trees))).stages


def lines_of(tree):
    """Return the lines of a tree of float32 and the numbers that they use."""
    program = linearise(tree)
    names = {i: (f"r{i}", "float") for i in range(len(program.inputs))}
    lines, constants = [], []
    for step in program.steps:
        lines.append(line_of(step, f"v{step.result}", names, constants))
        names[step.result] = (f"v{step.result}", lines[-1].type)
    return lines, constants


def body_of(tree):
    return render_body(lines_of(tree)[0])


x, y = Variable((3, 4), name="x"), Variable((4,), name="y")
d = Variable((3, 4), np.float64, name="d")


@pytest.mark.parametrize(
    ("exponent", "text"),
    [(2, "r0 * r0"), (1, "r0"), (-1, "(float)1 / r0"), (3, "pow(r0, c0)")],
)
def test_small_powers_are_products(exponent, text):
    assert body_of(x**exponent)[-1] == f"const float v1 = (float)({text});"


@pytest.mark.parametrize("value", [-1, 0, 1, 2, -0.0])
def test_a_few_numbers_are_text(value):
    lines, constants = lines_of(fn.maximum(x, value))
    assert lines[0].operands[1] == (f"((float){float(value)!r})", "float")
    assert not constants


def test_outputs_of_one_shape_are_one_stage_and_reduction_patterns_are_stages():
    (stage,) = stages(fn.tanh(x), x * y, fn.sum(x * y, 0))
    assert len(stage.roots) == 4  # the sum once as output and once for others to read
    assert stage.axes == (0,)
    assert [s.axes for s in stages(fn.sum(x, 0), fn.sum(x, 1))] == [(0,), (1,)]


def bodies(*trees):
    """Return the axes of stages, and all steps in their loops."""
    program = linearise(list(trees))
    found, first = split_into_stages(program).stages, len(program.inputs)
    return [s.axes for s in found], [program.steps[v - first] for s in found for v in s.body]


def test_softmax_computes_its_exponential_once():
    axes, steps = bodies(fn.softmax(x))
    assert axes == [(1,), (1,), None]
    assert [step.operator.name for step in steps].count("exp") == 1


def test_what_is_compared_with_its_maximum_is_computed_once():
    _, steps = bodies(*gradients(fn.max(x * y, 1), [x]))
    assert [step.operator.name for step in steps if step.operands == (0, 1)] == ["mul"]


def test_products_and_indexing_stand_between_stages_and_what_surrounds_them_is_one_loop_each():
    x, at = Variable((4, 3)), Variable((2,), np.int64)
    tree = fn.tanh(fn.take(fn.exp(x) * 2 @ fn.transpose(x), at, 0) + 1) * 3
    names = [s.operator.name if isinstance(s, Step) else len(s.body) for s in stages(tree)]
    assert names == [2, "dot", "take", 3]


@pytest.mark.usefixtures("own_table")
def test_no_loop_for_operators_without_c():
    register_operator("no_c", 1, np.negative, (None,))
    with pytest.raises(NotRenderableError, match="'no_c'"):
        split_into_stages(linearise(build("no_c", (x,))))


def test_very_long_bodies_are_refused():
    tree = x
    for _ in range(1100):
        tree = tree * y
    with pytest.raises(NotRenderableError, match="at most 1000 steps"):
        split_into_stages(linearise(tree))


# -- collapsing ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("domain", "strides", "sizes", "merged"),
    [
        ((2, 3, 4), [(12, 4, 1), (12, 4, 1)], (24,), ((1,), (1,))),
        ((2, 3, 4), [(12, 4, 1), (0, 0, 1)], (6, 4), ((4, 1), (0, 1))),  # what is repeated
        ((3, 4), [(1, 3), (1, 3)], (12,), ((1,), (1,))),  # the smallest stride goes innermost
        ((), [()], (1,), ((0,),)),
    ],
)
def test_contiguous_axes_become_one(domain, strides, sizes, merged):
    axes = collapse(domain, [False] * len(domain), strides)
    assert (axes.sizes, axes.strides) == (sizes, merged)
    assert axes.inner(0) == ("unit" if domain else "fixed")


@pytest.mark.parametrize(
    ("reduced", "sizes", "flags"),
    [
        ((True, True, False), (6, 4), (True, False)),
        ((False, False, True), (6, 4), (False, True)),
        ((False, True, False), (2, 3, 4), (False, True, False)),
        ((True, False, True), (3, 2, 4), (False, True, True)),
        ((True, True, True), (24,), (True,)),
    ],
)
def test_reduced_axes(reduced, sizes, flags):
    result = np.zeros([1 if r else n for n, r in zip((2, 3, 4), reduced, strict=True)], np.int8)
    out = [0 if r else s for s, r in zip(result.strides, reduced, strict=True)]
    axes = collapse((2, 3, 4), reduced, [(12, 4, 1), out], keep_order=True)
    assert (axes.sizes, axes.reduced) == (sizes, flags)


@pytest.mark.parametrize("strides", [(1, 0), (0, 0)])  # of nothing, and of one repeated
def test_nothing_is_read_in_front_of_a_loop_over_nothing(strides):
    assert collapse((5, 0), [False, True], [strides]).inner(0) == "unit"


def test_a_reduction_of_nothing_has_a_reduced_axis():
    assert collapse((1, 1), [True, False], [(1, 1)], reduces=True).reduced == (True,)


# -- kernels ---------------------------------------------------------------------------------


def loop(inner="unit", **options):
    body = (Line("v0", "float", "{0} * {0}", (("r0", "float"),)),)
    return Loop(
        (False, bool(options)),
        (Read("float", inner),),
        body,
        (Write("float", "fixed" if options else "unit", ("v0", "float"), False, **options),),
    )


def test_equal_loops_are_rendered_once():
    text = render_kernel([loop(), loop(), loop("any")], "kernel")
    assert len(re.findall(r"void loop\d\(", text)) == 2
    assert "    loop0(p + 2, n + 8);\n    loop1(p + 4, n + 16);" in text


def test_a_fixed_element_is_read_before_the_inner_loop():
    text = render_kernel([loop("fixed")], "kernel")
    assert text.index("const float r0 = a0[0];") < text.index("#pragma omp simd\n        for")
