"""What a guarantee covers, as data; and what is printed of it claims no less than its numbers."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from dpmd_fast import Budget, DPManifoldDenoiser, Ledger, release_moments
from dpmd_fast.mechanisms.preprocessor import private_preprocessor
from dpmd_fast.privacy.guarantee import (
    Guarantee,
    bound,
    certified_guarantee,
    held_by_engine,
    joint_guarantee,
    not_below,
    total_guarantee,
)
from dpmd_fast.privacy.scope import TOPICS, Covered, check_scope, scope_noted, scope_of
from dpmd_fast.reference import engine_reference, partial_sums

BUDGET = Budget(1.0, 1e-6)
RNG = np.random.default_rng(0)
Y, Z = RNG.normal(size=(300, 2)), RNG.normal(size=(5, 2))


def certified(budget=BUDGET, *, adjacency="replace-one", seeded=False, validated=False):
    return certified_guarantee(budget, mu=budget.mu, adjacency=adjacency, seeded=seeded, validated=validated)


def covered(guarantee):
    return {entry.topic: entry.covered for entry in guarantee.scope}


# What is printed


def test_a_printed_epsilon_is_not_rounded_down():
    """Failed before: 1.00000499 was shown as 1."""
    text = str(certified(Budget(1.00000499, 1.0000049e-6)))
    assert "(1.00001, 1.00001e-06)-differential privacy" in text
    assert "(1.00001, " in str(
        total_guarantee(
            "d",
            Budget(1.00000499, 1e-6),
            mu=Budget(1.00000499, 1e-6).mu,
            adjacency="replace-one",
            releases=1,
            conditional=["x"],
        )
    )


@pytest.mark.parametrize(
    ("number", "text"),
    [(1.0, "1"), (0.1, "0.1"), (1e-6, "1e-06"), (0.0, "0"), (1.000001, "1.00001"), (123456.5, "123457"),
     (0.3, "0.3"), (1e-300, "1e-300"), (2.5, "2.5"), (1 / 3, "0.333334")],
)  # fmt: skip
def test_numbers_are_rounded_up(number, text):
    assert not_below(number) == text
    assert float(text) >= number


def test_rounding_up_never_claims_less():
    for number in np.exp(np.random.default_rng(1).uniform(-30, 30, 2000)):
        assert number <= float(not_below(number)) <= number * (1 + 1e-5)


# The headline says what it holds for


def test_the_headline_says_whether_every_data_set_is_meant():
    """Failed before: "for every data set" was printed where one NaN tells neighbours apart, for nothing."""
    options = {"bandwidth": 1.0, "budget": BUDGET}
    checked = release_moments(Y, Z, **options).guarantee
    total = release_moments(Y, Z, on_invalid="drop", **options).guarantee
    assert "holds for every data set of valid records. The guarantee does not cover one fact" in str(checked)
    assert str(total).endswith("holds for every data set.")
    seeded = release_moments(Y, Z, seed=1, **options).guarantee
    assert "would hold for every data set of valid records." in str(seeded)


def test_the_headline_of_a_denoiser_and_its_option():
    model = DPManifoldDenoiser(1.0, 1, BUDGET).fit(Y)
    model.transform(Z)
    assert "of valid records" in str(model.guarantee_)
    hurt = np.vstack([Y, [[np.nan, 1.0]], [[np.inf, 0.0]], [[1e101, 0.0]]])
    with pytest.raises(ValueError, match="NaN or infinity"):
        DPManifoldDenoiser(1.0, 1, BUDGET).fit(hurt)
    settings = {"seed": 3, "on_invalid": "drop", "adjacency": "add-remove"}
    moved = DPManifoldDenoiser(1.0, 1, BUDGET, **settings).fit(hurt).transform(Z)
    alone = DPManifoldDenoiser(1.0, 1, BUDGET, **settings).fit(Y).transform(Z)
    np.testing.assert_array_equal(moved, alone)
    model = DPManifoldDenoiser(1.0, 1, BUDGET, on_invalid="drop").fit(hurt)
    model.transform(Z)
    assert str(model.guarantee_).endswith("holds for every data set.")
    with pytest.raises(ValueError, match="on_invalid = 'drop': mechanism 'projector'"):
        DPManifoldDenoiser(1.0, 1, BUDGET, mechanism="projector", on_invalid="drop").fit(Y)
    with pytest.raises(ValueError, match="on_invalid = 'ignore'"):
        DPManifoldDenoiser(1.0, 1, BUDGET, on_invalid="ignore").fit(Y)


def test_a_ledger_says_it_too(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.create("d", 3.0, 1e-6)
    options = {"bandwidth": 1.0, "budget": BUDGET, "ledger": ledger, "dataset": "d"}
    release_moments(Y, Z, on_invalid="drop", **options)
    assert str(ledger.guarantee("d")).endswith("holds for every data set.")
    release_moments(Y, Z, **options)
    assert "of valid records" in str(ledger.guarantee("d"))
    assert [spend.parameters["on_invalid"] for spend in ledger.history("d")] == ["drop", "raise"]


def test_a_joint_guarantee_says_it_if_one_of_the_two_does():
    for first in (False, True):
        for second in (False, True):
            joint = joint_guarantee(certified(validated=first), certified(validated=second))
            assert ("of valid records" in str(joint)) == (first or second)
            assert covered(joint)["invalid records"] == (not (first or second))


def test_the_headline_names_an_engine_and_a_binding():
    """Failed before: the headline of a release by an engine claimed the same as that of this process."""
    both = bound(held_by_engine(certified(validated=True)))
    ending = (
        "no invalid values. It assumes that the engine returns each partition once. That the reference was "
        "the bound one is not covered."
    )
    assert str(both).endswith(ending)
    for joint in (joint_guarantee(both, certified()), joint_guarantee(certified(), both)):
        assert str(joint).endswith(ending)
        assert [covered(joint)[topic] for topic in ("engine", "binding to a reference")] == [False, False]
    options = {"mu": 0.1, "adjacency": "replace-one", "releases": 1, "conditional": ["x"]}
    total = total_guarantee("d", BUDGET, engine=True, **options)
    assert str(total).endswith("do. It assumes that the engine returns each partition once.")


def test_a_ledger_knows_that_an_engine_held_the_records(tmp_path):
    def run(task):
        return [partial_sums(task, [part], 1, partition=i) for i, part in enumerate(np.array_split(Y, 3))]

    ledger = Ledger(tmp_path / "ledger.db")
    ledger.create("d", 3.0, 1e-6)
    options = {"bandwidth": 1.0, "budget": BUDGET, "on_invalid": "drop", "ledger": ledger, "dataset": "d"}
    release_moments(Y, Z, **options)
    assert str(ledger.guarantee("d")).endswith("holds for every data set.")
    made = release_moments(engine_reference(run, columns=2), Z, **options)
    for told in (made.guarantee, ledger.guarantee("d")):
        assert str(told).endswith("every data set. It assumes that the engine returns each partition once.")


# The scope


def test_preprocessing_of_before_has_no_scope_and_hides_nothing():
    """Failed before: the later release's scope stood in, also where the preprocessing checked records."""
    old = dataclasses.replace(certified(validated=True), scope=())
    joint = joint_guarantee(certified(), old)
    assert "of valid records" in str(joint)
    assert covered(joint)["invalid records"] is False


