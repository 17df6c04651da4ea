"""Search replace-one neighbours for the constant C that a given data set needs.

The result is computed from the reference without noise and is therefore not private: it is a diagnostic for
synthetic data. It is a lower bound on the local sensitivity of one data set, found by searching; the true
value may be larger, and other data sets may need more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpmd_fast.arguments import (
    check_enough,
    checked_geometry,
    checked_integer,
    checked_numbers,
    checked_points,
    checked_steps,
    checked_threads,
)
from dpmd_fast.errors import UserValueError
from dpmd_fast.kernels.eigen.spectra import spectra, top_vectors
from dpmd_fast.kernels.linear import gram, product, weighted
from dpmd_fast.kernels.projectors import local_geometry
from dpmd_fast.privacy.sensitivity import mean_bound, projector_bound
from dpmd_fast.reference.local_pca import fit_reference

Floats = NDArray[np.float64]
_RADII = 40
_REMOVED = 48


@dataclass(frozen=True, eq=False)
class EmpiricalSensitivity:
    """The largest changes found, and the constants C that would cover them."""

    mean_change: float  # |b_x - b'_x|, Lemma 2
    projector_change: float  # |Pw_x - Pw'_x|_F, Lemma 2
    tangent_change: float  # |P_x - P'_x|_F, Lemma 1
    mean_constant: float  # mean_change n h^(d-1)
    projector_constant: float  # projector_change n h^d
    tangent_constant: float  # tangent_change n h^d
    worst_query: int  # row of z where `constant` was found
    worst_record: int  # row of Y that is replaced there
    worst_replacement: Floats = field(repr=False)  # by what
    holds: str = "not private"

    @property
    def constant(self) -> float:
        """The C that Algorithm 2 needs on this data set, by this search: the larger of the two of Lemma 2."""
        return max(self.mean_constant, self.projector_constant)


def empirical_sensitivity(
    Y: ArrayLike,
    z: ArrayLike,
    bandwidth: float,
    dim: int,
    *,
    beta: float = 2.0,
    candidates: int = 24,
    seed: int = 0,
    n_threads: int | None = None,
) -> EmpiricalSensitivity:
    """Search replace-one neighbours of `Y` that move the mean and the projectors at `z` most.

    For the mean, every pair of a promising record and a replacement on a grid of directions and radii is
    evaluated in closed form. For the projectors, the best of those pairs, the pairs that tilt the local
    covariance most and random pairs are evaluated in full, with new local PCA; the best are improved by
    random local search.

    Parameters
    ----------
    Y : array-like of shape (n, D)
        A data set that need not stay private, such as a synthetic one: the result is not private.
    z : array-like of shape (D,) or (m, D)
        Points at which to search; the worst one counts.
    bandwidth, dim, beta
        As for `DPManifoldDenoiser`.
    candidates : int
        About a third of the neighbours that are evaluated in full at each point.
    seed : int
        Seed of the random directions.
    n_threads : int, optional
    """
    reference = np.asarray(checked_points("Y", Y), dtype=np.float64)
    n, D = reference.shape
    h, d, exponent = checked_geometry(bandwidth, dim, beta, D)
    check_enough("Y", n, d)
    points = np.atleast_2d(checked_numbers("z", z))
    queries = np.asarray(checked_points("z", points, columns=D), dtype=np.float64)
    most = checked_steps(candidates, "candidates")
    threads = checked_threads(n_threads)
    rng = np.random.default_rng(checked_integer("seed", seed))
    scale = np.array([mean_bound(n, d, h, 1.0), projector_bound(n, d, h, 1.0), projector_bound(n, d, h, 1.0)])
    best = np.zeros(3)
    worst: tuple[float, int, int, Floats] | None = None
    for q, x in enumerate(queries):
        near = np.flatnonzero(np.einsum("ij,ij->i", reference - x, reference - x) <= 4.0 * h * h)
        inside = np.einsum("ij,ij->i", reference[near] - x, reference[near] - x) <= h * h
        weights = _weights(reference[near][inside] - x, h, exponent)
        if len(weights) < d + 2 or not weights.sum() > 0.0:
            continue
        spot = _Spot(reference[near], inside, x, h, d, exponent, threads, unseen=len(near) < n)
        for changes, record, replacement in spot.search(most, rng):
            best = np.maximum(best, changes)
            constant = float(np.max(changes[:2] / scale[:2]))
            if worst is None or constant > worst[0]:
                row = int(near[record]) if record >= 0 else int(np.setdiff1d(np.arange(n), near)[0])
                worst = (constant, q, row, replacement)
    if worst is None:
        raise UserValueError(
            "z: no point has dim + 2 records of positive weight within the bandwidth; nothing to measure"
        )
    constants = best / scale
    _, query, row, replacement = worst
    return EmpiricalSensitivity(
        mean_change=float(best[0]),
        projector_change=float(best[1]),
        tangent_change=float(best[2]),
        mean_constant=float(constants[0]),
        projector_constant=float(constants[1]),
        tangent_constant=float(constants[2]),
        worst_query=query,
        worst_record=row,
        worst_replacement=replacement,
    )


def _weights(gaps: Floats, h: float, beta: float) -> Floats:
    """Return the kernel weights of records at the differences `gaps` (n, D) from a point."""
    weights: Floats = np.maximum(0.0, 1.0 - np.einsum("ij,ij->i", gaps, gaps) / h**2) ** beta
    return weights


class _Spot:
    """One query point and the records within two bandwidths of it; others have no effect there."""

    def __init__(
        self,
        Y: Floats,
        inside: NDArray[np.bool_],
        x: Floats,
        h: float,
        d: int,
        beta: float,
        n_threads: int | None,
        unseen: bool,
    ) -> None:
        self.unseen = unseen  # whether some record is further away, so that replacing it removes nothing here
        self.Y, self.x, self.h, self.d, self.beta, self.n_threads = Y, x, h, d, beta, n_threads
        self.inside = np.flatnonzero(inside)
        self.ball = Y[self.inside]
        self.weights = _weights(self.ball - x, h, beta)
        self.mass = self.weights.sum()
        self.mean = weighted(self.weights, self.ball) / self.mass
        center = self.ball.mean(axis=0)
        self.scatter = gram(self.ball - center)
        self.axes = spectra(self.scatter)[1][:, ::-1]
        self.averaged = self._averaged_projector(Y)
        self.tangent = product(self.axes[:, :d], self.axes[:, :d].T)

    def search(self, most: int, rng: np.random.Generator) -> list[tuple[Floats, int, Floats]]:
        """Return the changes of (mean, averaged projector, local projector) for promising neighbours."""
        removed = self._removals()
        replacements = self._replacements(rng)
        tables = (self._mean_changes(removed, replacements), self._tilts(removed, replacements))
        found = []
        for table in tables:
            for flat in np.argsort(-table, axis=None, kind="stable")[: max(1, most // 3)]:
                i, j = np.unravel_index(flat, table.shape)
                found.append(self._evaluate(int(removed[i]), replacements[j]))
        for _ in range(max(1, most // 3)):  # also outside the ball, where a record tilts its neighbours' PCA
            ray = rng.normal(size=len(self.x))
            ray *= 2.0 * self.h * rng.random() / _norm(ray)
            found.append(self._evaluate(int(rng.choice(removed)), self.x + ray))
        for which in (1, 2):
            found.extend(self._climb(max(found, key=lambda f: float(f[0][which])), which, most, rng))
        return [(changes, self._row(record), replacement) for changes, record, replacement in found]

    def _climb(
        self, best: tuple[Floats, int, Floats], which: int, most: int, rng: np.random.Generator
    ) -> list[tuple[Floats, int, Floats]]:
        """Improve the neighbour that moves a projector most, by random steps of decreasing length."""
        tried = []
        for step in range(most):
            length = self.h * 0.3 * 0.02 ** (step / most)
            record = best[1] if step % 3 else int(rng.integers(-1 if self.unseen else 0, len(self.ball)))
            trial = self._evaluate(record, best[2] + length * rng.normal(size=len(self.x)))
            tried.append(trial)
            if trial[0][which] > best[0][which]:
                best = trial
        return tried

    def _evaluate(self, record: int, replacement: Floats) -> tuple[Floats, int, Floats]:
        mean = self._mean_changes(np.array([record]), replacement[None])[0, 0]
        projector = self._projector_change(record, replacement)
        return np.array([mean, projector, self._tangent_change(record, replacement)]), record, replacement

    def _row(self, record: int) -> int:
        return int(self.inside[record]) if record >= 0 else -1

    def _removals(self) -> NDArray[np.intp]:
        """Return the records whose removal moves the mean or the scatter most; -1 is one further away."""
        pull = self.weights * np.linalg.norm(self.ball - self.mean, axis=1)
        far = np.linalg.norm(self.ball - self.ball.mean(axis=0), axis=1)
        half = _REMOVED // 2
        chosen = np.concatenate([np.argsort(-one, kind="stable")[:half] for one in (pull, far)])
        return np.concatenate([[-1] if self.unseen else [], np.unique(chosen)]).astype(np.intp)

    def _replacements(self, rng: np.random.Generator) -> Floats:
        """Return points of the ball on many rays, and one far outside."""
        D = len(self.x)
        pull = self.x - self.mean
        axes = self.axes[:, : min(D, 12)].T
        mixed = (axes[: self.d, None] + self.axes[:, self.d : self.d + 3].T[None]).reshape(-1, D)
        rays = np.concatenate([axes, mixed, pull[None], rng.normal(size=(8, D))])
        lengths = np.linalg.norm(rays, axis=1, keepdims=True)
        rays = (rays / np.where(lengths > 0.0, lengths, 1.0))[lengths[:, 0] > 0.0]
        rays = np.concatenate([rays, -rays])
        radii = self.h * (np.arange(_RADII) + 0.5) / _RADII
        grid = self.x + radii[None, :, None] * rays[:, None, :]
        away = self.x + 10.0 * self.h * rays[:1]
        return np.concatenate([grid.reshape(-1, D), away])

    def _mean_changes(self, removed: NDArray[np.intp], replacements: Floats) -> Floats:
        """Return |b - b'| for every pair, in closed form."""
        gap = replacements - self.x
        added = np.maximum(0.0, 1.0 - np.einsum("ij,ij->i", gap, gap) / self.h**2) ** self.beta
        lost = np.where(removed >= 0, self.weights[removed], 0.0)
        out = -lost[:, None, None] * (self.ball[removed] - self.mean)[:, None, :]
        out = out + (added[:, None] * (replacements - self.mean))[None]
        mass = self.mass - lost[:, None] + added[None, :]
        changes: Floats = np.linalg.norm(out, axis=2) / np.maximum(mass, 1e-300)
        return changes

    def _tilts(self, removed: NDArray[np.intp], replacements: Floats) -> Floats:
        """Return the first-order rotation of the tangent space by every pair."""
        center = self.ball.mean(axis=0)
        values = np.einsum("ij,ik,kj->j", self.axes, self.scatter, self.axes)
        gaps = np.maximum(values[: self.d, None] - values[None, self.d :], 1e-300)
        new = product(replacements - center, self.axes)
        gap = replacements - self.x
        seen = np.einsum("ij,ij->i", gap, gap) <= self.h**2
        new = np.where(seen[:, None], new, 0.0)
        old = np.where(removed[:, None] >= 0, product(self.ball[removed] - center, self.axes), 0.0)

        def coupling(points: Floats) -> Floats:
            coupled: Floats = points[:, : self.d, None] * points[:, None, self.d :] / gaps
            return coupled

        turns = coupling(new)[None] - coupling(old)[:, None]
        tilts: Floats = np.sqrt(np.einsum("ijkl,ijkl->ij", turns, turns))
        return tilts

    def _averaged_projector(self, Y: Floats) -> Floats:
        fitted = fit_reference(Y, self.h, self.d, self.beta, self.n_threads)
        geometry = local_geometry(fitted.index, fitted.bases, self.x[None], self.beta, self.n_threads)
        D = len(self.x)
        return geometry.projectors[0, :D, :D]

    def _projector_change(self, record: int, replacement: Floats) -> float:
        Y = self.Y if record < 0 else np.delete(self.Y, self.inside[record], axis=0)
        return _norm(self._averaged_projector(np.vstack([Y, replacement])) - self.averaged)

    def _tangent_change(self, record: int, replacement: Floats) -> float:
        ball = self.ball if record < 0 else np.delete(self.ball, record, axis=0)
        if np.sum((replacement - self.x) ** 2) <= self.h**2:
            ball = np.vstack([ball, replacement])
        center = ball.mean(axis=0)
        axes = top_vectors(gram(ball - center), self.d)
        return _norm(product(axes, axes.T) - self.tangent)


def _norm(values: Floats) -> float:
    """Return the norm of all values. The last bits of NumPy's, from BLAS, depend on the processor."""
    return float(np.sqrt((values * values).sum()))
