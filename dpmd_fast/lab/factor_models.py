"""Simulated tables of records in groups, each group a factor model, with the exact posterior of clean points.

A record of group k is ``m_k + L_k f + 0.2 e`` with normal factors f and errors e, so that a group is
Gaussian with covariance ``L_k L_k^T + 0.04 I``. Variants have heavy tails (the difference of a record to
its centre is divided by one random number, which makes it multivariate t), a column of zeros and ones, or
columns in wild units. All of them are mixtures of Gaussians with known parameters, exactly or (tails) as
closely as one likes. So the best guess of a clean point is known: no method can have a smaller expected
error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import gamma

from dpmd_fast.lab.baselines.gaussians import Floats, Gaussians
from dpmd_fast.models.preprocessor import Preprocessor

OWN = 0.2  # standard deviation of each column's own error
LOADING = 0.8  # standard deviation of a loading
MAD_TO_DEVIATION = 1.4826  # for a normal column
LOG_SCALE = 0.25  # of a logged column: exp(LOG_SCALE * value)
CLIP = 100.0  # public limit of a column in its public units: beyond the tails of every model here
_TAIL_NODES = 40


@dataclass(frozen=True)
class FactorCase:
    """What to simulate.

    Parameters
    ----------
    name : str
    columns, groups, records : int
        D, number of factor models, n.
    noise : float
        Standard deviation of the normal noise on each column of a query.
    factors : int
        Of each group.
    spread : float
        Standard deviation of a coordinate of the groups' centres; 1 is near, 4 far apart.
    weights : tuple of float, optional
        Of the groups; by default random, of like size.
    tails : float, optional
        Degrees of freedom of t-distributed records.
    binary : bool
        The first column is 0 or 1, with a probability that depends on the group.
    scale_error : float
        Public scales of the columns are wrong by this factor, up and down in turn.
    wild : bool
        Columns in units from 1e-6 to 1e6 with large offsets; every fifth is positive, skewed and logged.
    """

    name: str
    columns: int
    groups: int
    records: int
    noise: float = 0.7
    factors: int = 4
    spread: float = 1.0
    weights: tuple[float, ...] | None = None
    tails: float | None = None
    binary: bool = False
    scale_error: float = 1.0
    wild: bool = False


@dataclass(frozen=True, eq=False)
class FactorModel:
    """Parameters of the groups in natural units, drawn for a case."""

    case: FactorCase
    weights: Floats
    centres: Floats
    loadings: Floats
    ones: Floats  # probability of a one in the binary column, for each group

    @classmethod
    def draw(cls, case: FactorCase, rng: np.random.Generator) -> FactorModel:
        D, K = case.columns, case.groups
        centres = case.spread * rng.normal(size=(K, D))
        loadings = LOADING * rng.normal(size=(K, D, case.factors))
        drawn = rng.dirichlet(np.full(K, 5.0))
        weights = drawn if case.weights is None else np.array(case.weights) / sum(case.weights)
        return cls(case, weights, centres, loadings, np.where(np.arange(K) % 2 == 0, 0.15, 0.8))

    def sample(self, n: int, rng: np.random.Generator) -> Floats:
        """Return n records (n, D) in natural units."""
        D, K = self.case.columns, self.case.groups
        groups = rng.choice(K, n, p=self.weights)
        factors = rng.normal(size=(n, self.case.factors))
        apart = OWN * rng.normal(size=(n, D))
        for k in range(K):
            own = groups == k
            apart[own] += factors[own] @ self.loadings[k].T
        if self.case.tails is not None:
            chi_squares = rng.chisquare(self.case.tails, size=(n, 1))
            apart /= np.sqrt(chi_squares / self.case.tails)
        records: Floats = self.centres[groups] + apart
        if self.case.binary:
            records[:, 0] = rng.random(n) < self.ones[groups]
        return records

    def truth(self) -> Gaussians:
        """Return the distribution of records as a mixture of Gaussians.

        A group with a binary column is two components in which that column is constant. Heavy tails are a
        scale mixture of normals, here with 40 scales.
        """
        covariances = self.loadings @ self.loadings.transpose(0, 2, 1) + OWN**2 * np.eye(self.case.columns)
        found = Gaussians(self.weights, self.centres, covariances)
        if self.case.tails is not None:
            found = _with_tails(found, self.case.tails)
        if self.case.binary:
            found = _with_binary_column(found, np.tile(self.ones, len(found.weights) // len(self.ones)))
        return found


@dataclass(frozen=True, eq=False)
class Units:
    """The columns' units: ``offset + factor * value``; ``factor * exp(LOG_SCALE * value)`` if logged."""

    factor: Floats
    offset: Floats
    logged: np.ndarray[tuple[int], np.dtype[np.bool_]]

    @classmethod
    def draw(cls, case: FactorCase, rng: np.random.Generator) -> Units:
        D = case.columns
        if not case.wild:
            return cls(np.ones(D), np.zeros(D), np.zeros(D, dtype=bool))
        factor = 10.0 ** rng.uniform(-6.0, 6.0, size=D)
        logged = np.arange(D) % 5 == 1
        return cls(factor, np.where(logged, 0.0, factor * rng.uniform(-50.0, 50.0, size=D)), logged)

    def original(self, values: Floats) -> Floats:
        """Return natural values in original units."""
        logs = np.exp(LOG_SCALE * np.where(self.logged, values, 0.0))
        return np.where(self.logged, self.factor * logs, self.offset + self.factor * values)

    def natural(self, values: Floats) -> Floats:
        """Undo `original`."""
        positive = np.where(self.logged, values / self.factor, 1.0)
        return np.where(self.logged, np.log(positive) / LOG_SCALE, (values - self.offset) / self.factor)

    def natural_deviations(self, values: Floats, deviations: Floats) -> Floats:
        """Return standard deviations at original `values` in natural units, by the slope of the logarithm."""
        slope = np.where(self.logged, LOG_SCALE * values, self.factor)
        return deviations / slope

    def preprocessor(self, center: Floats, scale: Floats) -> Preprocessor:
        """Return the preprocessor whose units are ``(natural - center) / scale``."""
        return Preprocessor(
            tuple(
                np.where(
                    self.logged, LOG_SCALE * center + np.log(self.factor), self.offset + self.factor * center
                ).tolist()
            ),
            tuple((scale * np.where(self.logged, LOG_SCALE, self.factor)).tolist()),
            tuple(self.logged.tolist()),
            CLIP,
        )


