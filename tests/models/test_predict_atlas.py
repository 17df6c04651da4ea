"""What is predicted of an atlas: for shapes, for data near no surface, with few records."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from dpmd_fast import Budget, plan, release_atlas
from dpmd_fast.lab.datasets import make_shape, simulate
from dpmd_fast.lab.experiments.held_out import HELD_OUT
from dpmd_fast.lab.experiments.verdicts import FACTORS
from dpmd_fast.lab.experiments.verdicts import SHAPES as VERDICT_SHAPES
from dpmd_fast.lab.factor_models import FactorData
from dpmd_fast.models.predict_atlas import predict_atlas
from dpmd_fast.models.verdict import EQUAL_NOISE, GAIN, LEAST_PUBLIC, NEARER

BUDGET = Budget(1.0, 1e-6)

# The rows of benchmarks/accuracy.py: shape, records, noise; with 300 queries instead of 1,000.
SHAPES = {
    "circle": (lambda: make_shape("circle"), 20_000, 0.1),
    "torus": (lambda: make_shape("torus"), 30_000, 0.05),
    "torus, more noise": (lambda: make_shape("torus"), 30_000, 0.15),
    "Swiss roll": (lambda: make_shape("swiss-roll"), 50_000, 0.15),
    "sphere in R^20": (lambda: make_shape("sphere", ambient=20), 30_000, 0.3),
    "sphere in R^100": (lambda: make_shape("sphere", ambient=100), 30_000, 0.05),
    "wavy sheet": (HELD_OUT["wavy-sheet"], 30_000, 0.05),
    "ellipse": (HELD_OUT["ellipse"], 20_000, 0.05),
    "figure eight": (HELD_OUT["figure-eight"], 20_000, 0.05),
    "helix": (HELD_OUT["helix"], 20_000, 0.05),
}


def cases(others, quick):
    """All shapes, with noise that is known or not, and all of `others`; slow unless `quick`."""
    return [
        pytest.param(*case, marks=[pytest.mark.slow] * (not quick(*case)))
        for case in itertools.product(SHAPES, (False, True), others)
    ]


def queries_of(name, m=300, seed=0):
    shape, n, sigma = SHAPES[name]
    made = shape()
    data = simulate(made, 1, m, sigma, np.random.default_rng([20, seed]))
    return made, n, data


def deviation(data):
    """The noise of the queries, known."""
    return float(np.sqrt(((data.queries - data.clean) ** 2).mean()))


def in_mads(points, noise):
    return noise / np.median(np.abs(points - np.median(points, axis=0)), axis=0)


def markers(n, seed, D=20):
    """Values like those of blood: a smoothly decaying spectrum and heavy tails, near no surface."""
    rng = np.random.default_rng(seed)
    mixing = np.linalg.qr(np.random.default_rng(7).normal(size=(D, D)))[0]
    spectrum = 2.0 / np.sqrt(1.0 + np.arange(D))
    return (rng.standard_t(4, size=(n, D)) * spectrum) @ mixing.T


@pytest.mark.parametrize(
    ("name", "known", "delta"),
    cases(
        (0.1, 1e-6),
        lambda name, known, delta: (
            name == "circle" or (delta < 0.1 and (not known or name in ("torus", "sphere in R^20", "helix")))
        ),
    ),
)
def test_shapes_are_worth_an_atlas(name, known, delta):
    shape, n, data = queries_of(name, 400 if name == "sphere in R^100" else 300)
    noise = in_mads(data.queries, deviation(data)) if known else None
    made = plan(data.queries, n, budget=Budget(1.0, delta), noise=noise, model="auto")
    assert (made.verdict, made.model) == ("helps", "atlas"), made.advice
    assert made.dim == shape.dim
    assert made.reach > 0.9
    assert made.predicted_error < 0.9 * made.raw_error
    if known:
        assert made.atlas.raw_error == pytest.approx(deviation(data))
        assert made.predicted_error < made.public_only_error


@pytest.mark.parametrize(
    ("name", "known", "m"),
    cases((500, 1000), lambda name, known, m: m == 500 and name in ("circle", "torus")),
)
def test_shapes_are_worth_an_atlas_with_many_queries(name, known, m):
    """By themselves they lose nearly all noise but that along the surface, which no atlas removes either."""
    shape, n, data = queries_of(name, m)
    noise = in_mads(data.queries, deviation(data)) if known else None
    made = plan(data.queries, n, budget=BUDGET, noise=noise)
    assert (made.verdict, made.model, made.dim) == ("helps", "atlas", shape.dim), made.advice
    if known:
        found = made.atlas
        assert found.predicted_distance < NEARER * found.public_only_distance < found.raw_distance


def test_distances_are_told_where_errors_tie():
    _, n, data = queries_of("circle", 1000)
    noise = in_mads(data.queries, deviation(data))
    made = plan(data.queries, n, budget=BUDGET, noise=noise)
    found = made.atlas
    assert found.predicted_error > GAIN * found.public_only_error
    along = deviation(data) ** 2  # of the two columns together, one dimension
    assert found.raw_distance == pytest.approx(math.sqrt(along))
    assert found.predicted_distance == pytest.approx(math.sqrt(2.0 * found.predicted_error**2 - along))
    for number in (found.raw_distance, found.predicted_distance, found.public_only_distance):
        assert f"{number:.3g}" in made.advice
    assert "to bring the public points from" in made.advice
    assert "in the units of the data from the curve or surface" in made.advice
    assert "Noise along it stays either way" in made.advice


def test_a_bandwidth_below_the_distance_of_public_points_is_not_overrated():
    """An anchor alone in its ball says nothing about how many records there are."""
    _, n, data = queries_of("torus", 1000)
    found = {h: plan(data.queries, n, budget=BUDGET, dim=2, bandwidth=h) for h in (0.2, 0.1, 0.05, 0.025)}
    assert found[0.05].verdict == found[0.025].verdict == "not enough records"
    signals = [one.signal_to_noise for one in found.values()]
    for wide, narrow in itertools.pairwise(signals):
        assert narrow < 0.3 * wide  # a quarter, on a surface


@pytest.mark.parametrize("delta", [pytest.param(0.1, marks=pytest.mark.slow), 1e-6])
def test_groups_that_are_too_sparse_to_show_a_surface_go_to_a_mixture(delta):
    """Smoothing moves few of the points, so that its small error says nothing about a surface."""
    case = FACTORS["3 groups in R^5"]
    data = FactorData.draw(case, 500, 0)
    made = plan(
        data.queries, case.records, budget=Budget(1.0, delta), noise=in_mads(data.queries, case.noise)
    )
    assert (made.verdict, made.model) == ("helps", "mixture")
    assert made.atlas.verdict.word == "no gain"
    assert "do not show a curve or surface of dimension 1, which an atlas needs" in made.advice
    assert "neighbours are those of points in 4.1 dimensions" in made.advice


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_a_sphere_is_not_taken_for_a_curve(seed):
    surface = VERDICT_SHAPES["sphere in R^20"]
    data = simulate(surface.make(), 1000, 500, surface.sigma, np.random.default_rng([20, seed]))
    noise = in_mads(data.queries, math.sqrt(surface.sigma / 22))
    made = plan(data.queries, 30_000, budget=BUDGET, noise=noise)
    assert (made.model, made.dim) == ("atlas", 2)


@pytest.mark.parametrize("known", [False, True])
def test_data_near_no_surface_are_harmed(known):
    queries = markers(400, 1) + 0.5 * np.random.default_rng(2).normal(size=(400, 20))
    made = plan(queries, 50_000, budget=BUDGET, noise=in_mads(queries, 0.5) if known else None, model="atlas")
    assert (made.verdict, made.model) == ("harm likely", "nothing")
    assert "lie near no " in made.advice
    assert made.advice.startswith("Do not spend: ")
    with pytest.raises(ValueError, match=r"^harm likely: The public points lie near no .* Nothing was spent"):
        release_atlas(
            markers(50_000, 3),
            queries,
            dim=made.dim,
            budget=BUDGET,
            noise=in_mads(queries, 0.5) if known else None,
        )


@pytest.mark.parametrize("n", [200, *(pytest.param(n, marks=pytest.mark.slow) for n in (50, 1000))])
def test_few_records_are_too_few(n):
    _, _, data = queries_of("torus")
    made = plan(data.queries, n, budget=BUDGET, noise=in_mads(data.queries, deviation(data)), model="atlas")
    assert (made.verdict, made.model) == ("not enough records", "nothing")
    assert f"{n:,} records are too few at epsilon = 1, delta = 1e-06" in made.advice
    enough = int(made.advice.split("about ")[-1].split(" ")[0].replace(",", ""))
    again = plan(data.queries, 2 * enough, budget=BUDGET, dim=2)
    assert again.verdict == "helps"  # twice the number that it names is enough


def test_a_given_bandwidth_is_checked_too():
    _, _, data = queries_of("torus")
    few = plan(data.queries, 1000, budget=BUDGET, dim=2, bandwidth=0.8)
    assert few.verdict == "not enough records"
    with pytest.raises(ValueError, match=r"^not enough records: "):
        release_atlas(data.clean + 0.01, data.queries, dim=2, bandwidth=0.8, budget=BUDGET)


@pytest.mark.parametrize("known", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_dimension_that_is_too_large_is_kept_and_helps_less(known):
    _, n, data = queries_of("sphere in R^20")
    noise = in_mads(data.queries, deviation(data)) if known else None
    right, large = (
        plan(data.queries, n, budget=BUDGET, dim=dim, noise=noise, model="atlas") for dim in (2, 9)
    )
    assert right.verdict == "helps"
    assert large.dim == 9  # and not another one that the points speak for
    assert large.verdict != "helps" or large.predicted_error > 1.5 * right.predicted_error
    with pytest.raises(ValueError, match="dim = 20: must be below the number of columns"):
        plan(data.queries, n, budget=BUDGET, dim=20, noise=noise)


@pytest.mark.parametrize("columns", [2, 4, pytest.param(7, marks=pytest.mark.slow)])
def test_a_cloud_in_few_columns_is_no_surface(columns):
    """Without their noise, points far apart from each other must not pass for a surface."""
    rng = np.random.default_rng(2)
    for queries in (rng.normal(size=(300, columns)), markers(400, 1, max(4, columns))):
        made = plan(queries, 50_000, budget=BUDGET)
        assert (made.verdict, made.model) == ("harm likely", "nothing")
        assert "lie near no curve or surface" in made.advice


@pytest.mark.parametrize("runs", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_the_dimension_is_the_same_in_all_runs(runs):
    shape = make_shape("torus")
    found = set()
    for seed in range(runs):
        data = simulate(shape, 6000, 300, 0.05, np.random.default_rng(0))
        atlas = release_atlas(data.references, data.queries, dim="auto", budget=Budget(2.0, 1e-4), seed=seed)
        found.add(atlas.dim)
    assert found == {2}


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("circle", 3),
        *(
            pytest.param(name, 10, marks=pytest.mark.slow)
            for name in ("circle", "torus", "Swiss roll", "helix")
        ),
    ],
)
def test_other_queries_give_the_same_dimension(name, runs):
    found = set()
    for seed in range(runs):
        shape, n, data = queries_of(name, 300, seed)
        noise = in_mads(data.queries, deviation(data))
        found.add(plan(data.queries, n, budget=BUDGET, noise=noise, model="atlas").dim)
    assert found == {shape.dim}


def test_ten_rows_repeated_show_no_surface(ledger):
    _, n, data = queries_of("torus")
    repeated = np.repeat(data.queries[:10], 30, axis=0)
    for noise in (None, 0.3):
        made = plan(repeated, n, budget=BUDGET, noise=noise, model="atlas")
        assert made.model == "nothing"
        assert f"10 different public point(s) cannot show a surface: an atlas needs {LEAST_PUBLIC}" in (
            made.advice
        )
        with pytest.raises(ValueError, match=r"^no gain: 10 different public point\(s\) cannot show"):
            release_atlas(
                data.clean, repeated, dim=2, budget=BUDGET, noise=noise, ledger=ledger, dataset="people"
            )
    assert ledger.history("people") == ()


def test_columns_in_different_units_are_not_weighed_together():
    _, n, data = queries_of("torus")
    units = np.array([1.0, 1000.0, 1.0])
    frame_noise = deviation(data) * units
    queries = data.queries * units
    made = plan(queries, n, budget=BUDGET, noise=in_mads(queries, frame_noise), model="atlas")
    assert made.model == "nothing"
    assert "The noises of the columns differ by a factor above 3" in made.advice


@pytest.mark.parametrize(("largest", "weighed"), [(np.nextafter(0.12, 1.0), True), (0.1201, False)])
def test_noises_that_differ_by_exactly_the_largest_factor_are_weighed(largest, weighed):
    """They are an ulp further apart in one of twenty samples, when scales were divided out and put back."""
    rng = np.random.default_rng(0)
    t = rng.uniform(-3.0, 3.0, 60)
    noise = np.array([0.04, largest])
    queries = np.column_stack([t, np.sin(t)]) + noise * rng.normal(size=(60, 2))
    found = predict_atlas(
        queries,
        20_000,
        BUDGET,
        dim=1,
        bandwidth=None,
        cover=0.3,
        adjacency="replace-one",
        noise=noise,
        n_threads=None,
    )
    assert noise[1] > EQUAL_NOISE * noise[0]
    assert (found.search is not None) == weighed
    assert ("differ by a factor above 3" not in found.verdict.sentence) == weighed


def test_no_noise_is_nothing_to_clean(ledger):
    _, n, data = queries_of("torus")
    made = plan(data.clean, n, budget=BUDGET, noise=0, model="atlas")
    assert (made.verdict, made.model, made.raw_error) == ("no gain", "nothing", 0.0)
    assert "there is nothing to clean" in made.advice
    with pytest.raises(ValueError, match=r"^no gain: .* nothing to clean"):
        release_atlas(
            data.queries, data.clean, dim=2, budget=BUDGET, noise=0, ledger=ledger, dataset="people"
        )
    assert ledger.history("people") == ()


def test_the_prediction_is_that_of_the_points_and_budget_alone():
    """The same public numbers give the same prediction, whatever the number of threads."""
    _, n, data = queries_of("wavy sheet")
    arguments = {
        "dim": None,
        "bandwidth": None,
        "cover": 0.3,
        "adjacency": "replace-one",
        "noise": np.full(3, deviation(data)),
    }
    first, second = (predict_atlas(data.queries, n, BUDGET, n_threads=t, **arguments) for t in (1, 2))
    assert first.verdict == second.verdict
    assert first.predicted_error == second.predicted_error


@pytest.mark.parametrize(
    ("name", "n"),
    [
        ("circle", 6000),
        *(pytest.param(name, 12_000, marks=pytest.mark.slow) for name in ("torus", "helix")),
    ],
)
def test_predicted_errors_are_those_that_come_out(name, n):
    """Within a factor 1.5 of the truth, for three shapes at reduced sizes."""
    shape, _, sigma = SHAPES[name]
    made = shape()
    data = simulate(made, n, 300, sigma, np.random.default_rng(5))
    noise = in_mads(data.queries, deviation(data))
    foreseen = plan(data.queries, n, budget=Budget(1.0, 1e-4), noise=noise, dim=made.dim, model="atlas")
    atlas = release_atlas(
        data.references,
        data.queries,
        dim=made.dim,
        budget=Budget(1.0, 1e-4),
        noise=noise,
        seed=0,
    )
    true = math.sqrt(float(((atlas.transform(data.queries) - data.clean) ** 2).mean()))
    assert true / 1.5 < foreseen.atlas.predicted_error < 1.5 * true
    assert true / 1.2 < atlas.verdict.expected_error < 1.2 * true
