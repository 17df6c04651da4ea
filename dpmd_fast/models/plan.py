"""`plan`: will a release help these public points, and which one? Nothing is spent, no reference is read."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from dpmd_fast.arguments import (
    check_anchors,
    checked_bandwidth,
    checked_choice,
    checked_cover,
    checked_integer,
    checked_points,
    checked_threads,
    is_auto,
    shown,
)
from dpmd_fast.columns import names_of
from dpmd_fast.errors import UserValueError
from dpmd_fast.models.geometry.anchors import Floats, thinned
from dpmd_fast.models.mixture_cleaner import checked_noise
from dpmd_fast.models.predict_atlas import AtlasPrediction, enough_epsilon, predict_atlas
from dpmd_fast.models.predict_mixture import MixturePrediction, predict_mixture
from dpmd_fast.models.preprocessor import Preprocessor, units_of
from dpmd_fast.models.public_only import PublicErrors, check_noise_fits, judge_queries, root
from dpmd_fast.models.verdict import (
    DATA_UNITS,
    HELPS,
    MADS,
    SHAPE_COLUMNS,
    SHAPE_POINTS,
    WORDS,
    Verdict,
)
from dpmd_fast.privacy.budget import Budget, check_budget
from dpmd_fast.privacy.guarantee import Adjacency

_PAIRS_PER_SECOND = 2e9  # products of features summed on one core, for a rough estimate of time


class ColumnError(NamedTuple):
    """Errors of one value of a column, in its own unit; of a logged column relative to the value."""

    name: str
    raw: float
    predicted: float


@dataclass(frozen=True)
class Plan:
    """What a release would do for public points.

    Attributes
    ----------
    verdict : "helps", "no gain", "harm likely" or "not enough records"
    model : "atlas", "mixture" or "nothing"
        What to release.
    candidate : "atlas" or "mixture"
        The better model, whether it helps or not: what is released if the risk is accepted.
    advice : str
        What was chosen and why, in one or two sentences.
    raw_error, predicted_error, public_only_error : float
        Root mean squared error of one value of the public points, in preprocessed units, without a
        preprocessor in median absolute deviations of the columns: as it is (the noise; for a missing value
        that of the median), after the model, and after the best that the public points can do by themselves.
        Without `noise`, an estimate in the units of the data; NaN where there is none.
    unit : str
        Of these errors, in words.
    columns : tuple of ColumnError
        The same in the unit of each column, if the noise is known.
    atlas : AtlasPrediction or None
    mixture : MixturePrediction or None
        What was weighed.
    mu2 : float
        What would be spent.
    """

    verdict: str
    model: str
    candidate: str
    advice: str
    raw_error: float
    predicted_error: float
    public_only_error: float
    unit: str
    columns: tuple[ColumnError, ...]
    atlas: AtlasPrediction | None
    mixture: MixturePrediction | None
    mu2: float
    recommended_epsilon: float  # smallest, in steps of sqrt(2), with enough signal for three rounds; NaN
    seconds: float  # rough time of an atlas's sums on one core; reading adds to it

    @property
    def _chosen(self) -> AtlasPrediction | MixturePrediction:
        chosen = self.atlas if self.candidate == "atlas" else self.mixture
        assert chosen is not None
        return chosen

    @property
    def rounds(self) -> int:
        return self._chosen.rounds

    @property
    def signal_to_noise(self) -> float:
        """Of an atlas the median mass of an anchor over its noise, of a mixture records over noise."""
        return self._chosen.signal_to_noise

    @property
    def bandwidth(self) -> float | None:
        """The first bandwidth of the atlas; "auto" may continue with a smaller one."""
        return None if self.atlas is None else self.atlas.bandwidth

    @property
    def dim(self) -> int | None:
        return None if self.atlas is None else self.atlas.dim

    @property
    def anchors(self) -> int | None:
        return None if self.atlas is None else self.atlas.anchors

    @property
    def reach(self) -> float | None:
        """Share of the public points that the atlas would reach."""
        return None if self.atlas is None else self.atlas.reach

    @property
    def noise_error(self) -> float | None:
        """Distance from the surface that the noise of the releases would leave."""
        return None if self.atlas is None else self.atlas.noise_error

    @property
    def bias_error(self) -> float | None:
        """Distance from the points that the shape of the atlas would leave."""
        return None if self.atlas is None else self.atlas.bias_error

    @property
    def components(self) -> int | None:
        return None if self.mixture is None else self.mixture.components


class PublicSide(NamedTuple):
    """The units of the columns, the noise in them, and what the public points can do by themselves."""

    units: Preprocessor
    noise: Floats  # (D,)
    errors: PublicErrors
    scale: Floats  # (D,), units in which an atlas works for one of the above

    @property
    def noise_for_atlas(self) -> Floats:
        """The noise (D,) in the units in which an atlas works: those of the data without a preprocessor."""
        return self.noise * self.scale

    @property
    def alone_for_atlas(self) -> float:
        """Error of the best that the points can do by themselves, in the units in which an atlas works."""
        return root(self.errors.alone * self.scale**2)

    def squares(self, by_column: tuple[float, ...]) -> Floats:
        """Return mean squared errors (D,) of the columns, in MADs, from errors in the units of an atlas."""
        squares: Floats = (np.array(by_column) / self.scale) ** 2
        return squares


def judge_public(
    points: Floats,
    names: tuple[str, ...] | None,
    noise: Any,
    preprocess: Preprocessor | None,
    name: str,
    n_threads: int | None,
) -> PublicSide:
    """Judge public points (m, D) in original units, NaN where missing, called `name` in messages."""
    units = units_of(points, names, name) if preprocess is None else preprocess
    deviations = checked_noise(noise, points.shape[1], units.column_names, units)
    inside = units.forward_block(points, name)
    check_noise_fits(points, deviations, units)
    scale = np.array(units.scale) if preprocess is None else np.ones(len(deviations))
    return PublicSide(units, deviations, judge_queries(inside, deviations, n_threads), scale)


def plan(
    anchors: Any,
    n: int,
    *,
    budget: Budget,
    dim: int | Literal["auto"] = "auto",
    noise: Any = None,
    model: str = "auto",
    bandwidth: float | Literal["auto"] = "auto",
    cover: float = 0.3,
    components: int | Literal["auto"] = "auto",
    rounds: int | Literal["auto"] = "auto",
    adjacency: Adjacency = "replace-one",
    preprocess: Preprocessor | None = None,
    n_threads: int | None = None,
) -> Plan:
    """Predict whether an atlas or a mixture of `n` records helps public points, and by how much.

    Parameters
    ----------
    anchors : array or table (m, D)
        The public points: the queries, or points like them. NaN are missing values.
    n : int
        Number of private records, if it is public, or a public guess.
    noise : number, array (D,) or mapping, optional
        Deviation of the measurement error of the points: a number or an array in preprocessed units, without
        a preprocessor in median absolute deviations of the columns; or by column name in the column's own
        unit. Without it a mixture cannot be weighed, and an atlas only for points that are clearly near a
        surface.
    model : "auto", "atlas" or "mixture"
        What to weigh.
    dim, bandwidth, cover
        As for `release_atlas`.
    components, rounds
        As for `release_mixture`.
    budget, adjacency, preprocess
    n_threads : int, optional
    """
    points = np.asarray(checked_points("anchors", anchors, missing=True), dtype=np.float64)
    names = names_of(anchors)
    if preprocess is not None and not isinstance(preprocess, Preprocessor):
        raise UserValueError(
            f"preprocess = {shown(preprocess)}: must be a Preprocessor or None", argument="preprocess"
        )
    if preprocess is not None:
        if preprocess.n_columns != points.shape[1]:
            raise UserValueError(
                f"anchors has {points.shape[1]} columns: must have {preprocess.n_columns}, like the "
                "preprocessor"
            )
        preprocess.check_names("anchors", names)
    n = checked_integer("n", n, minimum=1)
    check_budget(budget)
    checked_choice("adjacency", adjacency, ("replace-one", "add-remove"))
    checked_choice("model", model, ("auto", "atlas", "mixture"))
    n_threads = checked_threads(n_threads)
    d = None if is_auto("dim", dim) else checked_integer("dim", dim, minimum=1)
    h = None if is_auto("bandwidth", bandwidth) else checked_bandwidth(bandwidth)
    cover = checked_cover(cover)
    if model == "mixture" and noise is None:
        raise UserValueError("noise = None: must be given to weigh a mixture", argument="noise")
    public = None if noise is None else judge_public(points, names, noise, preprocess, "anchors", n_threads)
    atlas = mixture = None
    complete = not np.isnan(points).any()
    if model == "atlas" and not complete:
        checked_points("anchors", anchors)  # refuses missing values
    weighed = complete and points.shape[1] > 1
    if weighed and public is not None:  # if not, there is a mixture to weigh
        enough = SHAPE_POINTS * min(points.shape[1], SHAPE_COLUMNS)
        weighed = len(points) >= enough and bool(public.noise.any())
    if model == "atlas" or (model == "auto" and weighed):
        Z = thinned(points if preprocess is None else preprocess.forward_block(points, "anchors"))
        check_anchors(Z, d)
        atlas = predict_atlas(
            Z,
            n,
            budget,
            dim=d,
            bandwidth=h,
            cover=cover,
            adjacency=adjacency,
            noise=None if public is None else public.noise_for_atlas,
            alone=math.nan if public is None else public.alone_for_atlas,
            unit=DATA_UNITS if preprocess is None else "",
            n_threads=n_threads,
        )
    if model != "atlas" and public is not None:
        mixture = predict_mixture(
            n,
            points.shape[1],
            budget,
            public.errors,
            components=components,
            rounds=rounds,
            adjacency=adjacency,
            smoothed=None
            if atlas is None or not atlas.public_only_by_column
            else public.squares(atlas.public_only_by_column),
            unit=MADS if preprocess is None else "",
        )
    if atlas is None and mixture is None:
        raise UserValueError(
            "noise = None: must be given for anchors with missing values or one column", argument="noise"
        )
    made = _plan(atlas, mixture, public, n, budget)
    unit = "preprocessed units"
    if preprocess is None:
        unit = "the units of the data" if public is None else "MADs of the columns"
    return replace(made, unit=unit)


def _better(
    atlas: AtlasPrediction | None, mixture: MixturePrediction | None, public: PublicSide | None
) -> tuple[str, AtlasPrediction | MixturePrediction]:
    """Return the model that helps more; if none helps, the one that does less harm.

    Both are compared in the units in which an atlas works.
    """
    weighed: list[tuple[str, AtlasPrediction | MixturePrediction]] = []
    if atlas is not None:
        weighed.append(("atlas", atlas))
    if mixture is not None:
        weighed.append(("mixture", mixture))

    def rank(one: tuple[str, AtlasPrediction | MixturePrediction]) -> tuple[int, float]:
        made = one[1]
        if isinstance(made, AtlasPrediction) and made.search is None:  # it makes no sense for these points
            return len(WORDS), math.inf
        raw, predicted = made.raw_error, made.predicted_error
        if isinstance(made, MixturePrediction) and public is not None:
            raw = root(public.errors.raw * public.scale**2)
            predicted = root((np.array(made.by_column) * public.scale) ** 2)
        ratio = predicted / raw if raw > 0.0 else math.nan
        return WORDS.index(made.verdict.word), math.inf if math.isnan(ratio) else ratio

    return min(weighed, key=rank)


def _plan(
    atlas: AtlasPrediction | None,
    mixture: MixturePrediction | None,
    public: PublicSide | None,
    n: int,
    budget: Budget,
) -> Plan:
    name, chosen = _better(atlas, mixture, public)
    raw, predicted, alone = chosen.raw_error, chosen.predicted_error, chosen.public_only_error
    columns: tuple[ColumnError, ...] = ()
    if public is not None:
        raw = root(public.errors.raw)
        by_column = np.array(chosen.by_column)
        if isinstance(chosen, AtlasPrediction) and chosen.by_column:  # in the units of the others
            squares = public.squares(chosen.by_column)
            by_column, predicted = np.sqrt(squares), root(squares)
            alone = min(root(public.errors.alone), root(public.squares(chosen.public_only_by_column)))
        columns = _columns(public, by_column) if len(by_column) else ()
    enough, seconds = math.nan, math.nan
    if atlas is not None and atlas.search is not None:
        scatter = atlas.search.scatter / atlas.bandwidth
        enough = enough_epsilon(budget, atlas.signal_to_noise, scatter)
        features = atlas.search.points.shape[1] + 1
        seconds = n * atlas.anchors_a_record * features * features * (atlas.rounds + 1) / _PAIRS_PER_SECOND
    return Plan(
        verdict=chosen.verdict.word,
        model=name if chosen.verdict.word == HELPS else "nothing",
        candidate=name,
        advice=_advice(name, chosen.verdict, atlas, mixture),
        raw_error=raw,
        predicted_error=predicted,
        public_only_error=alone,
        unit="",
        columns=columns,
        atlas=atlas,
        mixture=mixture,
        mu2=budget.mu**2,
        recommended_epsilon=enough,
        seconds=seconds,
    )


def _columns(public: PublicSide, after: Floats) -> tuple[ColumnError, ...]:
    """Return the errors of every column in its own unit; `after` (D,) is in MADs."""
    scale = np.array(public.units.scale)
    raw = np.sqrt(public.errors.raw)
    names = public.units.column_names or tuple(f"column {place}" for place in range(len(scale)))
    return tuple(map(ColumnError, names, (raw * scale).tolist(), (after * scale).tolist()))


def _advice(
    name: str, verdict: Verdict, atlas: AtlasPrediction | None, mixture: MixturePrediction | None
) -> str:
    """Return what was chosen and why."""
    other = None
    if atlas is not None and mixture is not None:
        other = mixture.verdict if name == "atlas" else atlas.verdict
    start = "Do not spend"
    if verdict.word == HELPS:
        start = "Release an atlas" if name == "atlas" else "Release a mixture"
    advice = f"{start}: {verdict.sentence}"
    return advice if other is None or other.word == HELPS else f"{advice} {other.sentence}"
