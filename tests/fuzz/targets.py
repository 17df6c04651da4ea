"""The entry points that are fuzzed: good arguments for each, and what a good result looks like."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

import dpmd_fast as dp
from dpmd_fast import Atlas, Budget, Mixture, Preprocessor, metrics
from dpmd_fast.models.geometry.layers import Subspace
from dpmd_fast.privacy.guarantee import certified_guarantee
from dpmd_fast.reference import preprocessed_records
from fuzz.harness import CANARY, NO_CHART, bank, folder

BUDGET = Budget(1.0, 1e-6)
RICH = Budget(60.0, 1e-6)  # so that charts of few records stand out of the noise
STATUSES = {"ok", "outside", "clipped", "failed", "no_neighbor", "filled", "missing"}


@cache
def _circle(n, columns, noise, seed):
    rng = np.random.default_rng(seed)
    angles = rng.uniform(0.0, 2.0 * np.pi, n)
    points = noise * rng.normal(size=(n, columns))
    points[:, 0] += np.cos(angles)
    if columns > 1:
        points[:, 1] += np.sin(angles)
    return points


def reference(columns=2, n=60):
    """Private records, with the canary in several of them."""
    points = _circle(n, columns, 0.03, 0).copy()
    points[3, 0] = CANARY
    points[5, -1] = -CANARY
    points[7] = CANARY
    return points


def queries(columns=2, n=20):
    return _circle(n, columns, 0.1, 1).copy()


@dataclass(frozen=True)
class Target:
    """An entry point.

    Attributes
    ----------
    call : callable
        Of the arguments.
    good : callable
        ``good(columns)``: fresh good arguments, without those of a payment.
    arrays : tuple of str
        Arguments that hold points.
    check : callable
        ``check(arguments, result)`` asserts that a result is well formed.
    spends : bool
        Whether it takes a ledger.
    cost : callable
        mu^2 of a result.
    called : dict
        What messages call an argument, where that is not its name.
    """

    name: str
    call: Callable
    good: Callable
    arrays: tuple[str, ...]
    check: Callable = lambda arguments, result: None
    spends: bool = False
    cost: Callable = lambda result: result.guarantee.mu**2
    called: dict = None
    unlucky: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    private: bool = True

    def names(self, *arguments):
        """What a message about these arguments may call them."""
        called = self.called or {}
        return {name for argument in arguments for name in called.get(argument, (argument,))}

    def arguments(self, columns=2, paid=True):
        given = self.good(columns)
        if self.spends and paid and self.name != "Ledger.spend":
            given.update(ledger=bank().open(), dataset="rich")
        return given

    def paid(self, arguments):
        """A function of the result: what must have been debited, None for nothing."""
        ours = arguments.get("ledger") is not None or self.name == "Ledger.spend"
        return (lambda result: self.cost(result) if ours else None) if self.spends else None


def _finite(array, shape):
    assert array.shape == shape, f"{array.shape}, not {shape}"
    assert np.isfinite(array).all(), "is not finite"


def _check_release(arguments, result):
    K, D = result.locations.shape
    _finite(result.values, (K, D + 1, D + 1))
    assert (result.values == result.values.transpose(0, 2, 1)).all(), "is not symmetric"
    assert np.isfinite(result.mass).all(), "mass is not finite"
    assert result.mean.shape == (K, D), "mean"
    assert np.isfinite(result.mean[result.occupied]).all(), "mean is not finite"
    _finite(result.cleaned(1).values, (K, D + 1, D + 1))
    assert 0.0 < result.guarantee.mu <= arguments["budget"].mu * (1 + 1e-12), "mu"


def _check_atlas(arguments, result):
    points = queries(result.n_columns)
    if result.preprocess is None or not any(result.preprocess.log):
        _finite(result.transform(points, 1), points.shape)
    assert result.spends, "spends nothing"
    result.save(folder() / "made.dpmd")
    assert Atlas.load(folder() / "made.dpmd").guarantee == result.guarantee, "guarantee"


def _check_mixture(arguments, result):
    K, D = result.means.shape
    _finite(result.covariances, (K, D, D))
    assert abs(result.weights.sum() - 1.0) < 1e-9, "weights"
    assert (np.linalg.eigvalsh(result.covariances) > 0.0).all(), "covariances"
    points = queries(D)
    points[0, 0] = np.nan
    if result.preprocess is None or not any(result.preprocess.log):
        _finite(result.transform(points, 0.5, 1), points.shape)
    assert result.spends, "spends nothing"
    result.save(folder() / "made.dpmd")
    assert Mixture.load(folder() / "made.dpmd").guarantee == result.guarantee, "guarantee"


def _check_moved(arguments, result):
    model, points, moved = result
    assert moved.shape == points.shape, "shape"
    assert moved.dtype == (np.float32 if points.dtype == np.float32 else np.float64), "type"
    assert np.isfinite(moved).all(), "is not finite"
    assert len(model.status_) == len(points), "status"
    assert set(np.unique(model.status_)) <= STATUSES, "status"
    still = model.status_ != "ok"
    assert (moved[still] == points[still].astype(moved.dtype)).all(), "moved without success"


def _fitted(kind, arguments, private):
    given = dict(arguments)
    X, Z = given.pop("X"), given.pop("queries")
    model = kind(**given).fit(X)
    moved = model.transform(Z)
    return model, np.asarray(Z), np.asarray(moved)


def _check_projector(arguments, result):
    D, d = result.basis.shape
    _finite(result.projector, (D, D))
    assert np.allclose(result.basis.T @ result.basis, np.eye(d)), "is not orthonormal"


def _check_plan(arguments, result):
    assert result.verdict in ("helps", "no gain", "harm likely", "not enough records"), "verdict"
    assert (result.model != "nothing") == (result.verdict == "helps"), "model"
    assert result.advice and "\n" not in result.advice, "advice"  # noqa: PT018
    assert result.mu2 > 0.0, "mu2"
    for name in ("raw_error", "predicted_error", "public_only_error"):
        error = getattr(result, name)
        assert np.isnan(error) or 0.0 <= error < np.inf, name
    if result.atlas is not None and result.atlas.search is not None:
        for name in ("bandwidth", "signal_to_noise", "noise_error", "seconds"):
            assert getattr(result, name) >= 0.0, name
        assert result.bandwidth < np.inf, "bandwidth"
        assert result.recommended_epsilon > 0.0, "epsilon"
        assert result.rounds >= 1 and result.anchors >= 1, "rounds, anchors"  # noqa: PT018
    if result.mixture is not None:
        made = result.mixture
        assert made.components >= 1 and made.rounds >= 0 and made.enough_records >= 1  # noqa: PT018
        assert made.signal_to_noise > 0.0 and made.component_signal > 0.0, "signal"  # noqa: PT018
        assert len(result.columns) == len(made.by_column), "columns"


def _check_descent(arguments, result):
    assert np.isfinite(result.points).all(), "is not finite"
    assert set(np.unique(result.status)) <= STATUSES, "status"


def _check_sensitivity(arguments, result):
    assert 0.0 <= result.constant < np.inf, "constant"


def _check_preprocessor(arguments, result):
    assert all(0.0 < scale < np.inf for scale in result.scale), "scale"
    assert np.isfinite(result.center).all(), "center"
    inside = np.exp(np.clip(result.center, -50, 50)) if any(result.log) else np.array(result.center)
    assert np.abs(result.forward(inside[None])).max() <= result.clip, "clip"


@cache
def atlas(kind="plain"):
    """A small atlas of each kind."""
    with np.errstate(all="raise"):
        made = dp.release_atlas(
            reference(n=120),
            queries(n=40),
            dim=1,
            bandwidth=0.9,
            rounds=2,
            budget=RICH,
            n_threads=1,
            accept_risk=True,
            preprocess=Preprocessor((0.0, 0.0), (1.0, 1.0), column_names=("x", "y"))
            if kind == "preprocessed"
            else None,
        )
    if kind == "named":
        return _changed(made, column_names=("x", "y"))
    if kind == "subspace":
        rng = np.random.default_rng(2)
        basis = np.linalg.qr(rng.normal(size=(4, 2)))[0]
        return _changed(made, subspace=Subspace(rng.normal(size=4), np.ascontiguousarray(basis)))
    return made


def _changed(made, **changes):
    guarantee = certified_guarantee(
        RICH, mu=made.guarantee.mu, adjacency="replace-one", seeded=False, validated=True
    )
    return dataclasses.replace(made, guarantee=guarantee, **changes)


@cache
def mixture(kind="plain"):
    """A small mixture, with names or a preprocessor."""
    scales = Preprocessor((0.0, 0.0), (1.0, 2.0), column_names=("x", "y"))
    made = dp.release_mixture(
        reference(n=120),
        components=2,
        rounds=1,
        budget=RICH,
        preprocess=scales if kind == "preprocessed" else None,
        accept_risk=True,
        n_threads=1,
    )
    return dataclasses.replace(made, column_names=("x", "y")) if kind == "named" else made


def _clean(kind, arguments):
    X = arguments["X"]
    status = isinstance(X, np.ndarray)
    result = mixture(kind).transform(**arguments, return_status=status)
    return result if status else (result, None)


def _check_cleaned(arguments, result):
    moved, status = result
    if status is not None:
        assert moved.shape == np.asarray(arguments["X"]).shape, "shape"
        assert set(np.unique(status)) <= STATUSES, "status"
        if arguments["on_missing"] == "fill":
            assert np.isfinite(moved[status != "failed"]).all(), "is not finite"


def _transform(kind, arguments):
    made = atlas(kind)
    Z = arguments["Z"]
    if isinstance(Z, np.ndarray):
        return made.transform(Z, arguments["n_threads"], return_status=True)
    return made.transform(Z, arguments["n_threads"]), None


def _check_transformed(arguments, result):
    moved, status = result
    if hasattr(moved, "collect") or hasattr(moved, "read_next_batch"):
        return
    if isinstance(moved, np.ndarray):
        assert np.isfinite(moved).all(), "is not finite"
        assert moved.shape == np.asarray(arguments["Z"]).shape, "shape"
        if status is not None:
            assert len(status) == len(moved), "status"
            assert set(np.unique(status)) <= STATUSES, "status"
    else:
        assert type(moved) is type(arguments["Z"]), "type"


def _report(arguments):
    dp.write_report(folder() / "report.html", **arguments)
    page = (folder() / "report.html").read_text()
    assert "</html>" in page, "is not complete"


def _tables(arguments):
    return metrics.knn_jaccard(**arguments)


def _scores(arguments, result):
    assert np.isfinite(result).all(), "is not finite"


def _ours(function, arguments):
    return function(**arguments)


_THREADS = {"n_threads": 1}
_X = {
    "X": ("X", "reference", "dim", "no budget pays"),
    "queries": ("X", "reference", "features", "no budget pays"),
}

_SPENDING = (
    Target(
        "release_moments",
        partial(_ours, dp.release_moments),
        lambda D: dict(
            reference=reference(D),
            locations=queries(D, 5),
            bandwidth=0.8,
            budget=BUDGET,
            beta=2.0,
            tau=None,
            adjacency="replace-one",
            on_invalid="raise",
            columns=None,
            accept_risk=True,
            seed=None,
            batch_rows=None,
            **_THREADS,
        ),
        ("reference", "locations"),
        _check_release,
        spends=True,
        called={
            "locations": ("locations", "reference"),
            "budget": ("budget", "epsilon", "mu"),
            "ledger": ("ledger", "path", "dataset", "exist", "not a ledger", "seed"),
            "dataset": ("dataset", "ledger", "budget exceeded", "adjacency"),
            "reference": ("reference", "columns"),
            "bandwidth": ("bandwidth", "tau"),
            "beta": ("beta", "tau"),
        },
    ),
    Target(
        "release_atlas",
        partial(_ours, dp.release_atlas),
        lambda D: dict(
            reference=reference(D, 120),
            anchors=queries(D, 30),
            bandwidth=0.9,
            dim=1,
            budget=RICH,
            rounds=1,
            beta=2.0,
            cover=0.5,
            adjacency="replace-one",
            on_invalid="raise",
            columns=None,
            preprocess=None,
            noise=None,
            accept_risk=True,
            n_public=None,
            seed=None,
            batch_rows=None,
            **_THREADS,
        ),
        ("reference", "anchors"),
        _check_atlas,
        spends=True,
        unlucky=(NO_CHART,),
        called={
            "anchors": ("anchors", "reference", "dim"),
            "budget": ("budget", "epsilon", "mu"),
            "ledger": ("ledger", "path", "dataset", "exist", "not a ledger"),
            "dataset": ("dataset", "ledger", "budget exceeded", "adjacency"),
            "reference": ("reference", "columns"),
            "adjacency": ("adjacency", "n_public"),
        },
    ),
    Target(
        "release_mixture",
        partial(_ours, dp.release_mixture),
        lambda D: dict(
            reference=reference(D, 120),
            public=queries(D, 30),
            budget=RICH,
            components=2,
            preprocess=None,
            rounds=1,
            adjacency="replace-one",
            on_invalid="raise",
            on_missing="fill",
            columns=None,
            noise=None,
            accept_risk=True,
            n_public=None,
            seed=None,
            batch_rows=None,
            **_THREADS,
        ),
        ("reference", "public"),
        _check_mixture,
        spends=True,
        called={
            "public": ("public", "reference", "sample"),
            "preprocess": ("preprocess", "public"),
            "budget": ("budget", "epsilon", "mu", "components"),
            "rounds": ("rounds", "components"),
            "n_public": ("n_public", "budget", "components"),
            "ledger": ("ledger", "path", "dataset", "exist", "not a ledger"),
            "dataset": ("dataset", "ledger", "budget exceeded", "adjacency"),
            "reference": ("reference", "columns", "budget", "components"),
            "adjacency": ("adjacency", "n_public"),
            "on_invalid": ("on_invalid", "on_missing"),
        },
    ),
    Target(
        "DPManifoldDenoiser",
        lambda arguments: _fitted(dp.DPManifoldDenoiser, arguments, True),
        lambda D: dict(
            X=reference(D),
            queries=queries(D),
            bandwidth=0.8,
            dim=1,
            budget=BUDGET,
            mechanism="moments",
            steps=1,
            beta=2.0,
            theta=0.5,
            schedule=None,
            sensitivity_constant=1.0,
            adjacency="replace-one",
            accept_risk=True,
            seed=None,
            batch_rows=None,
            **_THREADS,
        ),
        ("X", "queries"),
        _check_moved,
        spends=True,
        cost=lambda result: result[0].guarantee_.mu ** 2,
        foreign=("sklearn",),
        called={
            **_X,
            "budget": ("budget", "epsilon", "mu"),
            "ledger": ("ledger", "path", "dataset", "exist", "not a ledger"),
            "dataset": ("dataset", "ledger", "budget exceeded", "adjacency"),
        },
    ),
    Target(
        "DPManifoldDenoiser, projector",
        lambda arguments: _fitted(dp.DPManifoldDenoiser, arguments, True),
        lambda D: dict(
            X=reference(D),
            queries=queries(D),
            bandwidth=0.8,
            dim=1,
            budget=BUDGET,
            mechanism="projector",
            steps=1,
            beta=2.0,
            theta=0.5,
            schedule=None,
            sensitivity_constant=1.0,
            accept_risk=True,
            seed=None,
            **_THREADS,
        ),
        ("X", "queries"),
        _check_moved,
        spends=True,
        cost=lambda result: result[0].guarantee_.mu ** 2,
        foreign=("sklearn",),
        called={
            **_X,
            "budget": ("budget", "epsilon", "mu"),
            "ledger": ("ledger", "path", "dataset", "exist", "not a ledger"),
            "dataset": ("dataset", "ledger", "budget exceeded", "adjacency"),
        },
    ),
    Target(
        "dp_projector",
        partial(_ours, dp.dp_projector),
        lambda D: {
            "Y": reference(D),
            "z": queries(D, 1)[0],
            "bandwidth": 0.8,
            "dim": 1,
            "budget": BUDGET,
            "calibration": "classic",
            "sensitivity_constant": 1.0,
            "seed": None,
        },
        ("Y", "z"),
        _check_projector,
        spends=True,
        called={
            "Y": ("Y", "reference", "dim", "z"),
            "z": ("z", "Y"),
            "budget": ("budget", "epsilon", "mu", "budget.epsilon"),
            "ledger": ("ledger", "path", "dataset", "exist", "not a ledger"),
            "dataset": ("dataset", "ledger", "budget exceeded", "adjacency"),
        },
    ),
    Target(
        "private_preprocessor",
        partial(_ours, dp.private_preprocessor),
        lambda D: {
            "reference": reference(D),
            "bounds": [(-2.0, 2.0)] * D,
            "budget": RICH,
            "log": "auto",
            "clip": 8.0,
            "skewness": 0.2,
            "bins": 64,
            "adjacency": "replace-one",
            "on_invalid": "raise",
            "columns": None,
            "seed": None,
            "batch_rows": None,
        },
        ("reference", "bounds"),
        _check_preprocessor,
        spends=True,
        called={
            "budget": ("budget", "epsilon", "mu"),
            "reference": ("reference", "columns", "bounds", "budget"),
            "ledger": ("ledger", "path", "dataset", "exist", "not a ledger"),
            "dataset": ("dataset", "ledger", "budget exceeded", "adjacency"),
        },
    ),
)

_FREE = (
    Target(
        "ManifoldDenoiser",
        lambda arguments: _fitted(dp.ManifoldDenoiser, arguments, False),
        lambda D: dict(
            X=reference(D), queries=queries(D), bandwidth=0.8, dim=1, steps=1, beta=2.0, **_THREADS
        ),
        ("X", "queries"),
        _check_moved,
        foreign=("",),
        called={"X": ("",), "queries": ("",)},  # the words are scikit-learn's and NumPy's
        private=False,
    ),
    Target(
        "gradient_descent",
        partial(_ours, dp.gradient_descent),
        lambda D: dict(
            Y=reference(D), Z=queries(D), bandwidth=0.8, dim=1, steps=5, beta=2.0, tolerance=5e-3, **_THREADS
        ),
        ("Y", "Z"),
        _check_descent,
        called={"Y": ("Y", "Z", "dim")},
    ),
    Target(
        "empirical_sensitivity",
        partial(_ours, dp.empirical_sensitivity),
        lambda D: dict(
            Y=reference(D), z=queries(D, 1), bandwidth=0.8, dim=1, beta=2.0, candidates=1, seed=0, **_THREADS
        ),
        ("Y", "z"),
        _check_sensitivity,
        called={"Y": ("Y", "z", "dim"), "bandwidth": ("bandwidth", "z"), "dim": ("dim", "z")},
    ),
    Target(
        "plan",
        partial(_ours, dp.plan),
        lambda D: dict(
            anchors=queries(D, 30),
            n=1000,
            dim=1,
            budget=BUDGET,
            bandwidth="auto",
            cover=0.3,
            adjacency="replace-one",
            preprocess=None,
            **_THREADS,
        ),
        ("anchors",),
        _check_plan,
        called={"anchors": ("anchors", "dim"), "budget": ("budget", "epsilon", "mu")},
    ),
    Target(
        "plan with noise",
        partial(_ours, dp.plan),
        lambda D: dict(
            anchors=queries(D, 30),
            n=1000,
            budget=BUDGET,
            noise=0.5,
            model="auto",
            components="auto",
            rounds="auto",
            adjacency="replace-one",
            preprocess=None,
            **_THREADS,
        ),
        ("anchors",),
        _check_plan,
        called={
            "anchors": ("anchors", "sample", "noise"),
            "budget": ("budget", "epsilon", "mu"),
            "model": ("model", "noise"),
        },
    ),
    *(
        Target(
            f"Mixture.transform, {kind}",
            partial(_clean, kind),
            lambda D: dict(X=queries(2), noise=0.5, on_missing="fill", **_THREADS),
            ("X",),
            _check_cleaned,
        )
        for kind in ("plain", "named", "preprocessed")
    ),
    *(
        Target(
            f"Atlas.transform, {kind}",
            partial(_transform, kind),
            lambda D, width=4 if kind == "subspace" else 2: dict(Z=queries(width), **_THREADS),
            ("Z",),
            _check_transformed,
        )
        for kind in ("plain", "named", "subspace", "preprocessed")
    ),
    Target(
        "Preprocessor.from_public",
        partial(_ours, Preprocessor.from_public),
        lambda D: {
            "sample": np.abs(reference(D)) + 0.1,
            "log": "auto",
            "clip": 8.0,
            "skewness": 0.2,
            "column_names": None,
        },
        ("sample",),
        _check_preprocessor,
    ),
    *(
        Target(
            f"Preprocessor.{way}",
            lambda arguments, way=way: getattr(
                Preprocessor((0.0, 1.0), (1.0, 2.0), (False, True), column_names=("x", "y")), way
            )(arguments["X"]),
            lambda D: {"X": np.abs(queries(2)) + 0.1},
            ("X",),
            lambda arguments, result: _finite(result, np.asarray(arguments["X"]).shape),
        )
        for way in ("forward", "inverse")
    ),
    Target(
        "preprocessed_records",
        lambda arguments: preprocessed_records(
            Preprocessor((0.0, 1.0), (1.0, 2.0), (False, True)), **arguments
        ),
        lambda D: {"reference": reference(2), "columns": None},
        ("reference",),
        called={"reference": ("reference", "columns")},
    ),
    Target(
        "Ledger.fingerprint_of",
        partial(_ours, dp.Ledger.fingerprint_of),
        lambda D: {"reference": reference(D), "columns": None},
        ("reference",),
        lambda arguments, result: None,
        called={"reference": ("reference", "columns")},
    ),
    *(
        Target(
            f"metrics.{name}",
            partial(_ours, getattr(metrics, name)),
            good,
            arrays,
            _scores
            if name not in ("nearest_neighbors", "knn_distortion", "compare_concordance")
            else lambda a, r: None,
            called={
                name: (
                    name,
                    "k",
                    "points",
                    "queries",
                    "raw",
                    "denoised",
                    "labels",
                    "clusters",
                    "time",
                    "event",
                    "risk",
                    "risks",
                    "own",
                    "comparable",
                    "replicate",
                    "method",
                )
                for name in arrays
            },
        )
        for name, good, arrays in (
            (
                "nearest_neighbors",
                lambda D: {
                    "queries": queries(D),
                    "points": reference(D),
                    "k": 3,
                    "method": "auto",
                    "own": None,
                },
                ("queries", "points"),
            ),
            (
                "knn_distance",
                lambda D: {
                    "queries": queries(D),
                    "points": reference(D),
                    "k": 3,
                    "method": "exact",
                    "own": None,
                },
                ("queries", "points"),
            ),
            (
                "knn_jaccard",
                lambda D: {
                    "raw": queries(D),
                    "denoised": queries(D),
                    "points": reference(D),
                    "k": 3,
                    "method": "auto",
                    "own": None,
                },
                ("raw", "denoised", "points"),
            ),
            (
                "knn_distortion",
                lambda D: {
                    "raw": queries(D),
                    "denoised": queries(D),
                    "points": reference(D),
                    "k": 3,
                    "method": "auto",
                    "own": None,
                },
                ("raw", "denoised", "points"),
            ),
            (
                "neighborhood_purity",
                lambda D: {"points": queries(D), "labels": np.arange(20) % 3, "k": None, "metric": "cosine"},
                ("points", "labels"),
            ),
            (
                "clustering_accuracy",
                lambda D: {"labels": np.arange(20) % 3, "clusters": np.arange(20) % 4},
                ("labels", "clusters"),
            ),
            (
                "concordance_index",
                lambda D: {
                    "time": np.arange(1.0, 21.0),
                    "event": np.arange(20) % 2,
                    "risk": np.arange(20.0)[::-1].copy(),
                },
                ("time", "event", "risk"),
            ),
            (
                "compare_concordance",
                lambda D: {
                    "time": np.arange(1.0, 21.0),
                    "event": np.arange(20) % 2,
                    "risks": {"a": np.arange(20.0)},
                    "replicates": 5,
                    "level": 0.9,
                    "seed": 0,
                },
                ("time", "event", "risks"),
            ),
        )
    ),
)

_SCALARS = (
    Target(
        "Budget",
        partial(_ours, Budget),
        lambda D: {"epsilon": 1.0, "delta": 1e-6, "conversion": "gdp"},
        (),
        lambda arguments, result: _scores(None, [result.rho, result.mu]),
    ),
    Target(
        "Budget.from_rho",
        partial(_ours, Budget.from_rho),
        lambda D: {"rho": 0.1, "delta": 1e-6, "conversion": "gdp"},
        (),
        lambda arguments, result: _scores(None, [result.rho, result.epsilon]),
    ),
    Target(
        "Guarantee",
        partial(_ours, dp.Guarantee),
        lambda D: {
            "epsilon": 1.0,
            "delta": 1e-6,
            "mu": 0.2,
            "adjacency": "replace-one",
            "holds": "unconditional",
            "statement": "Unconditional: holds.",
            "conditions": (),
        },
        (),
    ),
    Target(
        "Preprocessor",
        partial(_ours, Preprocessor),
        lambda D: {
            "center": (0.0, 1.0),
            "scale": (1.0, 2.0),
            "log": (False, True),
            "clip": 8.0,
            "column_names": ("x", "y"),
            "guarantee": None,
        },
        (),
        _check_preprocessor,
    ),
    Target(
        "paper_bandwidth",
        partial(_ours, dp.paper_bandwidth),
        lambda D: {"n": 1000, "dim": 2, "sigma": 0.1},
        (),
        lambda arguments, result: _scores(None, [result]),
    ),
    Target(
        "Ledger",
        lambda arguments: dp.Ledger(**arguments).datasets(),
        lambda D: {"path": bank().ledger.path, "timeout": 1.0},
        (),
        called={"path": ("path", "exist", "ledger")},
    ),
    Target(
        "Ledger.create",
        lambda arguments: bank().open().create(**arguments),
        lambda D: {
            "dataset": os.urandom(8).hex(),
            "epsilon": 1.0,
            "delta": 1e-6,
            "adjacency": "replace-one",
            "fingerprint": None,
        },
        (),
        called={"epsilon": ("epsilon", "rho")},
    ),
    Target(
        "Ledger.record_file",
        lambda arguments: bank().ledger.record_file(**arguments),
        lambda D: {"spend_id": 1, "path": "result.dpmd"},
        (),
        called={"path": ("path", "spend_id")},
    ),
    Target(
        "Ledger.spend",
        lambda arguments: bank().open().spend(**arguments),
        lambda D: {
            "dataset": "rich",
            "mu2": 0.1,
            "what": "a release",
            "mechanism": "gaussian",
            "parameters": None,
            "adjacency": None,
            "holds": "unconditional",
            "fingerprint": None,
        },
        (),
        spends=True,
        cost=lambda result: result.mu2,
        called={
            "mu2": ("mu2", "budget exceeded"),
            "dataset": ("dataset", "budget exceeded"),
            "what": ("what", "mu2"),
        },
    ),
)

POINTS = {target.name: target for target in (*_SPENDING, *_FREE)}
ALL = {target.name: target for target in (*_SPENDING, *_FREE, *_SCALARS)}
