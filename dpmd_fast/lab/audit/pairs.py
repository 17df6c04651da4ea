"""Neighbouring data sets for the audits: their exact sums, their noise, and what an attacker sees."""

from __future__ import annotations

import math
import mmap
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from dpmd_fast.kernels.search.index import build_index
from dpmd_fast.kernels.sums.exact import MomentSums
from dpmd_fast.mechanisms.moments import natural_tau
from dpmd_fast.models.geometry.tuning import HOMOGENEOUS
from dpmd_fast.privacy.entropy import EntropySource, open_source
from dpmd_fast.privacy.guarantee import Adjacency
from dpmd_fast.privacy.lattice import Lattice, choose_lattice
from dpmd_fast.privacy.noise import noisy_sums

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_SAME = 1e-9  # floor of squared distances between two draws of noise


class Part(NamedTuple):
    """One release: the sums (K, F, F) of both neighbours, and its lattice."""

    first: Integers
    second: Integers
    lattice: Lattice

    def side(self, side: int) -> Integers:
        """Return the sums of one neighbour."""
        return self.second if side else self.first

    def narrowed(self) -> Part:
        """Drop the locations where the neighbours agree: the noise there reveals nothing."""
        differ = (self.first != self.second).any(axis=(1, 2))
        return Part(self.first[differ], self.second[differ], self.lattice)


class Pair:
    """Two neighbours in one release or several, each with fresh noise.

    Parameters
    ----------
    parts : sequence of Part
    lattice : Lattice, optional
        Lattice of the noise, for a broken mechanism; by default that of each part.
    projected : bool
        Show the attacker one number per part, the projection onto the difference, instead of every entry.

    Notes
    -----
    Coordinates are the diagonal entries and sqrt(2) times those above the diagonal, in standard deviations of
    the noise, relative to the midpoint of the neighbours: the noise is N(0, 1) in each coordinate, and the
    distance of the neighbours is their mu.
    """

    def __init__(
        self, parts: Sequence[Part], *, lattice: Lattice | None = None, projected: bool = False
    ) -> None:
        self._parts = [part.narrowed() for part in parts]
        self._lattice = lattice
        self._projected = projected
        self._entropy = open_source()
        sides = [
            [
                _entries(part.side(side)[None].astype(np.float64)) / part.lattice.deviation
                for part in self._parts
            ]
            for side in (0, 1)
        ]
        self._middles = [0.5 * (one + other) for one, other in zip(*sides, strict=True)]
        self._differences = [(other - one)[0] for one, other in zip(*sides, strict=True)]
        self.mu = math.sqrt(sum(float(gap @ gap) for gap in self._differences))
        if lattice is not None:
            self.mu *= self._parts[0].lattice.deviation / lattice.deviation

    @property
    def direction(self) -> Floats:
        """Return the noiseless difference of the neighbours, in the coordinates of `draw`."""
        if self._projected:
            return np.array([np.linalg.norm(gap) for gap in self._differences])
        return np.concatenate(self._differences)

    def draw(self, side: int, count: int) -> Floats:
        """Draw fresh releases of one neighbour, as rows."""
        return self.shown([self.noisy(part, side, count) for part in self._parts])

    def noisy(self, part: Part, side: int, count: int, n_threads: int | None = None) -> Floats:
        """Return noisy values (count, K, F, F) of independent releases, laid out as locations."""
        sums = part.side(side)
        lattice = part.lattice if self._lattice is None else self._lattice
        tiled = np.tile(sums, (count, 1, 1))
        return noisy_sums(tiled, lattice, self._entropy, n_threads).reshape(count, *sums.shape)

    def shown(self, values: Sequence[Floats]) -> Floats:
        """Return what the attacker sees of the values of each part."""
        rows = []
        for part, noisy, middle, gap in zip(
            self._parts, values, self._middles, self._differences, strict=True
        ):
            seen = _entries(noisy) / part.lattice.noise_scale - middle
            rows.append(seen @ (gap / np.linalg.norm(gap))[:, None] if self._projected else seen)
        return np.concatenate(rows, axis=1)


