"""What is predicted of a mixture is what happens."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dpmd_fast import Budget, Preprocessor, plan, release_mixture
from dpmd_fast.models.public_only import check_noise_fits, judge_queries, root
from dpmd_fast.models.verdict import GAIN, LEAST_SIGNAL, SURE_GAIN, SURE_SIGNAL

BUDGET = Budget(1.0, 1e-6)
RNG = np.random.default_rng(0)
LOADINGS = RNG.normal(size=(2, 6))


def people(n, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 2)) @ LOADINGS + 0.3 * rng.normal(size=(n, 6))


def noisy(points, noise, seed=1, missing=0.0):
    rng = np.random.default_rng(seed)
    out = points + noise * rng.normal(size=points.shape)
    out[rng.random(points.shape) < missing] = np.nan
    return out


def weigh(queries, n, **options):
    return plan(queries, n, **{"budget": BUDGET, "noise": 0.5, "model": "mixture", **options})


def _units(queries):
    return Preprocessor.from_public(queries, log=False, missing=True)


def test_a_plan_is_kept():
    """30 points in 20 columns leave much to learn: predicted is .83 of their own error, deviation .02."""
    loadings = np.random.default_rng(4).normal(size=(3, 20))

    def wide(n, seed):
        rng = np.random.default_rng(seed)
        return rng.normal(size=(n, 3)) @ loadings + 0.3 * rng.normal(size=(n, 20))

    queries = noisy(wide(30, 1), 0.2, seed=3, missing=0.3)
    scale = np.array(_units(queries).scale)
    foreseen = weigh(queries, 50_000, noise=0.2 / scale)
    assert (foreseen.verdict, foreseen.model) == ("helps", "mixture")
    assert foreseen.atlas is None
    made = release_mixture(wide(50_000, 2), budget=BUDGET, preprocess=_units(queries), seed=1)
    assert 1 <= len(made.weights) <= foreseen.components
    assert len(made.spends) == foreseen.rounds + 1
    assert foreseen.mu2 == BUDGET.mu**2
    assert foreseen.advice.startswith("Release a mixture: A mixture is predicted to change the error")
    assert "a value in MADs of the columns from" in foreseen.advice


def test_one_component_has_the_signal_that_was_predicted():
    foreseen = weigh(noisy(people(400, 1), 0.5), 9000, components=1)
    made = release_mixture(
        people(9000, 2), budget=BUDGET, preprocess=_units(noisy(people(400, 1), 0.5)), components=1, seed=1
    )
    assert made.signal_to_noise[0] == pytest.approx(foreseen.mixture.component_signal, rel=0.3)


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_the_number_of_records_that_is_enough_is_enough(adjacency):
    queries = noisy(people(50, 1), 0.5)
    few = weigh(queries, 100, adjacency=adjacency)
    n = few.mixture.enough_records
    assert few.signal_to_noise < LEAST_SIGNAL
    assert few.verdict == "not enough records"
    assert "100 records are too few at epsilon = 1, delta = 1e-06: even one component would be" in few.advice
    sure = few.mixture.sure_records
    words = f"about {n:,} records are needed at least, and {sure:,} for a small gain."
    assert words in few.advice
    guess = {"n_public": n} if adjacency == "add-remove" else {}
    options = {"budget": BUDGET, "adjacency": adjacency}
    assert len(release_mixture(people(n, 2), **options, **guess).weights) == 1
    with pytest.raises(ValueError, match=f"{words} Nothing was spent"):
        release_mixture(people(n - 5, 2), **options, **({"n_public": n - 5} if guess else {}))
    enough = weigh(queries, n, adjacency=adjacency)
    assert (enough.components, enough.rounds, enough.mixture.enough_records) == (1, 1, n)
    assert enough.verdict != "not enough records"


def test_too_many_components_are_foreseen():
    queries = noisy(people(50, 1), 0.5)
    foreseen = weigh(queries, 5000, components=60, rounds=3)
    assert foreseen.verdict == "not enough records"
    assert "use fewer components or rounds, or about" in foreseen.advice
    with pytest.raises(ValueError, match="use fewer components or rounds"):
        release_mixture(people(5000, 2), budget=BUDGET, components=60, rounds=3)
    again = weigh(queries, foreseen.mixture.enough_records, components=60, rounds=3)
    assert again.verdict != "not enough records"


@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("m", [30, pytest.param(300, marks=pytest.mark.slow)])
def test_predicted_errors_are_those_that_come_out(m, missing):
    """One component of 20,000 records, judged by the truth of other points: within a factor 1.25."""
    truth = people(m, 1)
    queries = noisy(truth, 0.7, missing=missing)
    units = _units(queries)
    scale = np.array(units.scale)
    noise = 0.7 / scale
    foreseen = weigh(queries, 20_000, noise=noise, preprocess=units)
    made = release_mixture(
        people(20_000, 2), budget=BUDGET, preprocess=units, public=queries, noise=noise, seed=3
    )
    others = people(3000, 4)
    error = (made.transform(noisy(others, 0.7, missing=missing), noise) - others) / scale
    true = math.sqrt(float((error**2).mean()))
    assert true / 1.25 < foreseen.predicted_error < 1.25 * true
    assert true / 1.25 < made.verdict.expected_error < 1.25 * true
    assert made.verdict.raw_error == pytest.approx(foreseen.raw_error)
    assert made.verdict.word == foreseen.verdict == "helps"


def test_many_queries_need_no_reference():
    many = weigh(noisy(people(5000, 1), 0.5), 1500)
    assert (many.verdict, many.model) == ("no gain", "nothing")
    assert "without any budget, by a method fitted to them" in many.advice
    few = weigh(noisy(people(20, 1), 0.5), 4000)
    assert few.verdict == "helps"
    unsure = weigh(noisy(people(20, 1), 0.5), 1500)
    assert unsure.signal_to_noise < SURE_SIGNAL < few.signal_to_noise
    assert unsure.verdict == "no gain"
    assert SURE_GAIN < unsure.predicted_error / min(unsure.raw_error, unsure.public_only_error) < GAIN
    assert "but 1,500 records are so few that this may be wrong" in unsure.advice
    assert f"about {unsure.mixture.sure_records:,} records would be enough" in unsure.advice
    sure = weigh(noisy(people(20, 1), 0.5), unsure.mixture.sure_records)
    assert sure.signal_to_noise >= SURE_SIGNAL
    assert sure.verdict == "helps"


def test_noise_and_units():
    queries = noisy(people(200, 1), 0.5)
    scale = np.array(_units(queries).scale)
    frame = pd.DataFrame(queries, columns=list("abcdef"))
    by_name = weigh(frame, 9000, noise=dict.fromkeys("abcdef", 0.5))
    by_number = weigh(queries, 9000, noise=0.5 / scale)
    assert by_name.mixture == by_number.mixture
    assert by_name.raw_error == pytest.approx(math.sqrt(float(((0.5 / scale) ** 2).mean())))
    assert [one.name for one in by_name.columns] == list("abcdef")
    assert [one.raw for one in by_name.columns] == pytest.approx([0.5] * 6)
    assert all(one.predicted < one.raw for one in by_name.columns)
    given = weigh(queries, 9000, noise=0.5 / scale, preprocess=_units(queries))
    assert (given.unit, by_number.unit) == ("preprocessed units", "MADs of the columns")
    plain = {"advice": "", "mixture": None, "unit": ""}
    assert replace(given, **plain) == replace(by_number, **plain)
    assert replace(given.mixture, verdict=None) == replace(by_number.mixture, verdict=None)
    assert "the error of a value from" in given.advice  # in preprocessed units, which are not named
    assert "the error of a value in MADs of the columns from" in by_number.advice


def test_nothing_to_clean():
    queries = people(200, 1)
    nothing = weigh(queries, 9000, noise=0)
    assert (nothing.verdict, nothing.model) == ("no gain", "nothing")
    assert nothing.raw_error == nothing.predicted_error == nothing.public_only_error == 0.0
    assert "neither noise nor missing values: there is nothing to clean" in nothing.advice
    queries[::3, 2] = np.nan
    filled = weigh(queries, 9000, noise=0)
    assert 0.0 < filled.predicted_error < filled.raw_error


def test_clipped_and_logged_columns():
    """Values far out and logarithms: errors are finite, and those of a logged column are relative."""
    queries = np.exp(noisy(people(300, 1), 0.5))
    queries[5, 0] = 1e9
    units = Preprocessor.from_public(queries, log=True)
    made = weigh(queries, 20_000, noise=0.5 / np.array(units.scale), preprocess=units)
    assert made.verdict == "helps"
    assert [one.raw for one in made.columns] == pytest.approx([0.5] * 6)


def test_noise_beyond_the_spread_of_the_values_that_have_it_is_refused():
    """Values that are nothing but noise of that size pass, in a million tables but one."""
    queries = noisy(people(200, 1), 0.5)
    frame = pd.DataFrame(queries * [1, 1, 1, 1, 1, 100], columns=list("abcdef"))
    noise = dict.fromkeys("abcde", 0.5) | {"f": 5000.0}
    with pytest.raises(
        ValueError, match=r"noise of column 'f' is 5e\+03: must not be larger than the spread of its"
    ):
        weigh(frame, 9000, noise=noise)
    with pytest.raises(ValueError, match=r"noise of column 'f' is 5e\+03"):
        release_mixture(people(9000, 2), public=frame, noise=noise, budget=BUDGET)
    with pytest.raises(ValueError, match="noise of column 0 is"):
        weigh(queries, 9000, noise=20.0)
    rng = np.random.default_rng(5)
    for m in (2, 5, 30, 300):
        for _ in range(20):
            check_noise_fits(rng.normal(size=(m, 3)), np.ones(3), Preprocessor((0,) * 3, (1,) * 3))


def test_rows_that_are_copies_count_once():
    few = noisy(people(5, 1), 0.5)
    assert weigh(np.repeat(few, 40, axis=0), 9000).public_only_error == weigh(few, 9000).public_only_error
    thirty = people(30, 1)
    alone = judge_queries(thirty, np.full(6, 0.5)).alone
    repeated = judge_queries(np.tile(thirty, (5, 1)), np.full(6, 0.5)).alone
    assert root(repeated) == pytest.approx(root(alone), rel=0.25)


def test_rounded_values_are_no_copies():
    """Rows of rounded values are often equal; errors are those of the values before they were rounded."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(1000, 1)) * 2.0 @ np.ones((1, 2)) + rng.normal(size=(1000, 2))
    exact, rounded = (root(judge_queries(Z, np.ones(2)).alone) for Z in (points, np.round(points)))
    assert len(np.unique(np.round(points), axis=0)) < 200
    assert rounded == pytest.approx(exact, rel=0.1)
    units = Preprocessor((0.0, 0.0), (1.0, 1.0))
    check_noise_fits(np.array([[4.1, 140.0], [4.1, 140.0]]), np.ones(2), units)  # two values say nothing
    with pytest.raises(ValueError, match="all its public values are equal"):
        check_noise_fits(np.column_stack([points[:, 0], np.full(1000, 7.0)]), np.ones(2), units)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n": 0}, "n = 0"),
        ({"noise": -1}, "noise = -1"),
        ({"noise": None}, "noise = None: must be given to weigh a mixture"),
        ({"noise": {"a": 1}}, "has no column names"),
        ({"components": 0}, "components = 0"),
        ({"components": 257}, "components = 257: must be at most 256"),
        ({"rounds": "many"}, "rounds = 'many': must be a number or 'auto'"),
        ({"rounds": 21}, "rounds = 21: must be at most 20"),
        ({"budget": 1.0}, "budget = 1.0"),
        ({"adjacency": "none"}, "adjacency = 'none'"),
        ({"preprocess": "scales.json"}, "preprocess = 'scales.json': must be a Preprocessor or None"),
        ({"preprocess": Preprocessor((0.0,), (1.0,))}, "anchors has 6 columns: must have 1"),
        ({"anchors": np.full((9, 6), np.inf)}, "anchors contains infinity"),
        ({"anchors": np.full((9, 6), np.nan)}, "anchors has no values in column 0"),
        ({"anchors": np.zeros((9, 6))}, "median absolute deviation of 0"),
    ],
)
def test_refused(changes, message):
    arguments = {"anchors": people(30, 1), "n": 9000, "budget": BUDGET, "noise": 0.5, "model": "mixture"}
    with pytest.raises(ValueError, match=message):
        plan(**arguments | changes)
