"""Predict from public numbers what a mixture would do to the public points: nothing is spent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpmd_fast.arguments import checked_integer, is_auto
from dpmd_fast.errors import UserValueError
from dpmd_fast.kernels.jit import single_blas
from dpmd_fast.models.gaussians.background import with_background
from dpmd_fast.models.gaussians.components import Floats, Gaussians
from dpmd_fast.models.gaussians.recipe import Recipe, choose_recipe
from dpmd_fast.models.gaussians.rounds import rehearse
from dpmd_fast.models.gaussians.tuning import LEAST_MASS, MOST_GIVEN_COMPONENTS, MOST_ROUNDS
from dpmd_fast.models.public_only import PublicErrors, judge_mixture, root, without_noise
from dpmd_fast.models.verdict import (
    GAIN,
    HARM_LIKELY,
    HELPS,
    LEAST_SIGNAL,
    NO_GAIN,
    SURE_GAIN,
    SURE_SIGNAL,
    TOO_FEW,
    Verdict,
    judged,
)
from dpmd_fast.privacy.budget import Budget
from dpmd_fast.privacy.guarantee import Adjacency

# Releases of the same records can differ much: errors of .62 to 1.16 (raw = 1) on baron_human, whose rare
# types of cells are far from the others. The worst of so many rehearsals counts [choice].
_REHEARSALS = 3


@dataclass(frozen=True)
class MixturePrediction:
    """What a mixture would do to the public points, in preprocessed units.

    Attributes
    ----------
    components : int
    rounds : int
        Releases of all components; one more comes before them, of all records as one component.
    signal_to_noise : float
        Number of records over the deviation of the noise of one component with the whole budget.
    component_signal : float
        Mean mass of a component over the deviation of its noise, in the last round.
    enough_records, sure_records : int
        Numbers of records: the smallest that this budget, `components` and `rounds` would not be refused for
        if the predicted gain is large, and the smallest from which on a small predicted gain counts.
    raw_error, predicted_error, public_only_error : float
        Root mean squared error of one value: as it is, with the median in the place of a missing one; after
        the mixture; after the best that the public points can do by themselves. NaN if the noise is unknown.
    by_column : tuple of float
        Predicted errors of the columns.
    verdict : Verdict
    recipe : Recipe
    """

    components: int
    rounds: int
    signal_to_noise: float
    component_signal: float
    enough_records: int
    sure_records: int
    raw_error: float
    predicted_error: float
    public_only_error: float
    by_column: tuple[float, ...]
    verdict: Verdict
    recipe: Recipe


def predict_mixture(
    n: int,
    columns: int,
    budget: Budget,
    errors: PublicErrors | None,
    *,
    components: Any = "auto",
    rounds: Any = "auto",
    adjacency: Adjacency,
    smoothed: Floats | None = None,
    unit: str = "",
) -> MixturePrediction:
    """Predict a mixture of `n` records.

    `errors` are those of the public points, None if their noise is unknown. `smoothed` (D,) are mean squared
    errors of the public points smoothed by themselves, if they are near a surface. `unit` is that of errors
    in the sentence.
    """
    recipe = choose_recipe(
        n,
        columns,
        budget.mu,
        adjacency,
        _given("components", components, MOST_GIVEN_COMPONENTS),
        _given("rounds", rounds, MOST_ROUNDS),
    )
    signal = recipe.component_signal
    least = max(LEAST_SIGNAL / recipe.signal, LEAST_MASS / signal)
    raw = predicted = alone = math.nan
    by_column: tuple[float, ...] = ()
    if errors is not None:
        squares = extrapolated(errors, recipe, n)
        if least <= 1.0 and errors.points is not None and errors.noise is not None and errors.noise.any():
            squares = _at_least_rehearsed(squares, errors.points, errors.noise, n, recipe, budget, adjacency)
        raw, predicted, alone = root(errors.raw), root(squares), root(errors.alone)
        if smoothed is not None:
            alone = min(alone, root(smoothed))
        by_column = tuple(np.sqrt(squares).tolist())
    enough, sure = math.ceil(n * least), math.ceil(n * max(least, SURE_SIGNAL / recipe.signal))
    gain = GAIN if recipe.signal >= SURE_SIGNAL else SURE_GAIN
    word = TOO_FEW if least > 1.0 else HELPS if errors is None else judged(predicted, raw, alone, gain)
    made = MixturePrediction(
        components=recipe.components,
        rounds=len(recipe.shares) - 1,
        signal_to_noise=recipe.signal,
        component_signal=signal,
        enough_records=enough,
        sure_records=sure,
        raw_error=raw,
        predicted_error=predicted,
        public_only_error=alone,
        by_column=by_column,
        verdict=Verdict(NO_GAIN, ""),
        recipe=recipe,
    )
    sentence = _sentence(made, word, n, budget, unit)
    object.__setattr__(made, "verdict", Verdict(word, sentence, raw, predicted))
    return made


def extrapolated(errors: PublicErrors, recipe: Recipe, n: float, share: float = 1.0) -> Floats:
    """Return mean squared errors (D,) after a mixture of `share` of the `n` records of a recipe.

    Noise in a covariance of N records is that of 2 (N / s)^2 records that were drawn.
    """
    if not share > 0.0:
        return 4.0 * errors.raw
    drawn = 2.0 * (share * recipe.signal) ** 2 * recipe.shares[-1]
    squares: Floats = np.minimum(
        errors.limit + errors.slope * (1.0 / drawn + 1.0 / (share * n)), 4.0 * errors.raw
    )
    return squares


def _at_least_rehearsed(
    squares: Floats,
    points: Floats,
    noise: Floats,
    n: int,
    recipe: Recipe,
    budget: Budget,
    adjacency: Adjacency,
) -> Floats:
    """Return the larger of errors that were extrapolated and those of a rehearsal with the public points.

    Extrapolation takes the released mixture to be as good as one without clipping and with as many components
    as the points need. The rehearsal has clipping, noise and components of the release, which matter for
    groups of records far from all others, such as rare types of cells. Its points are judged by what was
    fitted to them, so it alone would be too hopeful for few of them.
    """
    worst = squares
    for seed in range(_REHEARSALS):
        with single_blas():
            model = rehearse(points, n, recipe, budget.mu, adjacency, seed)
        clean = Gaussians(model.weights, model.means, without_noise(model.covariances, noise))
        found = judge_mixture(with_background(clean), points, noise)
        worst = found if found.mean() > worst.mean() else worst
    return worst


def _given(name: str, value: object, most: int) -> int | None:
    if is_auto(name, value):
        return None
    number = checked_integer(name, value, minimum=1)
    if number > most:
        raise UserValueError(f"{name} = {number}: must be at most {most}", argument=name)
    return number


def _sentence(made: MixturePrediction, word: str, n: int, budget: Budget, unit: str) -> str:
    """Return what is predicted, in words."""
    if word == TOO_FEW:
        few = "even one component" if made.signal_to_noise < LEAST_SIGNAL else "each component"
        remedy = "" if made.signal_to_noise < LEAST_SIGNAL else "use fewer components or rounds, or "
        return (
            f"{n:,} records are too few at epsilon = {budget.epsilon:g}, delta = {budget.delta:g}: {few} "
            f"would be mostly noise; {remedy}about {made.enough_records:,} records are needed at least"
            + (
                f", and {made.sure_records:,} for a small gain."
                if made.sure_records > made.enough_records
                else "."
            )
        )
    if math.isnan(made.predicted_error):
        what = "one component, a linear filter" if made.components == 1 else f"{made.components} components"
        return f"There is signal for {what}; how much they help depends on the noise of the queries."
    change = (
        f"A mixture is predicted to change the error of a value{unit} from {made.raw_error:.3g} to "
        f"{made.predicted_error:.3g}"
    )
    if word == HELPS:
        if made.public_only_error < made.raw_error:
            return change + f"; the public points alone reach {made.public_only_error:.3g}."
        return change + " or less; the public points alone are too few to learn from."
    if word == HARM_LIKELY:
        return change + f": {n:,} records leave too much noise at epsilon = {budget.epsilon:g}."
    if made.raw_error == 0.0:
        return "The public points have neither noise nor missing values: there is nothing to clean."
    if made.predicted_error < GAIN * min(made.raw_error, made.public_only_error):
        return (
            change + f"; but {n:,} records are so few that this may be wrong by more than it gains; about "
            f"{made.sure_records:,} records would be enough."
        )
    if made.public_only_error < made.raw_error:
        return (
            change + f"; the public points alone reach {made.public_only_error:.3g} without any budget, by a "
            "method fitted to them."
        )
    return change + ", which is not worth a budget."
