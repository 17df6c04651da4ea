"""Every route that spends, with a ledger: what is debited, when, and what is refused before."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import re
import subprocess
import sys
import textwrap
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.base import clone

import dpmd_fast.mechanisms.moments
import dpmd_fast.mechanisms.projector
from dpmd_fast import (
    Atlas,
    Budget,
    BudgetExceeded,
    DPManifoldDenoiser,
    LargeDeltaWarning,
    Ledger,
    dp_projector,
    release_atlas,
    release_mixture,
    release_moments,
)
from dpmd_fast.errors import UserError
from dpmd_fast.mechanisms.preprocessor import private_preprocessor
from dpmd_fast.mechanisms.spend import check_terms
from dpmd_fast.privacy.ledger.charge import Charge
from dpmd_fast.privacy.ledger.last_debit import last_debit
from dpmd_fast.reference.sources.arrays import ArraySource

BUDGET = Budget(1.0, 1e-6)
ROWS = 2503  # a number that nothing else has


def circle(n, seed, scatter):
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0.0, 2.0 * math.pi, n)
    return np.c_[np.cos(angle), np.sin(angle)] + scatter * rng.normal(size=(n, 2))


Y, Z = circle(ROWS, 0, 0.05), circle(60, 1, 0.2)


def moments(reference=Y, queries=Z, budget=BUDGET, **options):
    return release_moments(reference, queries, bandwidth=0.6, budget=budget, **options).guarantee


def atlas(reference=Y, queries=Z, budget=BUDGET, **options):
    return release_atlas(reference, queries, bandwidth=0.6, dim=1, budget=budget, **options).guarantee


def mixture(reference=Y, queries=Z, budget=BUDGET, **options):
    made = release_mixture(
        reference, public=queries, budget=budget, components=1, on_missing="raise", **options
    )
    return made.guarantee


def projector(reference=Y, queries=Z, budget=BUDGET, **options):
    return dp_projector(reference, queries[0], 0.6, 1, budget, **options).guarantee


def preprocessing(reference=Y, queries=Z, budget=BUDGET, **options):
    return private_preprocessor(reference, bounds=[[-3.0, 3.0]] * 2, budget=budget, **options).guarantee


def denoiser(mechanism):
    def denoise(reference=Y, queries=Z, budget=BUDGET, **options):
        model = DPManifoldDenoiser(0.6, 1, budget, mechanism=mechanism, steps=2, **options)
        model.fit(reference).transform(queries)
        return model.guarantee_

    return denoise


ROUTES = {
    "moments": moments,
    "atlas": atlas,
    "mixture": mixture,
    "Algorithm 1": projector,
    "preprocessing": preprocessing,
    "direct": denoiser("moments"),
    "Algorithm 2": denoiser("projector"),
}
CERTIFIED = ("moments", "atlas", "mixture", "direct", "preprocessing")
COUNTED = ("atlas", "mixture")  # they plan with a public number of records
every = pytest.mark.parametrize("route", ROUTES)


HURT = np.vstack([Y, [[np.nan, 0.0]]])
#: What can be wrong with a release, in the order in which it is looked at: options, and what is said of it.
FAULTS = {
    "account": ({"dataset": None}, "dataset = None"),
    "budget": ({"budget": 1.0}, "budget = 1.0"),
    "adjacency": ({"adjacency": "none"}, "adjacency = 'none'"),
    "seed": ({"seed": -1}, "seed = -1"),
    "public points": ({"reference": Y, "queries": Y[:60]}, "is part of the reference"),
    "payment": ({"dataset": "poor"}, "budget exceeded"),
    "records": ({"reference": HURT}, "reference contains non-finite"),
}
#: A seed is refused with a ledger, so there are two orders.
ORDERS = (
    ("account", "budget", "adjacency", "public points", "payment", "records"),
    ("budget", "adjacency", "seed", "public points", "records"),
)
LACKS = {
    "Algorithm 1": ("adjacency", "records"),  # it takes an array, which is checked when it is taken
    "direct": ("records",),
    "Algorithm 2": ("records",),
    "preprocessing": ("public points",),
}


@every
@pytest.mark.parametrize("order", ORDERS, ids=["with a ledger", "without"])
def test_what_is_wrong_is_found_in_one_order_before_anything_is_spent(route, order, ledger):
    ledger.create("poor", 0.5, 1e-6)
    faults = [fault for fault in order if fault not in LACKS.get(route, ())]
    paid = {"ledger": ledger, "dataset": "people"} if "account" in order else {}
    for place, first in enumerate(faults):
        options = dict(paid)
        for fault in reversed(faults[place:]):
            options |= FAULTS[fault][0]
        if "records" in faults[place:] and "public points" in faults[place:]:
            options |= {"reference": HURT, "queries": HURT[:60]}
        with pytest.raises((ValueError, BudgetExceeded), match=re.escape(FAULTS[first][1])) as told:
            ROUTES[route](**options)
        assert isinstance(told.value, UserError)
    assert ledger.history("people") == ledger.history("poor") == ()


@every
def test_the_debit_is_what_the_guarantee_says(route, ledger):
    guarantee = ROUTES[route](ledger=ledger, dataset="people")
    (spend,) = ledger.history("people")
    assert spend.mu2 == pytest.approx(guarantee.mu**2, rel=1e-14)
    expected = "unconditional" if route in CERTIFIED else "conditional"
    assert spend.holds == guarantee.holds == expected == ledger.guarantee("people").holds
    assert ledger.remaining("people") == pytest.approx(
        ledger.total("people").mu2 - guarantee.mu**2, rel=1e-12
    )
    # Algorithm 1 as printed takes less than its budget buys
    assert spend.mu2 == pytest.approx(BUDGET.mu**2, rel=1e-6) or route == "Algorithm 1"
    text = " ".join(guarantee.conditions)
    assert "charged to a ledger" in text
    assert "No ledger" not in text
    assert "people" not in text
    assert spend.parameters["epsilon"] == 1.0
    assert spend.parameters["conversion"] == "gdp"
    assert spend.pid == os.getpid()
    assert spend.file is None


def test_a_release_carries_its_receipt(ledger, tmp_path):
    made = release_moments(Y, Z, bandwidth=0.6, budget=BUDGET, ledger=ledger, dataset="people")
    assert made.receipt.spend == ledger.history("people")[0]
    made.receipt.record_file(tmp_path / "moments.npy")
    assert ledger.history("people")[0].file == str(tmp_path / "moments.npy")
    assert release_moments(Y, Z, bandwidth=0.6, budget=BUDGET).receipt is None


@every
def test_the_conversion_decides_what_a_request_asks_for(route, ledger):
    budget = Budget(1.0, 1e-6, "paper")
    options = {"calibration": "budget"} if route == "Algorithm 1" else {}
    guarantee = ROUTES[route](ledger=ledger, dataset="people", budget=budget, **options)
    assert ledger.history("people")[0].mu2 == pytest.approx(2.0 * budget.rho, rel=1e-6)
    assert guarantee.mu**2 == pytest.approx(2.0 * budget.rho, rel=1e-6)


@every
def test_without_a_ledger_the_guarantee_says_so(route):
    assert any(
        "No ledger was given: nothing but this release is counted" in c for c in ROUTES[route]().conditions
    )


@pytest.mark.parametrize("route", CERTIFIED)
@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_no_private_number_is_kept(route, adjacency, ledger):
    ledger.create("counted", 1.0, 1e-6, adjacency=adjacency)
    options = {"n_public": 2000} if route in COUNTED else {}
    ROUTES[route](ledger=ledger, dataset="counted", adjacency=adjacency, **options)
    (spend,) = ledger.history("counted")
    numbers = [value for value in spend.parameters.values() if isinstance(value, (int, float))]
    assert numbers
    assert not any(math.isclose(value, ROWS) for value in numbers)
    assert str(ROWS) not in spend.what


@every
def test_an_overspend_is_refused_before_the_reference_is_read(route, ledger, monkeypatch):
    ledger.create("poor", 0.5, 1e-6)
    left = ledger.remaining("poor")
    touched = []
    spend = partial(ROUTES[route], ledger=ledger, dataset="poor")
    if route in ("direct", "Algorithm 2"):  # their fit reads, and spends nothing
        mechanism = "moments" if route == "direct" else "projector"
        model = DPManifoldDenoiser(0.6, 1, BUDGET, mechanism=mechanism, ledger=ledger, dataset="poor")
        spend = partial(model.fit(Y).transform, Z)
    blocks = ArraySource.blocks
    monkeypatch.setattr(ArraySource, "blocks", lambda self: touched.append("pass") or blocks(self))
    for name in ("covariance_at", "build_index"):
        real = getattr(dpmd_fast.mechanisms.projector, name)
        monkeypatch.setattr(
            dpmd_fast.mechanisms.projector, name, lambda *a, real=real: touched.append("pass") or real(*a)
        )
    with pytest.raises(BudgetExceeded) as refused:
        spend()
    assert touched == []
    assert refused.value.remaining == left
    assert refused.value.asked == pytest.approx(BUDGET.mu**2, rel=1e-6) or route == "Algorithm 1"
    assert ledger.history("poor") == ()


@every
def test_the_debit_comes_last_before_the_pass(route, ledger, monkeypatch):
    # validation passes first, then the debit, then the passes that are released
    events = []
    spend = Ledger.spend

    def watched(self, *arguments, **options):
        events.append("debit")
        return spend(self, *arguments, **options)

    monkeypatch.setattr(Ledger, "spend", watched)
    blocks = ArraySource.blocks
    monkeypatch.setattr(ArraySource, "blocks", lambda self: events.append("pass") or blocks(self))
    for module, name in (
        ("dpmd_fast.mechanisms.projector", "covariance_at"),
        ("dpmd_fast.mechanisms.denoiser", "denoise_with_projectors"),
        ("dpmd_fast.mechanisms.spend", "noisy_sums"),
        ("dpmd_fast.mechanisms.preprocessor", "noisy_sums"),
    ):
        real = getattr(sys.modules[module], name)

        def passing(*arguments, real=real):
            events.append("release")
            return real(*arguments)

        monkeypatch.setattr(f"{module}.{name}", passing)
    ROUTES[route](ledger=ledger, dataset="people")
    assert events.count("debit") == 1
    before, after = events[: events.index("debit")], events[events.index("debit") + 1 :]
    assert before == (["pass"] if route in CERTIFIED else [])  # the check of the values
    assert after[0] == ("pass" if route in CERTIFIED else "release")
    assert after.count("release") >= (2 if route == "direct" else 1)


@every
def test_a_seed_with_a_ledger_is_refused_before_anything(route, ledger):
    with pytest.raises(ValueError, match=r"^seed = 1: must be None with a ledger"):
        ROUTES[route](ledger=ledger, dataset="people", seed=1, reference="no such file", budget=None)
    with pytest.raises(ValueError, match=r"^seed = 0: must be None with a ledger"):
        ROUTES[route](ledger=ledger, dataset="people", seed=0)
    assert ledger.history("people") == ()


@every
def test_ledger_and_dataset_come_together(route, ledger, tmp_path):
    with pytest.raises(ValueError, match=r"^dataset = None: must be given with a ledger"):
        ROUTES[route](ledger=ledger)
    with pytest.raises(ValueError, match=r"^ledger = None: must be given with dataset = 'people'"):
        ROUTES[route](dataset="people")
    with pytest.raises(ValueError, match=r"^ledger is a int: must be a Ledger or the path"):
        ROUTES[route](ledger=3, dataset="people")
    with pytest.raises(ValueError, match=r"^dataset = 'others': the ledger .* has 'people'"):
        ROUTES[route](ledger=ledger, dataset="others")
    with pytest.raises(FileNotFoundError, match="must be a ledger"):
        ROUTES[route](ledger=tmp_path / "missing.db", dataset="people")
    ROUTES[route](ledger=ledger.path, dataset="people")
    assert len(ledger.history("people")) == 1


@pytest.mark.parametrize("route", CERTIFIED)
def test_another_adjacency_is_refused(route, ledger):
    options = {"n_public": 2000} if route in COUNTED else {}
    with pytest.raises(ValueError, match=r"^adjacency = 'add-remove': .*do not add up"):
        ROUTES[route](ledger=ledger, dataset="people", adjacency="add-remove", **options)
    assert ledger.history("people") == ()


BAD = Y.copy()
BAD[17, 1] = np.nan
REFUSED = {
    "values that are not finite": ({"reference": BAD}, ValueError),
    "columns": ({"reference": np.c_[Y, Y]}, ValueError),
    "queries from the reference": ({"queries": Y[:60]}, ValueError),
    "warning as an error": ({"budget": Budget(1.0, 0.01)}, LargeDeltaWarning),
    "no lattice": ({"budget": Budget(1e15, 1e-4)}, ValueError),
}


@every
@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.filterwarnings("error::dpmd_fast.LargeDeltaWarning")
def test_bad_input_costs_nothing(route, kind, ledger):
    options, error = REFUSED[kind]
    if route == "preprocessing" and kind == "queries from the reference":
        pytest.skip("it has no queries")
    if kind == "no lattice" and route == "Algorithm 2":
        error = BudgetExceeded  # it has no lattice
    if kind == "columns" and route == "Algorithm 1":
        options = {"reference": Y[:, :1]}
    ledger.create("rich", 1e3, 0.1)
    with pytest.raises(error):
        ROUTES[route](ledger=ledger, dataset="rich", **options)
    assert ledger.history("rich") == ()


@every
def test_a_release_that_fails_leaves_its_debit_and_says_so(route, ledger, monkeypatch):
    def fail(*_, **__):
        raise MemoryError("no memory left")

    for module in ("projector", "algorithm2"):
        monkeypatch.setattr(f"dpmd_fast.mechanisms.{module}.noisy_projectors", fail)
    for module in ("spend", "preprocessor"):
        monkeypatch.setattr(f"dpmd_fast.mechanisms.{module}.noisy_sums", fail)
    with pytest.raises(
        RuntimeError, match=r"failed after its debit.*'people' stays spent \(spend 1\): MemoryError"
    ):
        ROUTES[route](ledger=ledger, dataset="people")
    (spend,) = ledger.history("people")
    assert spend.mu2 > 0.9 * BUDGET.mu**2 or route == "Algorithm 1"
    with pytest.raises(MemoryError):  # without a ledger, the error as it is
        ROUTES[route]()


def test_conditional_and_unconditional_spends_add_up(ledger):
    first = moments(ledger=ledger, dataset="people")
    assert ledger.guarantee("people").holds == "unconditional"
    second = projector(ledger=ledger, dataset="people")
    third = moments(ledger=ledger, dataset="people")
    together = ledger.guarantee("people")
    assert together.holds == "conditional"
    assert together.mu**2 == pytest.approx(first.mu**2 + second.mu**2 + third.mu**2, rel=1e-12)
    assert "a projector at a public point" in together.statement


def test_what_is_not_private_is_not_sold(ledger):
    # so large a unit that the noise of the paper's bound is lost in rounding
    model = DPManifoldDenoiser(1e12, 1, BUDGET, mechanism="projector", ledger=ledger, dataset="people")
    model.fit(1e12 * Y)
    with pytest.raises(ValueError, match=r"^no budget pays for denoising .*Not private"):
        model.transform(1e12 * Z)
    assert ledger.history("people") == ()


# The denoiser


@pytest.mark.parametrize("mechanism", ["moments", "projector"])
def test_a_fit_allows_as_many_transforms_as_the_ledger_pays_for(mechanism, ledger):
    small = Budget(0.5, 1e-6)
    payable = int(ledger.total("people").mu2 / small.mu**2)
    model = DPManifoldDenoiser(0.6, 1, small, mechanism=mechanism, ledger=ledger, dataset="people").fit(Y)
    assert ledger.history("people") == ()
    results = [model.transform(Z) for _ in range(payable)]
    assert payable > 5
    assert not np.array_equal(results[0], results[1])
    assert len({spend.id for spend in ledger.history("people")}) == payable
    assert model.receipt_.spend.id == ledger.history("people")[-1].id
    with pytest.raises(BudgetExceeded) as refused:
        model.transform(Z)
    assert refused.value.remaining == ledger.remaining("people") < small.mu**2
    with pytest.raises(BudgetExceeded):
        model.fit(Y).transform(Z)  # a new fit is no new budget
    assert not hasattr(model, "receipt_")
    # without one, a single transform
    model.set_params(ledger=None, dataset=None).transform(Z)
    assert model.receipt_ is None
    with pytest.raises(BudgetExceeded, match="second transform"):
        model.transform(Z)
    assert len(ledger.history("people")) == payable


def test_the_conventions_hold_with_a_ledger(ledger):
    model = DPManifoldDenoiser(0.6, 1, BUDGET, ledger=ledger, dataset="people")
    assert model.get_params()["ledger"] is ledger
    twin = clone(model)
    assert twin.get_params()["ledger"] == ledger
    assert twin.dataset == "people"
    assert "people" in repr(twin)
    again = pickle.loads(pickle.dumps(copy.deepcopy(twin)))
    again.fit(Y).transform(Z)
    twin.set_params(budget=Budget(0.5, 1e-6)).fit(Y).transform(Z)
    assert len(ledger.history("people")) == 2
    by_path = clone(DPManifoldDenoiser(0.6, 1, BUDGET, ledger=ledger.path, dataset="people"))
    by_path.fit(Y).transform(Z)
    assert len(ledger.history("people")) == 3


def test_the_result_of_a_transform_can_be_noted(ledger, tmp_path):
    model = DPManifoldDenoiser(0.6, 1, BUDGET, ledger=ledger, dataset="people").fit(Y)
    np.save(tmp_path / "clean.npy", model.transform(Z))
    model.receipt_.record_file(tmp_path / "clean.npy")
    tangent = dp_projector(Y, Z[0], 0.6, 1, BUDGET, ledger=ledger, dataset="people")
    tangent.receipt.record_file("tangent.npy")
    assert [os.path.basename(spend.file) for spend in ledger.history("people")] == [
        "clean.npy",
        "tangent.npy",
    ]
    assert dp_projector(Y, Z[0], 0.6, 1, BUDGET).receipt is None


# The atlas


def test_the_file_of_a_mixture_is_noted(ledger, tmp_path):
    made = release_mixture(Y, budget=BUDGET, components=1, ledger=ledger, dataset="people")
    made.save(tmp_path / "mixture.dpmd")
    (spend,) = ledger.history("people")
    assert spend.file == str(tmp_path / "mixture.dpmd")
    assert b"people" not in (tmp_path / "mixture.dpmd").read_bytes()


def test_the_file_of_an_atlas_is_noted(ledger, tmp_path):
    made = release_atlas(Y, Z, bandwidth=0.6, dim=1, budget=BUDGET, ledger=ledger, dataset="people")
    assert ledger.history("people")[0].file is None
    path = tmp_path / "circle.dpmd"
    made.save(path)
    made.save(tmp_path / "copy.dpmd")
    (spend,) = ledger.history("people")
    assert spend.files == (str(path), str(tmp_path / "copy.dpmd"))
    assert spend.id == made.receipt.spend.id
    assert b"people" not in path.read_bytes()
    assert os.fsencode(ledger.path) not in path.read_bytes()
    loaded = Atlas.load(path)
    assert loaded.receipt is None
    loaded.save(tmp_path / "third.dpmd")
    assert len(ledger.history("people")[0].files) == 2
    assert loaded.guarantee == made.guarantee
    os.rename(ledger.path, tmp_path / "away.db")
    with pytest.raises(
        RuntimeError, match=r"fourth\.dpmd is written, but the ledger could not note it for spend 1"
    ):
        made.save(tmp_path / "fourth.dpmd")
    assert (tmp_path / "fourth.dpmd").exists()


def test_an_atlas_without_a_chart_stays_paid(ledger, monkeypatch):
    monkeypatch.setattr("dpmd_fast.models.geometry.charts.OCCUPIED", 9.0)  # noise alone is above 3 at times
    far = Z + 1e4
    with pytest.raises(RuntimeError, match=r"stays spent \(spend 1\): no chart stands out"):
        release_atlas(Y, far, bandwidth=0.6, dim=1, budget=BUDGET, ledger=ledger, dataset="people")
    assert ledger.history("people")[0].mu2 == pytest.approx(BUDGET.mu**2, rel=1e-12)


def test_a_debit_that_was_interrupted_is_made_before_anything_else(ledger, monkeypatch):
    terms = check_terms(
        budget=BUDGET,
        ledger=ledger,
        dataset="people",
        seed=None,
        adjacency="replace-one",
        on_invalid="raise",
        n_threads=None,
    )
    charge = Charge(
        terms.account,
        terms.certified(BUDGET.mu),
        "a release",
        mechanism="any",
        parameters={},
        fingerprint=lambda: "",
    )

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "spend", interrupted)
        with pytest.raises(KeyboardInterrupt):
            charge.debit()
    assert ledger.history("people") == ()
    assert last_debit() is None  # nothing is in the ledger
    charge.debit()
    charge.debit()
    assert len(ledger.history("people")) == 1
    assert "stays spent (spend 1)" in last_debit()


@pytest.mark.parametrize("columns", [2, 10])
def test_an_atlas_is_one_debit_however_many_releases_it_takes(columns, ledger):
    rng = np.random.default_rng(2)
    wide, queries = (np.c_[X, 0.01 * rng.normal(size=(len(X), columns - 2))] for X in (Y, Z))
    made = release_atlas(wide, queries, dim=1, budget=BUDGET, ledger=ledger, dataset="people", rounds=2)
    assert len(made.spends) >= 2
    (spend,) = ledger.history("people")
    assert spend.mu2 == pytest.approx(math.fsum(mu2 for _, mu2 in made.spends), rel=1e-12)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs SIGKILL")
def test_a_kill_between_debit_and_release_leaves_a_debit_and_no_file(ledger, tmp_path):
    code = """
        import os, signal, sys
        import numpy as np
        import dpmd_fast.mechanisms.atlas.rounds
        from dpmd_fast import Budget, release_atlas
        from dpmd_fast.privacy.ledger.ledger import Ledger

        spend = Ledger.spend

        def deadly(*arguments, **options):
            spend(*arguments, **options)
            os.kill(os.getpid(), signal.SIGKILL)

        Ledger.spend = deadly
        Y, Z = np.load(sys.argv[2]), np.load(sys.argv[3])
        made = release_atlas(
            Y, Z, bandwidth=0.6, dim=1, budget=Budget(1.0, 1e-6), ledger=sys.argv[1], dataset="people"
        )
        made.save(sys.argv[4])
    """
    np.save(tmp_path / "y.npy", Y)
    np.save(tmp_path / "z.npy", Z)
    arguments = [ledger.path, *(str(tmp_path / name) for name in ("y.npy", "z.npy", "atlas.dpmd"))]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments], capture_output=True, check=False
    )
    assert done.returncode == -9, done.stderr
    assert not (tmp_path / "atlas.dpmd").exists()
    (spend,) = ledger.history("people")
    assert spend.mu2 == pytest.approx(BUDGET.mu**2, rel=1e-12)
    assert spend.file is None
    assert spend.pid != os.getpid()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_spends_from_the_ledger(ledger, tmp_path):
    code = """
        import json, os, sys
        import numpy as np
        from dpmd_fast import Budget, DPManifoldDenoiser
        Y, Z = np.load(sys.argv[2]), np.load(sys.argv[3])
        model = DPManifoldDenoiser(
            0.6, 1, Budget(1.0, 1e-6), n_threads=1, ledger=sys.argv[1], dataset="people"
        ).fit(Y)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            np.save(sys.argv[4], model.transform(Z))
            os.write(write, b"done")
            os._exit(0)
        os.waitpid(pid, 0)
        os.close(write)
        mine = model.transform(Z)
        print(json.dumps([os.read(read, 10).decode(), bool((mine != np.load(sys.argv[4])).any())]))
    """
    np.save(tmp_path / "y.npy", Y)
    np.save(tmp_path / "z.npy", Z)
    arguments = [ledger.path, *(str(tmp_path / name) for name in ("y.npy", "z.npy", "child.npy"))]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NUMBA_THREADING_LAYER": "workqueue"},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["done", True]
    assert len({spend.pid for spend in ledger.history("people")}) == 2


# A name bound to one reference


def kinds(values, folder):
    table = pa.table({"x": values[:, 0], "y": values[:, 1]})
    paths = [folder / "first.parquet", folder / "second.parquet"]
    pq.write_table(table.slice(0, 1000), paths[0], row_group_size=100)
    pq.write_table(table.slice(1000), paths[1])
    return [values, np.asfortranarray(values), pd.DataFrame(values, columns=["x", "y"]), table, paths]


def test_a_fingerprint_is_the_same_for_all_kinds_of_input(tmp_path):
    prints = {Ledger.fingerprint_of(kind) for kind in (*kinds(Y, tmp_path), Y.tolist())}
    assert len(prints) == 1
    assert prints.pop().startswith("sha256:")
    single = Y.astype(np.float32)
    assert Ledger.fingerprint_of(single) == Ledger.fingerprint_of(single.astype(np.float64))
    moved = Y.copy()
    moved[-1, -1] = np.nextafter(moved[-1, -1], 9.0)
    others = [moved, Y[::-1], Y[:-1], Y[:, ::-1], Y.reshape(1, -1), Y[:, :1]]
    assert len({Ledger.fingerprint_of(other) for other in (Y, *others)}) == 7
    table = pa.table({"x": Y[:, 0], "y": Y[:, 1], "name": ["a"] * ROWS})
    assert Ledger.fingerprint_of(table, columns=["x", "y"]) == Ledger.fingerprint_of(Y)
    missing = pa.table({"x": pa.array([1.0, None]), "y": [0.0, -0.0]})
    assert Ledger.fingerprint_of(missing) == Ledger.fingerprint_of(np.array([[1.0, 0.0], [np.nan, 0.0]]))


@every
def test_a_bound_name_takes_its_reference_only(route, ledger):
    ledger.create("bound", 3.0, 1e-6, fingerprint=Ledger.fingerprint_of(Y))
    ROUTES[route](ledger=ledger, dataset="bound")
    with pytest.raises(ValueError, match="'bound' is bound to another reference"):
        ROUTES[route](reference=Y[1:], ledger=ledger, dataset="bound")
    assert len(ledger.history("bound")) == 1


def test_a_bound_name_with_tables_and_streams(ledger, tmp_path):
    ledger.create("bound", 9.0, 1e-6, fingerprint=Ledger.fingerprint_of(Y))
    for kind in kinds(Y, tmp_path):
        moments(reference=kind, ledger=ledger, dataset="bound")
    assert len(ledger.history("bound")) == 5
    table = kinds(Y, tmp_path)[3]
    stream = {"on_invalid": "drop", "ledger": ledger}
    with pytest.raises(ValueError, match="read only once: a fingerprint needs an extra pass"):
        moments(reference=table.to_reader(), dataset="bound", **stream)
    moments(reference=table.to_reader(), dataset="people", **stream)
    assert len(ledger.history("people")) == 1


def test_without_a_fingerprint_nothing_is_hashed(ledger, monkeypatch):
    def forbidden(reference):
        raise AssertionError("hashed")

    monkeypatch.setattr("dpmd_fast.mechanisms.spend.fingerprint_of", forbidden)
    moments(ledger=ledger, dataset="people")
    assert ledger.total("people").fingerprint is None