@dataclass(frozen=True, eq=False)
class FactorData:
    """Records, queries before and after noise, all in natural units, and public numbers of the columns."""

    case: FactorCase
    truth: Gaussians
    units: Units
    records: Floats
    clean: Floats
    queries: Floats
    center: Floats
    scale: Floats

    @classmethod
    def draw(cls, case: FactorCase, queries: int, seed: int) -> FactorData:
        """Return data that depend on the case and the seed alone.

        Medians and MADs of the clean queries stand for what is publicly known about each column.
        """
        rng = np.random.default_rng(seed)
        model = FactorModel.draw(case, rng)
        records, clean = model.sample(case.records, rng), model.sample(queries, rng)
        noisy = clean + case.noise * rng.normal(size=clean.shape)
        center = np.median(clean, axis=0)
        scale = MAD_TO_DEVIATION * np.median(np.abs(clean - center), axis=0)
        if case.binary:
            center[0], scale[0] = 0.5, 0.5
        scale *= case.scale_error ** np.where(np.arange(case.columns) % 2 == 0, 1.0, -1.0)
        units = Units.draw(case, rng)
        return cls(case, model.truth(), units, records, clean, noisy, center, scale)

    def scaled(self, values: Floats) -> Floats:
        """Return natural values in public units."""
        scaled: Floats = (values - self.center) / self.scale
        return scaled


def _with_tails(model: Gaussians, degrees: float) -> Gaussians:
    """Return the mixture whose components have covariance S / u, u gamma distributed with mean 1."""
    law = gamma(0.5 * degrees, scale=2.0 / degrees)
    edges = np.geomspace(law.ppf(1e-7), law.ppf(1.0 - 1e-5), _TAIL_NODES + 1)
    nodes = np.sqrt(edges[:-1] * edges[1:])
    shares = np.diff(law.cdf(edges))
    shares /= shares.sum()
    return Gaussians(
        np.concatenate([share * model.weights for share in shares]),
        np.concatenate([model.means] * len(nodes)),
        np.concatenate([model.covariances / node for node in nodes]),
    )


def _with_binary_column(model: Gaussians, ones: Floats) -> Gaussians:
    """Return the mixture with its first column replaced by 0 or 1, a one with probability `ones`."""
    covariances = model.covariances.copy()
    covariances[:, 0, :] = 0.0
    covariances[:, :, 0] = 0.0
    means = []
    for value in (0.0, 1.0):
        these = model.means.copy()
        these[:, 0] = value
        means.append(these)
    return Gaussians(
        np.concatenate([model.weights * (1.0 - ones), model.weights * ones]),
        np.concatenate(means),
        np.concatenate([covariances, covariances]),
    )
