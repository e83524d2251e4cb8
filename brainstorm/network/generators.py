"""The random number generators in a network, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from brainstorm.errors import FileFormatError
from brainstorm.randomness import RandomState


def get_generator_states(net: Any) -> dict[str, Any]:
    """Return the states of all random number generators in a network, by name."""
    return {name: get_generator_state(generator) for name, generator in _generators(net)}


def set_generator_states(net: Any, states: Mapping[str, Any], where: str) -> None:
    """Set states that `get_generator_states` returned; `where` is for messages.

    Raises:
        FileFormatError: They belong to another network.
    """
    generators = dict(_generators(net))
    if generators.keys() != states.keys():
        raise FileFormatError(
            f"{where}: expected the generators {', '.join(generators)} of its network, got "
            f"{', '.join(states)}."
        )
    for name, generator in generators.items():
        set_generator_state(generator, states[name])


def get_generator_state(generator: Any) -> Any:
    """Return the state of a `RandomState` or a stream."""
    own = isinstance(generator, RandomState)  # its get_state is NumPy's, without the seed
    return generator.__getstate__() if own else generator.get_state()


def set_generator_state(generator: Any, state: Any) -> None:
    """Set a state of `get_generator_state`."""
    own = isinstance(generator, RandomState)
    (generator.__setstate__ if own else generator.set_state)(state)


def generators_of(layer: Any) -> dict[str, Any]:
    """Return the generators whose states are saved, by the names of the layer's attributes."""
    own = {n: v for n, v in vars(layer).items() if isinstance(v, RandomState)}
    return {"rnd": layer.rnd, **own, **streams_of(layer)}


def streams_of(layer: Any) -> dict[str, Any]:
    """Return the handler streams that a layer draws from, by the names of its attributes."""
    return {
        name: value
        for name, value in vars(layer).items()
        if hasattr(value, "get_state")
        and hasattr(value, "set_state")
        and not isinstance(value, RandomState)
    }


def _generators(net: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, `RandomState` or stream of a handler)."""
    yield "network", net.rnd
    yield "handler", net.handler.rnd
    yield "handler.stream", net.handler.stream
    for layer_name, layer in net.layers.items():
        for attribute, value in generators_of(layer).items():
            yield f"layers.{layer_name}.{attribute}", value
    for kind in ("weight_modifiers", "gradient_modifiers"):
        for layer_name, parameters in getattr(net, kind).items():
            for parameter, modifiers in parameters.items():
                for number, modifier in enumerate(modifiers):
                    yield f"{kind}.{layer_name}.{parameter}.{number}", modifier.rnd
