"""Helpers for whole networks and data sets."""

from __future__ import annotations

from brainstorm.tools.building import create_layer, create_net_from_spec, get_in_out_layers
from brainstorm.tools.drawing import (
    draw_network,
    get_network_info,
    network_as_dot,
    network_as_svg,
    print_network_info,
)
from brainstorm.tools.evaluation import (
    evaluate,
    extract,
    extract_and_save,
    run_network,
    shuffle_data,
    split,
)
from brainstorm.tools.generation import generate
from brainstorm.tools.plotting import (
    plot_activations,
    plot_bands,
    plot_filters,
    plot_learning_rates,
    plot_logs,
    plot_weights,
)

__all__ = [
    "create_layer",
    "create_net_from_spec",
    "draw_network",
    "evaluate",
    "extract",
    "extract_and_save",
    "generate",
    "get_in_out_layers",
    "get_network_info",
    "network_as_dot",
    "network_as_svg",
    "plot_activations",
    "plot_bands",
    "plot_filters",
    "plot_learning_rates",
    "plot_logs",
    "plot_weights",
    "print_network_info",
    "run_network",
    "shuffle_data",
    "split",
]
