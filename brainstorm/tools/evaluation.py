"""Running networks over data sets, and operations on data sets as arrays."""

from __future__ import annotations

import math
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from brainstorm.data_iterators.base_iterator import begin_epoch
from brainstorm.errors import NetworkValidationError, ValidationError, kind_of, located
from brainstorm.files import hdf5_file
from brainstorm.interrupts import interruptible
from brainstorm.network.network import check_network
from brainstorm.network.parameters import put_values
from brainstorm.network.prediction import find_prediction
from brainstorm.randomness import RandomState
from brainstorm.scorers import (
    aggregate_losses_and_scores,
    check_scorers,
    gather_losses_and_scores,
    merge_scores,
)
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.view_tree import find_array
from brainstorm.utils import Array, as_array, is_number

# -- running a network over data -----------------------------------------------------------------


def run_network(
    net: Any,
    iterator: Iterable[Mapping[str, Array]],
    all_inputs: bool = True,
    state: list[Array | None] | None = None,
    place: str = "",
) -> Iterator[int]:
    """Load batch after batch into the network, for use by the caller.

    If the batches are parts of longer sequences (from `SequenceChunks`), the state of recurrent
    layers is carried from each chunk to the next.

    Until the next batch is requested, or the loop ends, other threads that compute with the network
    wait (`Network.alone`), so that their predictions do not replace the batch.

    Args:
        net: The network.
        iterator: Batches, e.g. ``data_iter(handler=net.handler)``.
        all_inputs: Whether every input must be given.
        state: Holds the state of recurrent layers between the chunks of sequences, see
            `Network.carry_context`; `None` creates a list.
        place: Where the batches come from, for errors about them.

    Yields:
        The number of the batch that is now in the network, from 0.
    """
    check_network("run_network", net)
    state = [] if state is None else state
    for number, data in enumerate(iterator):
        with net.alone():
            with located(place):
                net.provide_external_data(data, all_inputs)
            continues = getattr(data, "continues", None)
            if continues is not None:
                net.carry_context(state, continues)
            yield number


def evaluate(
    network: Any,
    iter: Any,
    scorers: Iterable[Any] = (),
    out_name: str = "",
    targets_name: str = "targets",
    mask_name: str | None = None,
) -> OrderedDict[str, float]:
    """Compute the losses and scores of a network on a data set, without training.

    Args:
        network: The network.
        iter: A data iterator.
        scorers: The scorers; see `brainstorm.scorers`.
        out_name: Dotted path of the predictions for scorers without one; default is
            ``network.output_name``.
        targets_name: The input with the targets, for scorers without one.
        mask_name: The input with the mask, for scorers without one.

    Returns:
        Losses and scores by name, averaged over the data, and results of statistics layers.

    Raises:
        ValidationError: There is no network, no data iterator or no batch, or the scorers do not
            fit.
    """
    check_network("evaluate", network)
    check_iterator("evaluate", iter)
    scorers = check_scorers(scorers)
    scores: dict[str, list[tuple[float, ...]]] = OrderedDict()
    gather = getattr(iter, "gather", lambda value: [value])
    with network.separate_statistics():
        batches = busy(begin_epoch(iter, network.handler))
        for _ in run_network(network, batches, place=kind_of(iter)):
            network.replay_forward_pass()
            gather_losses_and_scores(
                network,
                scorers,
                scores,
                out_name=out_name,
                targets_name=targets_name,
                mask_name=mask_name,
            )
        merge_statistics(network, gather)
        statistics = network.dump_statistics()
    results = aggregate_losses_and_scores(merge_scores(gather(scores)), network, scorers)
    if taken := results.keys() & statistics.keys():
        raise ValidationError(
            f"evaluate: statistics layers and scorers are both called {', '.join(sorted(taken))}. "
            f"Give the scorer another name: name='...'."
        )
    results.update(statistics)
    return results


