"""Random numbers: a tree of seeds, whose branches are found by name.

`global_rnd` is the root. An object created without a seed draws one from it, so
``brainstorm.global_rnd.set_seed(42)`` at the top of a script makes the whole run reproducible.
Below an object, streams are children *by name* (``net.rnd.child('layers/Dropout_1')``), so adding
a layer does not change the numbers of the others.
"""

from __future__ import annotations

import secrets
import threading
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from brainstorm.constraints import integer
from brainstorm.describable import Describable
from brainstorm.errors import ValidationError, shown
from brainstorm.forks import cached_property, free, renew_after_fork

__all__ = ["RandomState", "Seedable", "global_rnd"]


#: The factors by which NumPy's `SeedSequence` multiplies its pool to seed a Mersenne twister.
_FACTORS = np.multiply.accumulate(
    np.array([0x8B51F9DD, *[0x58F38DED] * 624], np.uint32), dtype=np.uint32
)


class _SeedSequence(np.random.SeedSequence):
    """NumPy's class, but it computes all words for a Mersenne twister at once, five times as fast.

    The algorithm is that of M. E. O'Neill, "Developing a seed_seq Alternative", 2015.
    """

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        words = (self.pool ^ _FACTORS[:-1].reshape(-1, 4)) * _FACTORS[1:].reshape(-1, 4)
        return (words ^ (words >> 16)).ravel().tolist()[:n_words]


class RandomState(np.random.RandomState, Describable):
    """NumPy's `RandomState` with a seed that can be read, reset, and branched by name.

    Its description contains the seed; the object created from it is at its first number.

    Args:
        seed: A non-negative integer; `None` draws one from `global_rnd`.

    Attributes:
        lock: Keeps other threads, which take it too, from drawing between several draws.
    """

    __undescribed__ = {"lock"}

    seed_range = (0, 1_000_000_000)

    def __init__(self, seed: int | None = None) -> None:
        self._path: tuple[int, ...] = ()
        self._seed = _checked(global_rnd.generate_seed() if seed is None else seed)
        self._start()

    def _start(self) -> None:
        super().__init__(self._first())
        self.lock = threading.RLock()
        renew_after_fork(self)

    def renew(self) -> None:
        """Free the locks of another thread that drew numbers when this process was forked."""
        free(self._bit_generator.lock)
        self.lock = threading.RLock()

    def __repr__(self) -> str:
        return f"RandomState(seed={vars(self).get('_seed')})"

    def get_seed(self) -> int:
        """Return the seed that the numbers started from."""
        return self._seed

    def set_seed(self, seed: int | None = None) -> None:
        """Start again from `seed` (`None` draws one from `global_rnd`).

        Raises:
            ValidationError: `seed` is negative or not an integer.
        """
        self._seed = _checked(global_rnd.generate_seed() if seed is None else seed)
        self.reset()

    def reset(self) -> None:
        """Go back to the first number of the current seed."""
        self.set_state(dict(self._first().state))

    def _first(self) -> np.random.MT19937:
        """Return the bit generator, at its first number."""
        return np.random.MT19937(_SeedSequence(self._seed, spawn_key=self._path))

    def generate_seed(self) -> int:
        """Draw a seed in `seed_range` for another generator."""
        return int(self.randint(*self.seed_range))

    def create_random_state(self, seed: int | None = None) -> RandomState:
        """Return a new generator from `seed`, or from a seed drawn here."""
        return RandomState(self.generate_seed() if seed is None else seed)

    def child_seed(self, name: str) -> int:
        """Return the first seed that the child called `name` generates."""
        return self.child(name).generate_seed()

    def child(self, name: str) -> RandomState:
        """Return the generator called `name` below this one.

        It depends only on this generator's seed and on the name, not on the numbers drawn so far
        or on other children.
        """
        branch = RandomState.__new__(RandomState)
        branch._seed = self._seed
        branch._path = (*self._path, zlib.crc32(name.encode()), len(name))
        branch._start()
        return branch

    def __describe__(self) -> dict[str, Any]:
        return {"@type": type(self).__name__, "seed": self._seed, "path": list(self._path)}

    @classmethod
    def __new_from_description__(cls, description: Mapping[str, Any]) -> RandomState:
        new = cls(description["seed"])
        new._path = tuple(description["path"])
        new.reset()
        return new

    def __getstate__(self) -> dict[str, Any]:
        return {"seed": self._seed, "path": self._path, "state": self.get_state(legacy=False)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        position = state["state"]["state"]["pos"]
        if not 0 <= position <= 624:  # NumPy does not check it, and would read beyond its memory
            raise ValidationError(f"RandomState: expected a position from 0 to 624, got {position}")
        self._seed, self._path = state["seed"], state["path"]
        self.set_state(state["state"])

    def __reduce__(self) -> tuple[Any, ...]:
        return (RandomState, (self._seed,), self.__getstate__())


def _checked(seed: Any) -> int:
    if seed not in integer(0):
        raise ValidationError(f"seed: expected an integer >= 0 or None, got {shown(seed)}.")
    return int(seed)


class Seedable(Describable):
    """Base class of objects with random numbers of their own, in ``self.rnd``.

    These are not part of a description: the new object draws another seed. The generator is created
    when first used: many objects never draw, and creating one takes as long as a hundred draws.

    Args:
        seed: A non-negative integer; `None` draws one from `global_rnd`.
    """

    __undescribed__: Any = {"rnd": None, "_first_seed": None}

    def __init__(self, seed: int | None = None) -> None:
        self.begin_at(seed)

    def __init_from_description__(self, description: Mapping[str, Any]) -> None:
        if self._first_seed is None:  # else the constructor was called
            self.begin_at()

    def begin_at(self, seed: int | Callable[[], int] | None = None) -> None:
        """Start the random numbers at a seed, or at the result of a function, called if needed."""
        self.__dict__.pop("rnd", None)
        if not callable(seed):
            seed = _checked(global_rnd.generate_seed() if seed is None else seed)
        self._first_seed = seed

    @cached_property
    def rnd(self) -> RandomState:
        """The generator of the object's random numbers."""
        seed = self._first_seed
        made = RandomState(seed() if callable(seed) else seed)
        return vars(self).setdefault("rnd", made)  # another thread may have made one meanwhile


global_rnd = RandomState(secrets.randbelow(RandomState.seed_range[1]))
