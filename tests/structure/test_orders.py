"""Orders and closures: what of 2015 planned the memory agrees with the plan that is made here."""

import pytest

from brainstorm.structure import (
    create_layout,
    create_layout_stub,
    gather_array_nodes,
    get_all_sources,
    get_connections,
    get_forced_orders,
    get_forward_closure,
    get_gradient_order,
    get_order,
    get_parameter_order,
    layout_hubs,
    merge_connections,
)
from tests.networks import build


@pytest.fixture
def layers():
    return build("joined").layers


def path_pairs(layers):
    """Return connections as pairs of paths, with those of the parameters to the flat array."""
    pairs = [
        (f"{c.start_layer}.outputs.{c.output_name}", f"{c.end_layer}.inputs.{c.input_name}")
        for c in get_connections(layers)
    ]
    groups = get_forced_orders(layers)
    return pairs + [(path, path.split(".")[1]) for group in groups for path in group]


def test_parameters_and_gradients_are_groups_in_the_order_of_their_declaration(layers):
    assert get_parameter_order("A", layers["A"]) == ("A.parameters.W", "A.parameters.bias")
    assert get_gradient_order("A", layers["A"]) == ("A.gradients.W", "A.gradients.bias")
    orders = get_forced_orders(layers)
    assert len(orders) == 8
    assert get_parameter_order("D", layers["D"]) in orders
    stub = create_layout_stub(layers)
    assert get_order(stub)[:3] == ("parameters", "gradients", "Input")
    assert get_order(stub["A"]["parameters"]) == ("W", "bias")


def test_sources_and_their_closures_are_those_of_the_hubs(layers):
    orders, stub = get_forced_orders(layers), create_layout_stub(layers)
    links = merge_connections(path_pairs(layers), orders)
    sources, parameters = (
        get_all_sources(orders, links, stub),
        get_parameter_order("A", layers["A"]),
    )
    assert {parameters, "Input.outputs.default"} <= {*sources}
    assert "C.inputs.default" not in sources
    hubs, layout = create_layout(layers)
    for hub in hubs:
        if not hub.is_backward_only and hub.sources[0] in sources:
            found, sinks = get_forward_closure(hub.sources[0], links)
            assert (found, sinks) == (set(hub.sources), set(hub.sinks))
    found, sinks = get_forward_closure(parameters, links)
    assert (len(found), sinks) == (4, {"parameters"})
    layout_hubs(hubs, stub)
    nodes, planned = dict(gather_array_nodes(stub)), dict(gather_array_nodes(layout))
    for path, node in nodes.items():
        for mark in ("@hub", "@slice"):
            assert node.get(mark) == planned[path].get(mark), path