def test_every_certified_guarantee_has_every_topic():
    for adjacency in ("replace-one", "add-remove"):
        for validated in (False, True):
            found = covered(certified(adjacency=adjacency, validated=validated))
            assert tuple(found) == TOPICS
            assert found["number of records"] == (adjacency == "add-remove")
            assert found["invalid records"] == (not validated)
            for topic in ("time", "memory", "several rows of one person", "public points and parameters"):
                assert found[topic] is False
    assert covered(certified(seeded=True))["randomness"] is False


def test_a_bound_release_says_that_the_reference_was_read_before_the_debit(tmp_path):
    """Failed before: "debited before the reference is read" was said of these, too."""
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.create("bound", 3.0, 1e-6, fingerprint=Ledger.fingerprint_of(Y))
    ledger.create("free", 3.0, 1e-6)
    for dataset in ("bound", "free"):
        made = release_moments(
            Y, Z, bandwidth=1.0, budget=BUDGET, on_invalid="drop", ledger=ledger, dataset=dataset
        ).guarantee
        text = "it was read for its fingerprint before the debit"
        assert any(text in condition for condition in made.conditions) == (dataset == "bound")
        assert covered(made)["binding to a reference"] == (dataset == "free")
        for told in (made, ledger.guarantee(dataset)):
            words = "holds for every data set. That the reference was the bound one is not covered."
            assert str(told).endswith(words if dataset == "bound" else "holds for every data set.")
        assert covered(made)["other releases"] is True


def test_a_scope_goes_through_json_and_files():
    guarantee = certified(validated=True)
    noted = json.loads(json.dumps(guarantee.to_dict()))
    assert Guarantee.from_dict(noted) == guarantee
    del noted["scope"]  # as older versions wrote it
    assert Guarantee.from_dict(noted) == dataclasses.replace(guarantee, scope=())
    made = private_preprocessor(Y, bounds=[[-3.0, 3.0]] * 2, budget=Budget(20.0, 1e-6))
    again = type(made).from_dict(json.loads(json.dumps(made.to_dict())))
    assert again.guarantee == made.guarantee
    assert again.guarantee.scope


@pytest.mark.parametrize(
    "bad",
    [None, 7, "time", [7], [["time", False]], [{"topic": "time"}],
     [{"topic": "x", "covered": True, "why": "y"}],
     [{"topic": "time", "covered": 1, "why": "y"}], [{"topic": "time", "covered": True, "why": " "}],
     [{"topic": "time", "covered": True, "why": "y"}] * 2],
)  # fmt: skip
def test_what_is_no_scope_is_refused(bad):
    with pytest.raises((ValueError, TypeError)):
        scope_of(bad)
    with pytest.raises(ValueError, match="scope"):
        check_scope(bad)


def test_scopes_are_plain_data():
    entry = Covered("time", False, "It depends.")
    assert scope_noted((entry,)) == [{"topic": "time", "covered": False, "why": "It depends."}]
    assert scope_of(scope_noted((entry,))) == (entry,)
    assert math.isfinite(hash(certified()))
