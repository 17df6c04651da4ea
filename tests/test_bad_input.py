"""Bad input: refused by name, before any work, without showing what the reference holds."""

import numpy as np
import pytest

from dpmd_fast import (
    Budget,
    DPManifoldDenoiser,
    ManifoldDenoiser,
    dp_projector,
    empirical_sensitivity,
    gradient_descent,
    paper_bandwidth,
)

BUDGET = Budget(epsilon=1.0, delta=1e-6)
RNG = np.random.default_rng(0)
Y, Z = RNG.normal(size=(50, 3)), RNG.normal(size=(4, 3))

REFERENCES = {
    "nan": (np.where(np.arange(150).reshape(50, 3) == 7, np.nan, 0.5), "NaN"),
    "inf": (np.where(np.arange(150).reshape(50, 3) == 7, np.inf, 0.5), "NaN or infinity|infinity"),
    "beyond squares": (np.full((50, 3), 1e120), "overflow"),
    "one dimension": (np.zeros(50), "dimension|1D"),
    "three dimensions": (np.zeros((5, 3, 2)), "dimension|dim 3"),
    "empty": (np.zeros((0, 3)), "0 sample"),
    "no columns": (np.zeros((50, 0)), "0 feature"),
    "text": (np.array([["secret-4711", "b", "c"]] * 50), "not numbers|numeric|convert"),
    "objects": (np.array([["secret-4711", 1.0, 2.0]] * 50, dtype=object), "not numbers|numeric|convert"),
    "too few": (np.zeros((3, 3)), "at least dim \\+ 2"),
    "complex": (np.zeros((50, 3), dtype=complex), "[Cc]omplex"),
}
SETTINGS = {
    "bandwidth zero": ({"bandwidth": 0.0}, "bandwidth"),
    "bandwidth negative": ({"bandwidth": -1.0}, "bandwidth"),
    "bandwidth nan": ({"bandwidth": float("nan")}, "bandwidth"),
    "bandwidth inf": ({"bandwidth": float("inf")}, "bandwidth"),
    "bandwidth text": ({"bandwidth": "wide"}, "bandwidth"),
    "dim zero": ({"dim": 0}, "dim"),
    "dim of all columns": ({"dim": 3}, "dim"),
    "dim fraction": ({"dim": 1.5}, "dim"),
    "beta": ({"beta": 1.0}, "beta"),
}


def calls(reference, queries, bandwidth=1.0, dim=2, beta=2.0):
    """Every public way in, as functions of no arguments."""
    yield lambda: ManifoldDenoiser(bandwidth, dim, beta=beta).fit(reference).transform(queries)
    for mechanism in ("moments", "projector"):
        model = DPManifoldDenoiser(bandwidth, dim, BUDGET, mechanism, beta=beta)
        yield lambda model=model: model.fit(reference).transform(queries)
    yield lambda: gradient_descent(reference, queries, bandwidth, dim, beta=beta)
    yield lambda: empirical_sensitivity(reference, queries, bandwidth, dim, beta=beta)
    if beta == 2.0 and np.ndim(queries) == 2 and len(queries):
        yield lambda: dp_projector(reference, queries[0], bandwidth, dim, BUDGET)


@pytest.mark.parametrize("kind", REFERENCES)
def test_bad_references(kind):
    reference, pattern = REFERENCES[kind]
    for call in calls(reference, Z):
        with pytest.raises(ValueError, match=pattern):
            call()


@pytest.mark.parametrize("kind", [k for k in REFERENCES if k != "too few"])
def test_bad_queries(kind):
    queries, pattern = REFERENCES[kind]
    for call in list(calls(Y, queries))[:5]:
        with pytest.raises(ValueError, match=f"{pattern}|features|finite"):
            call()


