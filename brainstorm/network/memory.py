"""The layers, the handler and the buffers of a network."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from brainstorm.display import ShownAsTree, Tree
from brainstorm.errors import MissingDataError, NetworkValidationError
from brainstorm.handlers.base_handler import Handler, check_is_handler
from brainstorm.interrupts import uninterrupted
from brainstorm.layers.base_layer import Layer
from brainstorm.layers.loss_layer import LossLayerImpl
from brainstorm.network.generators import streams_of
from brainstorm.network.prediction import find_prediction
from brainstorm.network.summary import network_tree, summarize
from brainstorm.randomness import Seedable
from brainstorm.structure.architecture import INPUT
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.buffers import BufferManager
from brainstorm.utils import Named


class Layers(Named[Layer]):
    """The layers of a network by name, which are fixed."""

    def __setitem__(self, name: str, value: Any) -> None:
        raise NetworkValidationError(
            f"layer {name!r} cannot be replaced in a network. Build another network, and copy the "
            f"parameters: docs/howto/transfer_learning.md."
        )


class NetworkMemory(ShownAsTree, Seedable):
    """Layers and buffers of a network."""

    def __init__(
        self, layers: Mapping[str, Layer], buffer_manager: BufferManager, seed: int | None
    ) -> None:
        super().__init__(seed)
        self.layers: dict[str, Layer] = Layers(layers)
        self.loss_layers = [n for n, la in self.layers.items() if isinstance(la, LossLayerImpl)]
        if "total_loss" in self.loss_layers:
            raise NetworkValidationError(
                "layer 'total_loss' (Loss): the name is taken by the sum of all losses."
            )
        self._buffer_manager = buffer_manager

    def set_handler(self, handler: Handler) -> None:
        """Set the handler for all further computations.

        Parameters and running statistics are kept, in other arrays; the batch is lost. Layers
        continue their random numbers if the random streams of both handlers are of one kind.

        Raises:
            NetworkValidationError: It is not a handler.
            OutOfMemoryError: There is no memory for the present T and B; nothing is changed.
        """
        check_is_handler(handler)
        before = self._buffer_manager.handler
        with self._buffer_manager.turn, uninterrupted():
            try:
                self._set_handler_of_layers(handler)
                if handler is not before:
                    self._buffer_manager.set_handler(handler)
            except BaseException:
                if handler is not before:
                    self._set_handler_of_layers(before)
                raise

    def _set_handler_of_layers(self, handler: Handler) -> None:
        for layer in self.layers.values():
            if layer.handler is not handler:
                before = streams_of(layer)
                layer.set_handler(handler)
                layer.handler = handler  # if its own set_handler forgets super().set_handler
                for name, stream in streams_of(layer).items():
                    if name in before and type(stream) is type(before[name]):
                        stream.set_state(before[name].get_state())

    @property
    def handler(self) -> Handler:
        """The handler that computes everything; see `set_handler`."""
        return self._buffer_manager.handler

    def alone(self) -> AbstractContextManager[None]:
        """Make other threads that compute with this network wait until a ``with`` block ends.

            with net.alone():
                net.provide_external_data(batch)
                net.forward_pass()
                values = net.get("Output.outputs.predictions")

        Every method that computes does so by itself; use this for several that belong together,
        because another thread's `predict` replaces the batch. It can be nested.
        """
        return self._buffer_manager.turn

    # -- looking inside -------------------------------------------------------------------------

    @property
    def buffer(self) -> BufferView:
        """The tree of all buffers, on the handler's device; writing to them is allowed.

        Keep views, not their arrays: those are others after a larger batch (except parameters and
        gradients), `set_handler` and a change of `keep_input_deltas`.

        Raises:
            NetworkValidationError: The network was closed.
        """
        return self._buffer_manager.views

    @property
    def time_size(self) -> int:
        """Present sequence length T."""
        return self._buffer_manager.time_size

    @property
    def batch_size(self) -> int:
        """Present batch size B."""
        return self._buffer_manager.batch_size

    @property
    def source_size(self) -> int:
        """Present second sequence length S; 1 if there is none."""
        return self._buffer_manager.source_size

    @property
    def shares_memory(self) -> bool:
        """Whether buffers share memory: it was built with ``memory='compact'``."""
        return self._buffer_manager.strategy == "compact"

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs for `provide_external_data`."""
        return tuple(self.layers[INPUT].out_shapes)

    @property
    def parameters_size(self) -> int:
        """Number of trainable values."""
        return int(self.buffer.parameters.size)

    @property
    def _missing(self) -> list[str]:
        """The inputs without data, whose content is undefined or zero."""
        return [name for name in self.input_names if name not in self._buffer_manager.provided]

    def check_complete(self) -> None:
        """Raise an error if the present batch is one of `predict`, or another without all data.

        Raises:
            MissingDataError: Data are missing.
        """
        if self._missing and self.batch_size:  # else the passes say that there are no data at all
            raise MissingDataError(
                f"data for {', '.join(map(repr, self._missing))} is missing: the present batch has "
                f"none, because of net.predict or all_inputs=False, or lost it by set_handler, "
                f"keep_input_deltas or an error. Call provide_external_data."
            )

    def get(self, path: str) -> np.ndarray:
        """Return a copy of a buffer as a NumPy array.

        Args:
            path: Dotted path such as ``'Lstm.internals.Fb'`` or ``'parameters'``. Outputs of
                recurrent layers have T + 1 rows; the last is the state before the first step.

        Raises:
            UnknownPathError: The path does not exist, or is a group of buffers.
            NullBufferError: It is a delta that is not needed, and so not allocated.
            ReusedBufferError: Its memory is shared, and the last pass has reused it.
        """
        with self._buffer_manager.turn:
            return self.handler.get_numpy_copy(self._buffer_manager.read(path))

    def get_input(self, name: str) -> np.ndarray:
        """Return a copy of the data that was provided as `name`."""
        return self.get(f"{INPUT}.outputs.{name}")

    def get_rows(self, path: str, by_pixel: bool = False) -> np.ndarray:
        """Return a copy of inputs, outputs or internals as (rows, features).

        There is a row for each step of each sequence, or for each sequence if there is no time
        axis; the context of recurrent layers is left out.

        Args:
            path: Dotted path.
            by_pixel: Whether rows are the vectors along the last dimension, such as the pixels of
                images, and not whole steps.
        """
        find_prediction(self.layers, path)
        layer, _, port = path.partition(".")
        with self._buffer_manager.turn:
            array, structure = self.get(path), self.layers[layer].get_shape(port)
            if structure.scales_with_time:
                array = array[: self._buffer_manager.steps(structure)]
        return array.reshape(-1, array.shape[-1] if by_pixel else structure.feature_size)

    def summary(self) -> None:
        """Print a table of the layers: shapes, parameters, characteristics."""
        sys.stdout.write(f"Network of {len(self.layers)} layers\n{summarize(self.layers)}\n")

    def tree(self, values: bool = False) -> Tree:
        """Return a tree of all layers, which can be printed or shown in a notebook.

        Each layer has its options, the sources of its inputs, its outputs, parameters and
        internals. ``repr(net)`` is this tree, folded if it is long.

        Args:
            values: Whether to show statistics of the values; see `BufferView.tree`.
        """
        buffer = None if self._buffer_manager.is_closed else self.buffer
        return network_tree(self.layers, buffer, values)

    # -- life cycle -----------------------------------------------------------------------------

    def close(self) -> None:
        """Shut all layers down and release the memory; may be called more than once."""
        with self._buffer_manager.turn:
            for layer in self.layers.values():
                layer.shutdown()
            self._buffer_manager.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
