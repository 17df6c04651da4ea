"""The parts of a report about a mixture: its components and columns, from released numbers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpmd_fast.kernels.eigen.spectra import spectra
from dpmd_fast.kernels.linear import cholesky, lower_inverse, product, weighted
from dpmd_fast.models.gaussians.tuning import LEAST_MASS
from dpmd_fast.models.mixture import Mixture
from dpmd_fast.models.preprocessor import Floats
from dpmd_fast.report.mixture_plots import component_map
from dpmd_fast.report.parts import Table, number, percent
from dpmd_fast.report.plots import Picture, shortened

COLUMNS_SHOWN = 60  # of a table
_COMPONENTS_SHOWN = 40
_ROUNDING = 1e-12  # of correlations: columns that repeat each other
_TRAITS_SHOWN = 3  # columns in which a component differs most from the whole


@dataclass(frozen=True)
class Whole:
    """A mixture as one distribution, and its columns in their own units.

    Attributes
    ----------
    mean : array (D,)
    covariance : array (D, D)
    spread : array (D,)
        Standard deviations; all in preprocessed units.
    names : list of str
    """

    mixture: Mixture
    mean: Floats
    covariance: Floats
    spread: Floats
    names: list[str]

    def scale(self, column: int) -> float:
        """Size of the preprocessed unit in the column's own; of a logged column relative to its value."""
        preprocess = self.mixture.preprocess
        return 1.0 if preprocess is None else preprocess.scale[column]

    def logged(self, column: int) -> bool:
        preprocess = self.mixture.preprocess
        return preprocess is not None and preprocess.log[column]

    def deviation(self, column: int, value: float) -> str:
        """Return a deviation in preprocessed units as a text: in the column's unit, or relative."""
        size = value * self.scale(column)
        return percent(size, 1.0) if self.logged(column) else number(size, 3)

    @property
    def center(self) -> Floats:
        """The mean in own units (D,)."""
        preprocess = self.mixture.preprocess
        return self.mean if preprocess is None else np.asarray(preprocess.inverse(self.mean[None])[0])


def whole_of(mixture: Mixture, names: Sequence[str] | None) -> Whole:
    """Return mean and covariance of a mixture."""
    mean: Floats = weighted(mixture.weights, mixture.means)
    gaps = mixture.means - mean
    within = weighted(mixture.weights, mixture.covariances)
    covariance: Floats = within + weighted(mixture.weights, gaps[:, :, None] * gaps[:, None, :])
    labels = [f"column {j}" for j in range(mixture.n_columns)] if names is None else list(names)
    return Whole(mixture, mean, covariance, np.sqrt(np.diagonal(covariance)), labels)


@dataclass(frozen=True)
class Components:
    sentence: str
    table: Table
    picture: Picture | None
    columns: Table
    columns_note: str


def components_of(whole: Whole) -> Components:
    """Describe the components and what they say of the columns."""
    mixture = whole.mixture
    K, D = mixture.means.shape
    sentence = (
        f"The records were released as {K} normal distribution{'s' if K > 1 else ''}, the components. The "
        "weight of a component is its share of the records; its mass is the number of records behind it. "
        f"Components whose mass was below {LEAST_MASS:g} deviations of its noise were left out."
    )
    if K == 1:
        sentence += " With one component, cleaning is a linear filter."
    order = np.argsort(-mixture.weights, kind="stable")[:_COMPONENTS_SHOWN]
    rows = [
        (
            str(k + 1),
            percent(float(mixture.weights[k]), 1.0),
            number(mixture.signal_to_noise[k], 3),
            number(float(np.sqrt(np.trace(mixture.covariances[k]) / np.trace(whole.covariance))), 3),
            _traits(whole, int(k)),
        )
        for k in order
    ]
    header = (
        "component",
        "weight",
        "mass over noise",
        "size, whole = 1",
        "differs most in (spreads of the column)",
    )
    shown = min(D, COLUMNS_SHOWN)
    note = (
        "Mean and spread (standard deviation) of each column in its own unit; of a logged column the "
        "geometric mean and the relative spread. Told by the others: the share of its variance that a linear "
        "guess from the other columns explains, hence how well a missing value can be known."
    )
    if shown < D:
        note += f" The first {shown} of {D:,} columns."
    return Components(sentence, Table(header, rows), _map(whole), _columns(whole, shown), note)


def _traits(whole: Whole, component: int) -> str:
    gaps = (whole.mixture.means[component] - whole.mean) / whole.spread
    most = np.argsort(-np.abs(gaps), kind="stable")[:_TRAITS_SHOWN]
    return ", ".join(f"{shortened(whole.names[j])} {gaps[j]:+.1f}" for j in most)


def _columns(whole: Whole, shown: int) -> Table:
    correlation = whole.covariance / whole.spread[:, None] / whole.spread
    inverse = lower_inverse(cholesky(correlation + _ROUNDING * np.eye(len(correlation))))
    alone = 1.0 / (inverse**2).sum(axis=0)  # variance that the other columns leave
    center = whole.center
    rows = [
        (
            whole.names[j] + (" (logged)" if whole.logged(j) else ""),
            number(float(center[j])),
            whole.deviation(j, float(whole.spread[j])),
            percent(max(0.0, 1.0 - float(alone[j])), 1.0),
        )
        for j in range(shown)
    ]
    return Table(("column", "mean", "spread", "told by the others"), rows)


def _map(whole: Whole) -> Picture | None:
    """Draw the components in the two directions in which the whole mixture varies most."""
    mixture = whole.mixture
    if mixture.n_columns < 2:
        return None
    values, vectors = spectra(whole.covariance)
    axes = vectors[:, [-1, -2]]
    shares = values[[-1, -2]] / values.sum()
    names = [f"principal axis {j + 1} ({100.0 * share:.3g} % of variance)" for j, share in enumerate(shares)]
    inside = np.einsum("ia,kij,jb->kab", axes, mixture.covariances, axes)
    return component_map(
        mixture.weights,
        product(mixture.means - whole.mean, axes),
        inside,
        product(product(axes.T, whole.covariance), axes),
        names,
    )