@pytest.mark.parametrize("kind", ["text", "objects"])
def test_private_values_are_not_echoed(kind):
    reference, _ = REFERENCES[kind]
    for call in (
        lambda: DPManifoldDenoiser(1.0, 2, BUDGET).fit(reference),
        lambda: dp_projector(reference, Z[0], 1.0, 2, BUDGET),
    ):
        with pytest.raises(ValueError, match="not numbers") as refused:
            call()
        assert "secret" not in str(refused.value)
        assert refused.value.__cause__ is None
        assert refused.value.__context__ is None, "a chained error would show the value in a traceback"


@pytest.mark.parametrize("kind", SETTINGS)
def test_bad_settings(kind):
    settings, name = SETTINGS[kind]
    for call in calls(Y, Z, **settings):
        with pytest.raises(ValueError, match=name):
            call()


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"budget": 1.0}, "budget"),
        ({"budget": None}, "budget"),
        ({"mechanism": "laplace"}, "mechanism"),
        ({"steps": 0}, "steps"),
        ({"steps": 1.0}, "steps"),
        ({"theta": 0.0}, "theta"),
        ({"theta": 1.0}, "theta"),
        ({"theta": float("nan")}, "theta"),
        ({"sensitivity_constant": 0.0}, "sensitivity_constant"),
        ({"sensitivity_constant": -3}, "sensitivity_constant"),
        ({"adjacency": "add-remove", "mechanism": "projector"}, "adjacency"),
        ({"adjacency": "neighbours"}, "adjacency"),
        ({"batch_rows": 0}, "batch_rows"),
        ({"seed": -1}, "seed"),
        ({"seed": 0.5}, "seed"),
        ({"n_threads": 0}, "n_threads"),
        ({"schedule": "sometimes"}, "schedule"),
        ({"schedule": "sometimes", "mechanism": "projector"}, "schedule"),
        ({"schedule": np.zeros((4, 1, 2)), "mechanism": "projector"}, "schedule"),
        ({"schedule": [0.1, 0.2]}, "schedule"),
        ({"schedule": np.zeros((4, 1, 2))}, "schedule"),
        ({"schedule": [[1.0]]}, "schedule"),
    ],
)
def test_bad_private_settings(settings, name):
    arguments = {"bandwidth": 1.0, "dim": 2, "budget": BUDGET, **settings}
    with pytest.raises(ValueError, match=name):
        DPManifoldDenoiser(**arguments).fit(Y).transform(Z)


def test_a_negative_schedule_is_refused():
    schedule = np.full((4, 1, 2), BUDGET.rho / 8)
    schedule[0, 0] += [-BUDGET.rho, BUDGET.rho]
    with pytest.raises(ValueError, match="schedule"):
        DPManifoldDenoiser(1.0, 2, BUDGET, "projector", schedule=schedule).fit(Y).transform(Z)


def test_bad_projector_settings():
    with pytest.raises(ValueError, match="epsilon <= 1"):
        dp_projector(Y, Z[0], 1.0, 2, Budget(2.0, 1e-6))
    dp_projector(Y, Z[0], 1.0, 2, Budget(2.0, 1e-6), calibration="budget")
    with pytest.raises(ValueError, match="calibration"):
        dp_projector(Y, Z[0], 1.0, 2, BUDGET, calibration="exact")
    with pytest.raises(ValueError, match="z has shape"):
        dp_projector(Y, Z, 1.0, 2, BUDGET)
    with pytest.raises(ValueError, match="z contains NaN"):
        dp_projector(Y, [np.nan, 0, 0], 1.0, 2, BUDGET)


def test_bad_bandwidth_rule_arguments():
    for arguments in ((1, 1, 0.1), (100, 0, 0.1), (100, 1, -0.1), (100, 1, float("nan"))):
        with pytest.raises(ValueError, match=r"n =|dim =|sigma ="):
            paper_bandwidth(*arguments)


def test_sparse_is_refused_with_the_way_out():
    import scipy.sparse

    with pytest.raises(TypeError, match=r"toarray|dense"):
        DPManifoldDenoiser(1.0, 2, BUDGET).fit(scipy.sparse.csr_matrix(Y))