class ForkedPair(Pair):
    """Two releases, each made in its own forked child from one source that the parent opened."""

    def __init__(self, parts: Sequence[Part], source: EntropySource) -> None:
        super().__init__(parts)
        self._entropy = source

    def draw(self, side: int, count: int) -> Floats:
        shapes = [(count, *part.side(side).shape) for part in self._parts]
        buffers = [mmap.mmap(-1, 8 * math.prod(shape)) for shape in shapes]
        for part, buffer in zip(self._parts, buffers, strict=True):
            _in_child(partial(self._fill, buffer, part, side, count))
        values = [np.frombuffer(buffer).reshape(shape) for buffer, shape in zip(buffers, shapes, strict=True)]
        # a broken source does not advance here when the children draw: skip what they have used
        self._entropy.words(4 * sum(len(buffer) for buffer in buffers) // 8)
        return self.shown(values)

    def _fill(self, buffer: mmap.mmap, part: Part, side: int, count: int) -> None:
        values = self.noisy(part, side, count, n_threads=1)
        np.frombuffer(buffer).reshape(values.shape)[:] = values


def _in_child(work: Callable[[], object]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child enters no parallel region
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    if os.waitpid(pid, 0)[1] != 0:
        raise RuntimeError("a forked child of the audit failed")


def _entries(values: Floats) -> Floats:
    """Return the diagonals, then sqrt(2) times the entries above them, of (count, K, F, F), as rows."""
    count, K, F, _ = values.shape
    j, k = np.triu_indices(F, 1)
    diagonal = np.arange(F)
    return np.concatenate(
        [
            values[:, :, diagonal, diagonal].reshape(count, K * F),
            math.sqrt(2.0) * values[:, :, j, k].reshape(count, K * len(j)),
        ],
        axis=1,
    )


def log_ratio(part: Part, values: Floats) -> float:
    """Return the log likelihood ratio of one release, second neighbour over first."""
    step, scale = part.lattice.step, part.lattice.noise_scale
    gap = step * (part.second - part.first)
    return float(((values - 0.5 * step * (part.first + part.second)) * gap).sum()) / (scale * scale)


def run_scores(parts: Sequence[Part], values: Sequence[Floats]) -> list[float]:
    """Return an attacker's scores for all releases of one run.

    The first is the log likelihood ratio of the second neighbour over the first. Then, for every two
    releases: how much better the noise of one repeats that of the other, in drawing order, if the
    second neighbour was the true one.
    """
    scores = [sum(map(log_ratio, parts, values))]
    noise = [[_drawn(*one, side) for one in zip(parts, values, strict=True)] for side in (0, 1)]
    for one, other in combinations(range(len(parts)), 2):
        apart = []
        for drawn in noise:
            common = min(len(drawn[one]), len(drawn[other]))
            gap = drawn[one][:common] - drawn[other][:common]
            apart.append(float(gap @ gap) + _SAME)
        scores.append(math.log(apart[0] / apart[1]))
    return scores


def _drawn(part: Part, values: Floats, side: int) -> Floats:
    """Return the noise on the diagonals, which is drawn first, assuming `side` was released."""
    steps = values / part.lattice.step - part.side(side)
    return np.asarray(np.diagonal(steps, axis1=1, axis2=2).ravel() / part.lattice.deviation)


class Setting:
    """The public settings of a release of moments: everything that fixes the sums of a data set."""

    def __init__(
        self,
        locations: Floats,
        bandwidth: float,
        mu: float,
        *,
        share: float = 1.0,
        adjacency: Adjacency = "replace-one",
    ) -> None:
        self.locations, self.bandwidth, self.adjacency = locations, bandwidth, adjacency
        self.index = build_index(locations, bandwidth)
        self.tau = share * natural_tau(self.index, 2.0)
        self.lattice = choose_lattice(mu, self.tau, adjacency)

    def sums(self) -> MomentSums:
        """Return empty sums."""
        return MomentSums(self.index, 2.0, self.tau, self.lattice.steps, HOMOGENEOUS)

    def total(self, records: Floats) -> Integers:
        """Return the sums of a data set."""
        sums = self.sums()
        sums.add(records)
        return sums.total()

    def part(self, first: Floats, second: Floats) -> Part:
        """Return the release of two data sets."""
        return Part(self.total(first), self.total(second), self.lattice)


def farthest(contributions: Sequence[Integers]) -> tuple[int, int]:
    """Return the two records whose contributions are farthest apart."""
    rows = np.array([contribution.ravel() for contribution in contributions], dtype=np.float64)
    gram = rows @ rows.T
    squares = np.diag(gram)
    apart = squares[:, None] + squares[None, :] - 2.0 * gram
    i, j = np.unravel_index(int(np.argmax(apart)), apart.shape)
    return int(i), int(j)


def candidates(locations: Floats, bandwidth: float, rng: np.random.Generator) -> Floats:
    """Return the worst records of the property tests: on locations, near, and of longest contribution."""
    D = locations.shape[1]
    rays = rng.normal(size=(3 * len(locations), D))
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    longest = bandwidth * math.sqrt((1.0 - 2.0 * HOMOGENEOUS) / 3.0)
    around = np.repeat(locations, 3, axis=0)
    near = bandwidth * rng.uniform(0.0, 1.0, (len(rays), 1))
    return np.concatenate([locations, around + longest * rays, around + near * rays])


class Call(NamedTuple):
    """The arguments and the result of one call."""

    arguments: tuple[Any, ...]
    result: Any


@contextmanager
def recorded(owner: Any, name: str) -> Iterator[list[Call]]:
    """Record the calls of a function without changing it; arrays are copied before the call."""
    original = getattr(owner, name)
    calls: list[Call] = []

    def recording(*arguments: Any) -> Any:
        before = tuple(a.copy() if isinstance(a, np.ndarray) else a for a in arguments)
        result = original(*arguments)
        calls.append(Call(before, result))
        return result

    with patch.object(owner, name, recording):
        yield calls