def check_iterator(function: str, iter: Any) -> None:
    """Check that something given to a function can be called for batches."""
    if not callable(iter) or isinstance(iter, type):
        raise ValidationError(
            f"{function}: expected a data iterator, such as Minibatches(100, default=x, targets=y),"
            f" got {kind_of(iter)}."
        )


def busy(batches: Iterable[Mapping[str, Array]]) -> Iterator[Mapping[str, Array]]:
    """Leave out batches that only stand for an empty part of a batch."""
    return (batch for batch in batches if not getattr(batch, "is_idle", False))


def merge_statistics(network: Any, gather: Callable[[Any], list[Any]]) -> None:
    """Set the sums of statistics layers to those over several processes.

    `gather` returns the values of all processes, given that of this one.
    """
    paths = network.statistics_paths
    parts = gather([network.get(path) for path in paths])
    if len(parts) > 1:
        put_values(network, {path: sum(v) for path, *v in zip(paths, *parts, strict=True)})


def extract(network: Any, iter: Any, buffer_names: str | Sequence[str]) -> dict[str, np.ndarray]:
    """Run a network over a data set and collect the content of some buffers.

    Args:
        network: The network.
        iter: A data iterator. It may shuffle only if outputs of the Input are among the buffers.
        buffer_names: Dotted path or paths, e.g. ``'Lstm.outputs.default'``.

    Returns:
        Path -> array (T, N, features...) over all N sequences; (N, features...) for buffers
        without time. Outputs of recurrent layers have their context row at the end of the
        time axis, as in ``network.get``.

    Raises:
        NetworkValidationError: A buffer does not grow with the batch, or with a T that changes.
        ValidationError: There is no network, no data iterator, or no batch, or batches are parts of
            sequences, or their order is not known.
    """
    batches = list(_extract_batches(network, iter, buffer_names))
    return {
        path: np.concatenate([batch[path][0] for batch in batches], axis)
        for path, (_, axis) in batches[0].items()
    }


def extract_and_save(
    network: Any,
    iter: Any,
    buffer_names: str | Sequence[str],
    file_name: str | os.PathLike[str],
) -> None:
    """Do the same as `extract`, but write to an HDF5 file batch by batch: one data set per path.

    Raises:
        ValidationError: As in `extract`; the file is not changed then.
    """
    with hdf5_file(file_name, kind="Buffers file") as out:
        batches = _extract_batches(network, iter, buffer_names)
        while True:
            with interruptible():
                batch = next(batches, None)
            if batch is None:
                break
            for path, (array, axis) in batch.items():
                if path not in out:
                    limit = [None if i == axis else n for i, n in enumerate(array.shape)]
                    out.create_dataset(path, data=array, maxshape=tuple(limit))
                    continue
                data, start = out[path], out[path].shape[axis]
                data.resize(start + array.shape[axis], axis)
                data[(slice(None),) * axis + (slice(start, None),)] = array


def _extract_batches(
    network: Any, iter: Any, buffer_names: str | Sequence[str]
) -> Iterator[dict[str, tuple[np.ndarray, int]]]:
    """Yield path -> (array, axis of the batch) for each batch."""
    check_network("extract", network)
    check_iterator("extract", iter)
    names = [buffer_names] if isinstance(buffer_names, str) else buffer_names
    if not isinstance(names, Iterable) or not (names := list(names)):
        raise ValidationError(f"extract: expected a path or a list of paths, got {names!r}.")
    axes = {path: _batch_axis(network, path) for path in names}
    _check_order(iter, names)
    lengths: dict[str, int] = {}
    with network.separate_statistics():
        batches = _wholes(begin_epoch(iter, network.handler))
        for number in run_network(network, batches, place=kind_of(iter)):
            network.replay_forward_pass()
            for path, axis in axes.items():
                time = _structure_of(network, path).time
                length = network.source_size if time == "S" else network.time_size
                if lengths.setdefault(path, length) != length and axis:
                    raise NetworkValidationError(
                        f"extract, batch {number}: expected sequences of length {lengths[path]} as "
                        f"before, got {length}. Pad the data to one length and do not cut batches, "
                        "or give BucketedMinibatches a batch size for all sequences."
                    )
            yield {path: (network.get(path), axis) for path, axis in axes.items()}
    if not lengths:
        raise ValidationError(
            "extract: expected at least one batch of the data iterator, got none."
        )


