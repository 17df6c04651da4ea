"""What a guarantee may claim, and what the paper's route must say about itself."""

from __future__ import annotations

import dataclasses
import math
import pickle
import warnings

import pytest

from dpmd_fast.privacy.budget import Budget
from dpmd_fast.privacy.guarantee import Guarantee, LargeDeltaWarning, warn_large_delta
from dpmd_fast.privacy.paper_guarantee import paper_guarantee

BUDGET = Budget(1.0, 1e-6)
GOOD = {
    "epsilon": 1.0,
    "delta": 1e-6,
    "mu": 0.2,
    "adjacency": "replace-one",
    "holds": "unconditional",
    "statement": "It holds.",
}


def paper(**changes):
    arguments = {
        "mu": BUDGET.mu,
        "n": 1000,
        "dim": 2,
        "bandwidth": 0.5,
        "sensitivity_constant": 3.0,
        "seeded": False,
        "lemma": 2,
    }
    return paper_guarantee(BUDGET, **(arguments | changes))


def test_guarantee_is_a_frozen_value():
    guarantee = Guarantee(**GOOD)
    assert str(guarantee) == "It holds."
    assert guarantee.conditions == ()
    assert pickle.loads(pickle.dumps(guarantee)) == guarantee
    with pytest.raises(dataclasses.FrozenInstanceError):
        guarantee.epsilon = 0.1


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        *[
            (name, bad)
            for name in ("epsilon", "delta", "mu")
            for bad in (math.nan, math.inf, -1.0, True, "1")
        ],
        ("delta", 0.0),
        ("delta", 1.0),
        ("adjacency", "bounded"),
        ("adjacency", None),
        ("holds", "yes"),
        ("holds", True),
        ("statement", ""),
        ("statement", "two\nlines"),
        ("statement", None),
        ("conditions", "text"),
        ("conditions", (1,)),
    ],
)
def test_fields_are_checked(name, bad):
    with pytest.raises(ValueError, match=rf"^{name} = "):
        Guarantee(**(GOOD | {name: bad}))


def test_a_conditional_claim_names_its_conditions():
    with pytest.raises(ValueError, match=r"^conditions"):
        Guarantee(**(GOOD | {"holds": "conditional"}))
    assert Guarantee(**(GOOD | {"holds": "conditional", "conditions": ("n > 3",)})).conditions == ("n > 3",)


def test_a_claim_beyond_mu_is_refused():
    assert Guarantee(**(GOOD | {"mu": BUDGET.mu})).mu == BUDGET.mu
    with pytest.raises(ValueError, match=r"^mu = .*allows mu up to"):
        Guarantee(**(GOOD | {"mu": BUDGET.mu * 1.0001}))
    assert Guarantee(**(GOOD | {"mu": 5.0, "holds": "not private"})).mu == 5.0


def test_lemma_2():
    guarantee = paper(released="the denoised queries")
    assert (guarantee.holds, guarantee.adjacency) == ("conditional", "replace-one")
    assert (guarantee.epsilon, guarantee.delta, guarantee.mu) == (1.0, 1e-6, BUDGET.mu)
    for part in (
        "the denoised queries",
        "Lemma 2",
        "C = 3",
        "Delta_P = C/(n h^d) = 0.012",
        "Delta_m = C/(n h^(d-1)) = 0.006",
        "(1, 1e-06 + n^-c)",
        "replace-one",
    ):
        assert part in str(guarantee)
    assert "basic composition" not in str(guarantee)
    assert "\n" not in str(guarantee)
    text = " ".join(guarantee.conditions)
    for part in (
        "(log n/n)^(1/d) v sqrt(sigma) <~ h << 1 ^ reach",
        "i.i.d.",
        "density bounded",
        "noise of norm at most",
        "1 - n^-c",
        "(epsilon, delta + n^-c)",
        "units",
        "no_neighbor",
        "h and d read from the reference",
        "medians and MADs",
        "low bits",
    ):
        assert part in text
    assert "not below 1" not in text


def test_lemma_1():
    guarantee = paper(lemma=1)
    text = " ".join((str(guarantee), *guarantee.conditions))
    for part in ("Lemma 1", "Delta_P = C/(n h^d) = 0.012", "1 - n^-(1+c)", "(log n/n)^(1/d) v sigma <~ h"):
        assert part in text
    assert "Delta_m" not in text
    assert "n^-c" not in text


def test_seed_means_not_private():
    guarantee = paper(seeded=True)
    assert guarantee.holds == "not private"
    assert "seed makes the noise" in str(guarantee)
    assert "reproducible" in str(guarantee)
    assert guarantee.conditions


def test_variants_say_so():
    assert "basic composition" in str(paper(basic_composition=True))
    assert "h is not below 1 here" in " ".join(paper(bandwidth=6.0).conditions)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("mu", math.nan),
        ("mu", 1.0),
        ("n", 0),
        ("n", 10.0),
        ("dim", 0),
        ("dim", True),
        ("bandwidth", 0.0),
        ("bandwidth", math.inf),
        ("bandwidth", 1e-200),
        ("sensitivity_constant", 0.0),
        ("sensitivity_constant", math.nan),
        ("lemma", 3),
    ],
)
def test_paper_guarantee_arguments(name, bad):
    with pytest.raises(ValueError, match=rf"^{name} = "):
        paper(**{name: bad})


@pytest.mark.parametrize(("delta", "n"), [(0.1, 20_000), (0.01, 100), (0.5, 2)])
def test_large_delta_warns(delta, n):
    with pytest.warns(LargeDeltaWarning, match=rf"1/n.* {n * delta:g} records on average"):
        warn_large_delta(delta, n)


def test_small_delta_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_large_delta(1e-6, 20_000)
        warn_large_delta(0.0099, 100)
    with pytest.raises(ValueError, match=r"^delta"):
        warn_large_delta(math.nan, 10)
