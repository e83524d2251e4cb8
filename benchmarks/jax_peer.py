"""The workloads in JAX: a whole step, or prediction, is one compiled function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.workloads import (
    LEARNING_RATE,
    STACKED,
    Attention,
    BatchNorm,
    Contestant,
    Convolution,
    Dense,
    Embed,
    Lstm,
    Norm,
    Numbers,
    Part,
    Pool,
    Positions,
    Residual,
    Workload,
    in_turn,
    named,
    sinusoids,
)

__all__ = ["VERSION", "contestant"]

VERSION = f"JAX {jax.__version__}"


def _lstm(p: Any, x: jax.Array, size: int) -> jax.Array:
    """(T, B, n) to (T, B, size), with peepholes: the input's part of all steps is one product."""

    def step(carry: Any, joint: jax.Array) -> Any:
        y, c = carry
        i, f, z, o = jnp.split(joint + y @ p["R"].T, 4, axis=-1)
        i, f = jax.nn.sigmoid(i + p["pi"] * c), jax.nn.sigmoid(f + p["pf"] * c)
        c = i * jnp.tanh(z) + f * c
        y = jax.nn.sigmoid(o + p["po"] * c) * jnp.tanh(c)
        return (y, c), y

    zeros = jnp.zeros((x.shape[1], size), x.dtype)
    return lax.scan(step, (zeros, zeros), x @ p["W"].T + p["bias"])[1]


def _convolution(p: Any, x: jax.Array, padding: int, is_linear: bool) -> jax.Array:
    sides = [(padding, padding)] * 2
    y = lax.conv_general_dilated(
        x, p["W"], (1, 1), sides, dimension_numbers=("NHWC", "OHWI", "NHWC")
    )
    return y + p["bias"] if is_linear else jax.nn.relu(y + p["bias"])


def _norm(p: Any, x: jax.Array, axes: int | tuple[int, ...]) -> jax.Array:
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return p["gamma"] * (x - mean) * lax.rsqrt(variance + 1e-5) + p["beta"]


def _attention(p: Any, x: jax.Array, heads: int) -> jax.Array:
    batch, steps, size = x.shape
    joint = (x @ p["W"].T + p["bias"]).reshape(batch, steps, 3, heads, size // heads)
    found = jax.nn.dot_product_attention(*jnp.moveaxis(joint, 2, 0), is_causal=True)
    return found.reshape(batch, steps, size) @ p["Wo"].T + p["bo"]


def _apply(parts: Iterable[tuple[str, Part]], params: Any, x: jax.Array) -> jax.Array:
    for name, part in parts:
        p = params.get(name)
        match part:
            case Dense(_, is_linear):
                flat = x.reshape(len(x), -1) if x.ndim == 4 else x
                x = flat @ p["W"].T + p["bias"]
                x = x if is_linear else jax.nn.relu(x)
            case Lstm(size):
                x = _lstm(p, x, size)
            case Convolution(_, _, padding, is_linear):
                x = _convolution(p, x, padding, is_linear)
            case Pool(window, stride):
                sizes, strides = (1, window, window, 1), (1, stride, stride, 1)
                x = lax.reduce_window(x, -jnp.inf, lax.max, sizes, strides, "VALID")
            case Embed():
                x = p["W"][x]
            case Positions(size):
                x = x + sinusoids(x.shape[1], size)
            case Norm():
                x = _norm(p, x, -1)
            case BatchNorm():
                x = jax.nn.relu(_norm(p, x, (0, 1, 2)))
            case Attention(heads):
                x = _attention(p, x, heads)
            case Residual(inner):
                x = x + _apply(named(inner, f"{name}_"), params, x)
    return x


def _import(parts: Iterable[tuple[str, Part]], numbers: Numbers) -> dict[str, dict[str, jax.Array]]:
    """Return our parameters, those in one that are used together."""
    params: dict[str, dict[str, jax.Array]] = {}
    for name, part in parts:
        if isinstance(part, Residual):
            params |= _import(named(part.parts, f"{name}_"), numbers)
        elif name in numbers:
            own = dict(numbers[name])
            for key, members in STACKED.get(type(part), {}).items():
                own[key] = np.concatenate([own.pop(member) for member in members])
            params[name] = {key: jnp.array(value) for key, value in own.items()}
    return params


def _export(parts: Iterable[tuple[str, Part]], params: Any) -> dict[str, dict[str, np.ndarray]]:
    numbers: dict[str, dict[str, np.ndarray]] = {}
    for name, part in parts:
        if isinstance(part, Residual):
            numbers |= _export(named(part.parts, f"{name}_"), params)
        elif name in params:
            own = {key: np.array(value) for key, value in params[name].items()}
            for key, members in STACKED.get(type(part), {}).items():
                own.update(zip(members, np.split(own.pop(key), len(members)), strict=True))
            numbers[name] = own
    return numbers


def contestant(
    workload: Workload, numbers: Numbers, learning_rate: float = LEARNING_RATE
) -> Contestant:
    """Return training steps, which update the parameters in place, or predictions."""
    params = _import(workload.parts, numbers)
    apply = partial(_apply, workload.parts)
    make = _predictions if workload.predicts else partial(_steps, learning_rate=learning_rate)
    return Contestant(make(workload, apply, params), lambda: _export(workload.parts, params))


def _steps(
    workload: Workload, apply: Callable[..., jax.Array], params: Any, learning_rate: float
) -> Callable[[], jax.Array]:
    x, targets = map(jnp.array, workload.peer_data())

    def get_loss(params: Any, x: jax.Array, targets: jax.Array) -> jax.Array:
        outputs = apply(params, x)
        logs = jax.nn.log_softmax(outputs.reshape(-1, outputs.shape[-1]))
        return -jnp.take_along_axis(logs, targets[:, None], axis=1).sum() / workload.B

    @partial(jax.jit, donate_argnums=0)
    def update(params: Any, x: jax.Array, targets: jax.Array) -> Any:
        loss, gradients = jax.value_and_grad(get_loss)(params, x, targets)
        return jax.tree.map(lambda p, g: p - learning_rate * g, params, gradients), loss

    def step() -> jax.Array:
        changed, loss = jax.block_until_ready(update(params, x, targets))
        params.update(changed)
        return loss

    return step


def _predictions(
    workload: Workload, apply: Callable[..., jax.Array], params: Any
) -> Callable[[], np.ndarray]:
    inputs = [batch.peer_data()[0] for batch in workload.batches]
    probabilities = jax.jit(lambda params, x: jax.nn.softmax(apply(params, x)))
    return in_turn(lambda x: np.asarray(probabilities(params, x)), inputs)
