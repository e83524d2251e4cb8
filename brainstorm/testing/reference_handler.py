"""The handler with which the harness of a layer computes what a handler under test should."""

from __future__ import annotations

from typing import Any

import numpy as np

from brainstorm.handlers import NumpyHandler
from brainstorm.handlers.base_handler import Handler
from brainstorm.utils import Array


class ReferenceHandler(NumpyHandler):
    """Double precision, but with the random numbers of another handler."""

    def __init__(self, lender: Handler) -> None:
        self.lender = lender  # first: the constructor asks for a stream
        super().__init__(np.float64)

    def create_random_stream(self, seed: int) -> Any:
        return self.lender.create_random_stream(seed)

    def fill_gaussian(self, mean: Any, std: Any, out: Array, stream: Any = None) -> None:
        borrowed = self.lender.allocate(out.shape)
        self.lender.fill_gaussian(mean, std, borrowed, stream)
        self.set_from_numpy(out, self.lender.get_numpy_copy(borrowed))

    def generate_probability_mask(self, mask: Array, probability: Any, stream: Any = None) -> None:
        borrowed = self.lender.allocate(mask.shape)
        self.lender.generate_probability_mask(borrowed, probability, stream)
        self.set_from_numpy(mask, self.lender.get_numpy_copy(borrowed))