def _check_order(iter: Any, names: Sequence[str]) -> None:
    """Check that the order of rows is that of the data, or that the data are extracted, too."""
    while hasattr(iter, "iter"):  # of a wrapper
        iter = iter.iter
    if getattr(iter, "shuffle", False) and not any(name.startswith("Input.") for name in names):
        raise ValidationError(
            f"extract: expected rows in the order of the data, but this {type(iter).__name__} "
            f"shuffles them. Use shuffle=False, or extract 'Input.outputs.default' as well."
        )


def _wholes(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield batches; an error if one is not the first part of its sequences."""
    for batch in batches:
        if getattr(batch, "continues", False):
            raise ValidationError(
                "extract: expected whole sequences, got parts of some. Use Minibatches in place of "
                "SequenceChunks."
            )
        yield batch


def _structure_of(network: Any, path: str) -> BufferStructure:
    layer, _, port = path.partition(".")
    return network.layers[layer].get_shape(port)


def _batch_axis(network: Any, path: str) -> int:
    if isinstance(path, str) and path in network.layers:
        find_prediction(network.layers, path)  # raises an error that names the layer's outputs
    find_array(network.buffer, path)  # raises an error if there is no such path
    if path.partition(".")[2].startswith(("inputs.", "outputs.", "internals.")):
        structure = _structure_of(network, path)
        if structure.scales_with_batch_size:
            return 1 if structure.scales_with_time else 0
    raise NetworkValidationError(
        f"extract, buffer {path!r}: expected inputs, outputs or internals that grow with the "
        f"batch. Use network.get({path!r}) for anything else."
    )


# -- data sets as arrays (T, B, features...) -----------------------------------------------------


def shuffle_data(*arrays: np.ndarray, seed: int | None = None) -> list[np.ndarray]:
    """Return copies of the arrays (T, B, ...) with their sequences in one common random order.

    Args:
        arrays: Arrays with equal B.
        seed: Makes the order repeatable.

    Raises:
        ValidationError: They have other shapes.
    """
    found = _of_equal_batch_size("shuffle_data", arrays)
    order = RandomState(seed).permutation(found[0].shape[1])
    return [array[:, order] for array in found]


def split(*arrays: np.ndarray, ratios: Sequence[float] = (9, 1)) -> list[list[np.ndarray]]:
    """Cut arrays (T, B, features...) into parts with sequences in the given ratios.

    Args:
        arrays: Arrays with equal B.
        ratios: One positive number per part.

    Returns:
        For each array the list of its parts (views): ``(x1, x2), (y1, y2) = split(x, y)``.

    Raises:
        ValidationError: Arrays have other shapes, or a ratio is not a positive number.
    """
    found = _of_equal_batch_size("split", arrays)
    is_valid = isinstance(ratios, Sequence | np.ndarray) and len(ratios) > 0
    if not is_valid or not all(is_number(r) and 0 < r < math.inf for r in ratios):
        raise ValidationError(f"split, ratios: expected positive numbers, got {ratios!r}.")
    ends = np.cumsum(ratios) / np.sum(ratios) * found[0].shape[1]
    cuts = np.rint(ends[:-1]).astype(int)
    return [np.split(array, cuts, axis=1) for array in found]


def _of_equal_batch_size(function: str, arrays: Sequence[Any]) -> list[np.ndarray]:
    found = [as_array(array, f"{function}, argument {i}") for i, array in enumerate(arrays, 1)]
    shapes = [array.shape for array in found]
    if not shapes or min(map(len, shapes)) < 3 or len({shape[1] for shape in shapes}) > 1:
        raise ValidationError(
            f"{function}: expected arrays (T, B, features...) with equal B, got the shapes "
            f"{shapes}. Rows without time steps need an axis: x[None]."
        )
    return found
