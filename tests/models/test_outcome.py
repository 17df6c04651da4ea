"""Verdicts after the spend: exact where the truth is known, kept in the file, sealed."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from functools import partial

import numpy as np
import pytest

from dpmd_fast import Atlas, Budget, Ledger, Mixture, release_atlas, release_mixture
from dpmd_fast.kernels.posterior import make_components, posterior
from dpmd_fast.lab.datasets import make_shape, simulate
from dpmd_fast.models.gaussians.background import with_background
from dpmd_fast.models.gaussians.components import Gaussians
from dpmd_fast.models.outcome import atlas_outcome, expected_error, mixture_outcome, observed_error
from dpmd_fast.models.public_only import judge_queries
from dpmd_fast.models.verdict import AS_PREDICTED, HARM, Verdict

BEFORE = Verdict("helps", "It will help.", 0.5, 0.3)
TRUTH = Gaussians(
    np.array([0.4, 0.6]),
    np.array([[0.0, 0.0, 0.0], [3.0, -2.0, 1.0]]),
    np.stack([np.array([[1.0, 0.8, 0.0], [0.8, 1.0, 0.3], [0.0, 0.3, 0.5]]), 0.3 * np.eye(3)]),
)


def drawn(n, seed):
    rng = np.random.default_rng(seed)
    which = rng.choice(2, size=n, p=TRUTH.weights)
    roots = np.linalg.cholesky(TRUTH.covariances)
    return TRUTH.means[which] + np.einsum("nde,ne->nd", roots[which], rng.normal(size=(n, 3)))


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_what_a_mixture_expects_is_what_happens_where_it_is_right(missing):
    from samples import make_mixture

    noise = np.array([0.4, 0.8, 0.2])
    exact = dataclasses.replace(
        make_mixture(),
        weights=TRUTH.weights,
        means=TRUTH.means,
        covariances=TRUTH.covariances,
        signal_to_noise=(9.0, 9.0),
    )
    rng = np.random.default_rng(1)
    truth = drawn(20_000, 2)
    points = truth + noise * rng.normal(size=truth.shape)
    points[rng.random(points.shape) < missing] = np.nan
    squares = ((exact.transform(points, noise) - truth) ** 2).mean(axis=1)
    true, spread = math.sqrt(squares.mean()), squares.std() / squares.mean()
    # six deviations of means over 20,000 points here, and 4,000 there; half of it for the root
    allowed = 3.0 * spread * math.sqrt(1.0 / 20_000 + 1.0 / 4_000)
    assert allowed < 0.12
    assert expected_error(TRUTH, noise, np.full(3, missing)) == pytest.approx(true, rel=allowed)


def test_a_mixture_is_judged_for_points_like_the_public_ones():
    points = drawn(500, 3)
    points[::2, 0] = np.nan
    judged = mixture_outcome(TRUTH, np.zeros(3), judge_queries(points, np.zeros(3)), BEFORE)
    assert judged.word == "helps"
    assert 0.0 < judged.expected_error < judged.raw_error
    complete = judge_queries(drawn(500, 3), np.zeros(3))
    nothing = mixture_outcome(TRUTH, np.zeros(3), complete, BEFORE)
    assert (nothing.word, nothing.expected_error) == ("no gain", 0.0)


def test_public_points_that_contradict_a_mixture_are_believed():
    noise = np.full(3, 0.3)
    rng = np.random.default_rng(5)
    alike = drawn(300, 3)
    expected = expected_error(TRUTH, noise, np.zeros(3))
    good = mixture_outcome(
        TRUTH, noise, judge_queries(alike + noise * rng.normal(size=(300, 3)), noise), BEFORE
    )
    assert good.expected_error == expected
    assert "further" not in str(good)
    # three times the noise that was given
    wrong = alike + 3.0 * noise * rng.normal(size=(300, 3))
    judged = mixture_outcome(TRUTH, noise, judge_queries(wrong, noise), BEFORE)
    prepared = make_components(*with_background(TRUTH), noise)
    means, deviations = posterior(prepared, wrong, deviations=True)[:2]
    risk = math.sqrt(((means - wrong) ** 2 - noise**2 + 2.0 * deviations**2).mean())  # Stein's estimate
    left = math.sqrt(expected**2 + risk**2 - (deviations**2).mean())
    assert judged.expected_error == pytest.approx(left)
    assert judged.expected_error > 0.3
    assert judged.word == "harm likely"
    assert "grows from 0.3 to" in str(judged)
    assert "The public points are further from their cleaned values than the mixture expects" in str(judged)
    assert str(judged).endswith("not like the records, or their noise is not what was given.")


def test_points_that_get_worse_are_told_below_the_factor_of_a_wrong_prediction():
    """Expected just below raw, found above it by less than the factor."""
    rng = np.random.default_rng(1)
    before, there = rng.normal(size=(4000, 2)), np.ones((4000, 2), np.bool_)
    noise, deviations = np.full(2, 1.0), np.full((4000, 2), 0.9)
    moves = rng.choice([-1.0, 1.0], size=before.shape)

    def found(error):
        return observed_error(
            before, before + moves * math.sqrt(error**2 + 1.0 - 1.62), deviations, noise, there
        )

    assert found(0.98 * HARM) is None
    assert found(1.02 * HARM) == pytest.approx(1.02 * HARM)
    assert found(2.0) == pytest.approx(2.0)
    assert 1.02 * HARM < AS_PREDICTED * 0.9  # so the factor alone would not tell
    small = np.full((4000, 2), 0.1)  # here the factor tells
    after = before + moves * math.sqrt(0.2**2 + 1.0 - 0.02)
    assert observed_error(before, after, small, noise, there) == pytest.approx(0.2)


def circle(n, scatter, seed):
    rng = np.random.default_rng(seed)
    angles = rng.uniform(0.0, 2.0 * np.pi, n)
    clean = np.column_stack([np.cos(angles), np.sin(angles)])
    return clean, clean + scatter * rng.normal(size=(n, 2))


def onto_the_circle(points):
    return points / np.linalg.norm(points, axis=1, keepdims=True), np.ones(len(points), np.bool_)


def test_the_error_of_a_map_is_found_without_the_truth():
    clean, noisy = circle(4000, 0.2, 1)
    judged = atlas_outcome(onto_the_circle, noisy, np.full(2, 0.2), BEFORE)
    true = math.sqrt(float(((onto_the_circle(noisy)[0] - clean) ** 2).mean()))
    assert judged.expected_error == pytest.approx(true, rel=0.05)
    assert judged.raw_error == pytest.approx(0.2)
    assert judged.word == "helps"
    # a map that takes away what belongs to the points does harm, and that is seen too
    harm = atlas_outcome(lambda Z: (0.0 * Z, np.ones(len(Z), np.bool_)), noisy, np.full(2, 0.2), BEFORE)
    assert harm.word == "harm likely"
    assert harm.expected_error == pytest.approx(math.sqrt(0.5), rel=0.03)
    assert "so the prediction was wrong" in str(harm)


def test_points_out_of_reach_stay_as_they_are():
    _, noisy = circle(1000, 0.2, 1)

    def half(points):
        inside = points[:, 0] > 0.0
        return np.where(inside[:, None], onto_the_circle(points)[0], points), inside

    whole = atlas_outcome(onto_the_circle, noisy, np.full(2, 0.2), BEFORE)
    part = atlas_outcome(half, noisy, np.full(2, 0.2), BEFORE)
    assert part.reach == pytest.approx(0.5, abs=0.06)
    assert whole.expected_error < part.expected_error < part.raw_error
    none = atlas_outcome(lambda Z: (Z, np.zeros(len(Z), np.bool_)), noisy, np.full(2, 0.2), BEFORE)
    assert (none.word, none.reach) == ("not enough records", 0.0)
    assert none.expected_error == none.raw_error
    clean = atlas_outcome(onto_the_circle, 1.1 * onto_the_circle(noisy)[0], np.zeros(2), BEFORE)
    assert clean.word == "harm likely"  # there was nothing to clean, and points were moved
    assert clean.expected_error == pytest.approx(0.1 / math.sqrt(2.0))
    assert "grows from 0 to 0.0707" in str(clean)
    unknown = atlas_outcome(half, noisy, None, BEFORE)
    assert math.isnan(unknown.expected_error)
    assert "their noise was not given" in str(unknown)


@pytest.fixture(scope="module")
def models():
    """An atlas and a mixture that were released with noise, and their files."""
    data = simulate(make_shape("circle"), 6000, 200, 0.1, np.random.default_rng(0))
    budget = Budget(2.0, 1e-4)
    atlas = release_atlas(data.references, data.queries, dim=1, budget=budget, noise=0.25)
    public = drawn(9, 4)  # too few to learn from
    mixture = release_mixture(drawn(6000, 6), public=public, budget=budget, components=2, noise=0.6)
    return atlas, mixture


@pytest.mark.parametrize("which", [0, 1])
def test_verdicts_are_kept_and_sealed(which, models, tmp_path):
    model, kind = models[which], (Atlas, Mixture)[which]
    assert model.verdict.word == "helps"
    assert model.verdict.expected_error < model.verdict.raw_error
    path = tmp_path / "model.dpmd"
    model.save(path)
    assert kind.load(path).verdict == model.verdict
    sealed = path.read_bytes()
    assert b'"word":"helps"' in sealed
    path.write_bytes(sealed.replace(b'"word":"helps"', b'"word":"hopes"'))
    with pytest.raises(ValueError, match="was edited or damaged"):
        kind.load(path)
    number = f'"expected_error":{model.verdict.expected_error!r}'.encode()
    assert number in sealed
    path.write_bytes(sealed.replace(number, number[:-1] + (b"1" if number[-1:] != b"1" else b"2")))
    with pytest.raises(ValueError, match="was edited or damaged"):
        kind.load(path)
    older = dataclasses.replace(model, verdict=None)
    older.save(tmp_path / "older.dpmd")
    assert kind.load(tmp_path / "older.dpmd").verdict is None


def test_an_accepted_risk_is_noted_in_guarantee_and_ledger(ledger):
    data = simulate(make_shape("circle"), 60, 60, 0.1, np.random.default_rng(0))
    book = {"ledger": ledger, "dataset": "people", "budget": Budget(1.0, 1e-6)}
    with pytest.raises(ValueError, match="Nothing was spent"):
        release_mixture(data.references, **book)
    assert ledger.history("people") == ()
    made = release_mixture(data.references, **book, accept_risk=True)
    (spend,) = ledger.history("people")
    assert spend.parameters["verdict"] == "not enough records"
    assert "A risk to the result, not to privacy, was accepted: the prediction was 'not enough records'." in (
        made.guarantee.conditions
    )
    assert made.guarantee.holds == "unconditional"
    with pytest.raises(ValueError, match="Nothing was spent"):
        release_atlas(data.references, data.queries, dim=1, **book)
    assert len(Ledger(ledger.path).history("people")) == 1
    with contextlib.suppress(RuntimeError):  # no chart; but the noise has no seed, and may make one
        release_atlas(data.references, data.queries, dim=1, bandwidth=0.1, accept_risk=True, **book)
    assert ledger.history("people")[1].parameters["verdict"] == "not enough records"


@pytest.mark.parametrize(("n", "word"), [(0, "not enough records"), (4_000, "helps"), (20_000, "helps")])
def test_a_guessed_number_of_records_is_judged_by_what_was_found(n, word):
    """With "add-remove" the number of records is private: the released masses say how many there were."""
    rng = np.random.default_rng(0)
    loadings = rng.normal(size=(2, 6))
    records = rng.normal(size=(n, 2)) @ loadings + 0.3 * rng.normal(size=(n, 6))
    queries = rng.normal(size=(40, 2)) @ loadings + 0.6 * rng.normal(size=(40, 6))
    made = release_mixture(
        records,
        public=queries,
        noise=0.5,
        budget=Budget(1.0, 1e-6),
        adjacency="add-remove",
        n_public=20_000,
        seed=1,
    )
    assert made.verdict.word == word
    if n == 0:
        assert "not 20,000, which is too few for this budget: it is mostly noise" in made.verdict.sentence
        assert math.isnan(made.verdict.expected_error)
    if n == 4_000:
        number = int(made.verdict.sentence.split("found about ")[1].split(" ")[0].replace(",", ""))
        assert 2_500 <= number <= 5_000
    if n == 20_000:
        assert "found about" not in made.verdict.sentence


def test_a_mixture_of_too_few_records_is_not_trusted_about_itself():
    """Mostly noise, it expects small errors of its own: what was predicted stands."""
    rng = np.random.default_rng(0)
    queries = rng.normal(size=(40, 6))
    book = {"public": queries, "noise": 0.5, "budget": Budget(1.0, 1e-6), "seed": 1}
    made = release_mixture(rng.normal(size=(200, 6)), accept_risk=True, **book)
    assert made.verdict.word == "not enough records"
    assert "mostly noise" in str(made.verdict)
    assert math.isnan(made.verdict.expected_error)


def test_a_public_number_of_records_cannot_be_overruled():
    data = simulate(make_shape("circle"), 60, 60, 0.1, np.random.default_rng(0))
    for release in (partial(release_atlas, anchors=data.queries, dim=1), release_mixture):
        with pytest.raises(ValueError, match="n_public = 50000: must be at most 60"):
            release(data.references, budget=Budget(1.0, 1e-6), n_public=50_000)


def test_a_mixture_for_unknown_noise_is_not_recorded_as_judged(ledger):
    records = np.random.default_rng(0).normal(size=(20_000, 3))
    release_mixture(records, budget=Budget(1.0, 1e-6), ledger=ledger, dataset="people")
    (spend,) = ledger.history("people")
    assert spend.parameters["verdict"] == "not judged: no noise was given"


def test_no_risk_is_noted_where_none_was_taken(models):
    for model in models:
        assert not any("risk" in one for one in model.guarantee.conditions)
    data = simulate(make_shape("circle"), 6000, 200, 0.1, np.random.default_rng(0))
    made = release_atlas(data.references, data.queries, dim=1, budget=Budget(2.0, 1e-4), accept_risk=True)
    assert not any("risk" in one for one in made.guarantee.conditions)
