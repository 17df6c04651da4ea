"""Algorithm 2 of the paper, for `DPManifoldDenoiser(mechanism="projector")`.

Noisy averaged projectors and noisy means, scaled with Lemma 2: private under conditions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpmd_fast.arguments import Points
from dpmd_fast.errors import UserValueError
from dpmd_fast.kernels.projectors import LocalGeometry
from dpmd_fast.privacy.budget import Budget, resolve_schedule
from dpmd_fast.privacy.entropy import EntropySource
from dpmd_fast.privacy.guarantee import Guarantee
from dpmd_fast.privacy.noise import lost_in_rounding, noisy_means, noisy_projectors
from dpmd_fast.privacy.paper_guarantee import paper_guarantee
from dpmd_fast.privacy.sensitivity import mean_bound, projector_bound
from dpmd_fast.reference.local_pca import FittedReference, Floats, ReleasedGeometry, denoise


@dataclass(frozen=True)
class ProjectorSpend:
    """Noise scales and guarantee of one run of Algorithm 2, fixed before anything is spent."""

    scales: Floats  # (m, T, 2); infinite: not released
    mu2: float
    guarantee: Guarantee


def plan_spend(
    fitted: FittedReference,
    queries: Points,
    budget: Budget,
    steps: int,
    theta: float,
    schedule: str | ArrayLike | None,
    constant: float,
    seeded: bool,
) -> ProjectorSpend:
    """Divide the budget over queries and steps; refuse a schedule that does not match them or the budget."""
    shares = resolve_schedule(schedule, budget, len(queries), steps, theta)
    n, d, h = len(fitted.bases), fitted.dim, fitted.index.radius
    mu2 = 2.0 * math.fsum(shares.ravel().tolist())
    bounds = np.array([projector_bound(n, d, h, constant), mean_bound(n, d, h, constant)])
    with np.errstate(divide="ignore"):
        scales = bounds / np.sqrt(2.0 * shares)
    if not np.isfinite(scales[shares > 0.0]).all():
        raise UserValueError("schedule holds a share so small that its noise has no finite scale")
    sizes = np.array([1.0, max(h, float(np.abs(queries).max()))])
    guarantee = paper_guarantee(
        budget,
        mu=math.sqrt(mu2),
        n=n,
        dim=d,
        bandwidth=h,
        sensitivity_constant=constant,
        seeded=seeded,
        lemma=2,
        basic_composition=isinstance(schedule, str),
        lost_in_rounding=lost_in_rounding(scales, sizes),
        released="all queries and steps together",
    )
    return ProjectorSpend(scales, mu2, guarantee)


def denoise_with_projectors(
    fitted: FittedReference, queries: Points, spend: ProjectorSpend, steps: int, source: EntropySource
) -> tuple[Floats, NDArray[np.str_]]:
    """Return the points and the status of each query; call it after the debit."""
    return denoise(fitted, queries, steps, _NoisyRelease(spend.scales, source, fitted.n_threads))


@dataclass(frozen=True)
class _NoisyRelease:
    """Gaussian mechanism on projectors and means, with the scales of each query and step."""

    scales: Floats  # (m, T, 2); infinite: not released
    source: EntropySource
    n_threads: int | None

    def __call__(
        self, geometry: LocalGeometry, queries: NDArray[np.intp], step: int, X: Floats
    ) -> ReleasedGeometry:
        projector_scales, mean_scales = self.scales[queries, step].T
        has_projector, has_mean = np.isfinite(projector_scales), np.isfinite(mean_scales)
        D = X.shape[1]
        projectors = geometry.projectors
        return ReleasedGeometry(
            noisy_projectors(
                projectors if has_projector.all() else projectors[has_projector],
                D,
                projector_scales[has_projector],
                self.source,
                self.n_threads,
            ),
            has_projector,
            noisy_means(
                (X + geometry.offsets[:, :D])[has_mean], mean_scales[has_mean], self.source, self.n_threads
            ),
            has_mean,
        )
