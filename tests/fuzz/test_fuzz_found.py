"""What fuzzing has found, input by input; and that the judge finds what it should."""

import warnings
from fractions import Fraction

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import dpmd_fast as dp
from dpmd_fast import Budget, DPManifoldDenoiser, ManifoldDenoiser, metrics
from dpmd_fast.arguments import shown
from dpmd_fast.errors import UserError
from dpmd_fast.mechanisms.atlas.subspace import valid_inside
from dpmd_fast.models.geometry.anchors import read_moments
from dpmd_fast.models.geometry.layers import Subspace
from dpmd_fast.models.predict_atlas import predict_atlas
from dpmd_fast.reference import PartialSums, arrow_batches, merge_sums, partial_sums
from dpmd_fast.reference.tasks import MismatchedSums, SumTask, ValidTask, with_view
from dpmd_fast.tables.files import read_points, transform_file
from fuzz.harness import CANARY, DIGITS, NO_CHART, UNREADABLE, Finding, bank, judged, whispers
from fuzz.strategies import VALUES
from fuzz.targets import BUDGET, POINTS, RICH, atlas, queries, reference


def refused(pattern, call, error=ValueError):
    """The text of a refusal that costs nothing and tells nothing."""
    before = bank().spends()
    with pytest.raises(error, match=pattern) as told:
        call()
    assert isinstance(told.value, UserError)
    assert not whispers(str(told.value))
    assert bank().spends() == before


@pytest.mark.parametrize("high", [1e-300, 1e-60, 1e-39])
def test_bounds_that_give_no_scale_are_refused_before_the_spend(high):
    paid = {"ledger": bank().open(), "dataset": "rich"}
    bounds = [(0.0, high), (-2.0, 2.0)]
    refused(
        "^bounds of column 0",
        lambda: dp.private_preprocessor(reference(), bounds=bounds, budget=RICH, **paid),
    )


def test_masks_are_not_dropped():
    masked = np.ma.MaskedArray(queries(), np.arange(40).reshape(20, 2) == 3)
    for name, argument in (
        ("release_moments", "locations"),
        ("DPManifoldDenoiser", "X"),
        ("plan", "anchors"),
    ):
        target = POINTS[name]
        refused(
            f"^{argument} is a masked array",
            lambda target=target, argument=argument: target.call({**target.arguments(), argument: masked}),
            TypeError,
        )


@pytest.mark.parametrize(
    "name", ["bandwidth", "beta", "budget", "n_threads", "tau", "adjacency", "columns", "dataset"]
)
def test_the_reference_in_the_place_of_a_parameter_is_not_shown(name):
    target = POINTS["release_moments"]
    refused(f"^{name} = <ndarray>", lambda: target.call({**target.arguments(), name: reference()}))


def test_what_messages_show():
    assert [shown(value) for value in (1.5, "x", None, True, np.int64(3))] == [
        *("1.5", "'x'", "None", "True", repr(np.int64(3)))
    ]
    for value in (10**5000, -(10**400), Fraction(1, 10**400)):
        assert shown(value) == "a number of more than 77 digits"
    assert shown([CANARY]) == "<list>"
    assert shown("x" * 300) == "<str>"
    refused("^epsilon = a number of more", lambda: Budget(epsilon=10**5000))


class Broken:
    def __array__(self, dtype=None, copy=None):
        raise RuntimeError(f"no array of {DIGITS}")


def test_texts_of_converters_are_not_passed_on():
    refused("^X holds values that are not numbers", lambda: DPManifoldDenoiser(0.8, 1, BUDGET).fit(Broken()))
    refused("^z holds values", lambda: dp.empirical_sensitivity(reference(), Broken(), 0.8, 1))
    huge = reference().astype(object)
    huge[0, 0] = 10**400
    refused("^Y holds values", lambda: dp.dp_projector(huge, queries()[0], 0.8, 1, BUDGET))
    refused(
        r"^bounds: must hold 2 pairs",
        lambda: dp.private_preprocessor(reference(), bounds=[(0, 10**400)] * 2, budget=RICH),
    )


def test_partial_sums_look_at_the_columns():
    index_task = SumTask(lambda n_threads: None, columns=3)
    for block in (np.ones((5, 2)), np.ones((5, 4)), np.ones(5), np.ones((1, 5, 3))):
        with pytest.raises(ValueError, match=r"^blocks holds an array of"):
            partial_sums(with_view(index_task, lambda rows, n_threads: rows), iter([block]))
    assert partial_sums(ValidTask(1.0), [np.ones((2, 2))]).rows == 2
    for part in (
        None,
        (np.zeros(1, np.int64), 1),
        PartialSums(np.zeros(1, np.int64), -1),
        PartialSums([0], 1),
    ):
        with pytest.raises(MismatchedSums, match=r"^a partial sum"):
            merge_sums(ValidTask(1.0), [part])


def test_arrow_batches_do_not_quote_what_they_cannot_read():
    texts = pa.table({"x": [f"private {DIGITS}"]})
    refused("^a batch has columns that are not numeric: 'x'", lambda: list(arrow_batches([texts])))
    refused("^batches holds a dict", lambda: list(arrow_batches([{"x": [1.0]}])), TypeError)


def test_points_without_scatter_and_far_apart():
    line = np.repeat(queries()[:, :1], 2, axis=1)
    assert dp.plan(line, 1000, dim=1, budget=BUDGET, n_threads=1).bandwidth > 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        moments = read_moments(np.zeros((1, 3, 3)), 1e90, 0.1)
    assert (moments.offsets == 0.0).all()


def test_repetitions_come_to_an_end():
    refused("^steps = ", lambda: ManifoldDenoiser(0.8, 1, steps=10**9).fit(reference()))
    refused("^steps = ", lambda: DPManifoldDenoiser(0.8, 1, BUDGET, steps=10**9).fit(reference()))
    refused("^steps = ", lambda: dp.gradient_descent(reference(), queries(), 0.8, 1, steps=10**30))
    refused(
        "^candidates = ", lambda: dp.empirical_sensitivity(reference(), queries(), 0.8, 1, candidates=10**9)
    )


def test_labels_of_different_kinds():
    mixed = np.array([1, "a", None], dtype=object)
    refused("^labels holds labels of different kinds", lambda: metrics.clustering_accuracy(mixed, [0, 1, 2]))


def test_budgets_too_extreme_to_be_converted():
    rho = Budget(4.946381302679061e40, 1.2329254938801645e-28, "zcdp").rho
    refused("^epsilon, delta or rho: too large", lambda: Budget.from_rho(rho, 1.2329254938801645e-28, "zcdp"))
    refused("^epsilon, delta or rho: too large", lambda: Budget(2.1301955986936e-311, 3.27486e-319, "zcdp"))


# The judge


def _spend(times):
    for _ in range(times):
        bank().ledger.spend("rich", 0.1, "a release")
    return 0.1


def _raise(error):
    raise error


_POINTS = np.ones(3)
GUILTY = {
    "an error that was not meant, of a kind that users do not see": lambda: _raise(KeyError("x")),
    "an error that was not meant": lambda: _raise(ValueError("x = 1: is wrong")),
    "tells a private value": lambda: warnings.warn(f"a record of {CANARY}", stacklevel=1),
    "warns: RuntimeWarning": lambda: np.array([0.0]) / 0.0,
    "prints or logs": lambda: print("done"),
    "changes its input": lambda: _POINTS.__setitem__(0, _POINTS[0] + 1.0),
    "is not paid for once": lambda: 0.1,
    "is not paid for once, but twice": lambda: _spend(2),
    "spends and fails": lambda: _raise(RuntimeError(f"{_spend(1)}")),
    "spends and fails, as only the unlucky may": lambda: _raise(
        RuntimeError(f"the release failed after its debit, and it stays spent: {_spend(1)} by zero")
    ),
    "gives a wrong result": lambda: _spend(1) + 1.0,
}


@pytest.mark.parametrize("kind", GUILTY)
def test_the_judge_finds(kind):
    def check(result):
        assert result == 0.1, "is wrong"

    with pytest.raises(Finding, match=f"^judge: {kind.split(',')[0]}"):
        judged(
            "judge",
            kind,
            GUILTY[kind],
            named={"x"},
            paid=lambda result: 0.1,
            inputs=[_POINTS],
            check=check,
            unlucky=(NO_CHART, UNREADABLE),
            counted=False,
        )


def test_the_judge_lets_pass():
    for text in (NO_CHART, UNREADABLE):
        error = judged(
            "judge",
            "",
            lambda text=text: _raise(RuntimeError(f"{_spend(1)} stays spent: {text}")),
            named=(),
            paid=lambda result: 0.1,
            unlucky=(text,),
            counted=False,
        )
        assert isinstance(error, RuntimeError)
    assert judged("judge", "", lambda: _spend(1), named=(), paid=lambda result: 0.1, counted=False) == 0.1
    error = judged(
        "judge", "", lambda: Budget(epsilon=-1), named={"epsilon"}, paid=lambda result: 1, counted=False
    )
    assert isinstance(error, ValueError)
    with pytest.raises(Finding, match="does not name the argument"):
        judged("judge", "", lambda: Budget(epsilon=-1), named={"delta"}, counted=False)


HUGE = 10**5000


@pytest.mark.parametrize(
    ("pattern", "call"),
    [
        ("^dim = a number", lambda: dp.gradient_descent(queries(), queries(), 1.0, HUGE, steps=1)),
        ("^spend_id = ", lambda: bank().open().record_file(10**40, "a.dpmd")),
        ("^seed = a number", lambda: dp.dp_projector(reference(), [0.0, 0.0], 1.0, 1, BUDGET, seed=HUGE)),
        ("^z: no point", lambda: dp.empirical_sensitivity(queries(), queries() + 0.01, 0.5, 1, beta=1e9)),
        (
            "^column_names holds 1 name",
            lambda: dp.Preprocessor.from_public(queries(), column_names=["x"], log=["x"]),
        ),
        (
            "^replicates = 929755620: must be at most",
            lambda: metrics.compare_concordance(
                [1.0, 2.0], [True, True], {"x": [0.0, 1.0]}, replicates=929755620
            ),
        ),
    ],
)
def test_numbers_that_are_too_large_are_refused_by_name(pattern, call):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refused(pattern, call)


def test_an_object_that_fails_in_scikit_learn_is_not_quoted():
    refused("^X: cannot be converted to an array", lambda: ManifoldDenoiser(1.0, 1).fit(Broken()))


@pytest.mark.parametrize(
    ("X", "pattern"),
    [
        (
            [["777123", "X"], ["1", "2"], ["3", "4"]],
            "^X: could not convert string",
        ),
        (np.full((5, 2), 777123 + 1j), "^X: Complex data not supported"),
    ],
)
def test_messages_of_scikit_learn_are_cut_before_values(X, pattern):
    refused(pattern, lambda: ManifoldDenoiser(1.0, 1).fit(X))


def test_names_with_a_null_do_not_end_the_process():
    frame = pl.DataFrame({"a\0b": np.zeros(9), "x": np.ones(9)})
    refused("^columns: a column name holds a null", lambda: dp.Ledger.fingerprint_of(frame))
    target = POINTS["release_moments"]
    refused(
        "^columns: a column name holds a null",
        lambda: target.call({**target.arguments(), "reference": frame}),
    )


def test_a_fingerprint_of_an_object_that_fails_does_not_quote_it():
    refused("^reference holds values that are not numbers", lambda: dp.Ledger.fingerprint_of(Broken()))


@pytest.mark.parametrize("bandwidth", [0.9, 9e99, "auto"])
@pytest.mark.parametrize("change", ["huge", "1e+100 somewhere", "a column of 1e+100", "tiny"])
@pytest.mark.parametrize("columns", [2, 3])
def test_atlases_are_predicted_in_any_unit(columns, change, bandwidth):
    """Powers of bandwidths and of their noise overflowed before the spend, and vanished."""
    Z = VALUES[change](queries(columns, 30), 5872)
    given = {"dim": 1, "cover": 0.5, "adjacency": "replace-one", "noise": None, "n_threads": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = predict_atlas(Z, 120, RICH, bandwidth=None if bandwidth == "auto" else bandwidth, **given)
    for name in ("noise_error", "bias_error", "raw_error", "predicted_error"):
        assert 0.0 <= getattr(made, name) < np.inf, name


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("size", [0, 16])
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_arrow_files_whose_columns_are_too_short_are_refused(column, size, kind, tmp_path):
    """One number of the metadata of a batch is the length of a buffer in bytes."""
    points, path = reference(n=123).astype(kind), tmp_path / "short.arrow"
    table = pa.table({"x": points[:, 0], "y": points[:, 1]})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    data, length = path.read_bytes(), points[:, 0].nbytes
    places = [at for at in range(len(data)) if data[at : at + 8] == length.to_bytes(8, "little")]
    at = places[-column]  # the first and the last of them; others are where a buffer begins
    path.write_bytes(data[:at] + size.to_bytes(8, "little") + data[at + 8 :])
    refused("short.arrow could not be read as Arrow", lambda: read_points(path))
    refused(
        "short.arrow could not be read",
        lambda: transform_file(atlas("named"), path, tmp_path / "moved.arrow", n_threads=1),
    )
    assert not (tmp_path / "moved.arrow").exists()
    target = POINTS["release_moments"]
    for drop in ("raise", "drop"):
        given = {**target.arguments(), "reference": path, "on_invalid": drop}
        refused("short.arrow", lambda given=given: target.call(given))


INFINITIES = [np.inf, -np.inf]


def _single(value):
    """Records and points in single precision, in which 1e100 is infinite, with one such value."""
    points = reference(n=120).astype(np.float32)
    points[11, 1] = value
    return points


@pytest.mark.parametrize("value", INFINITIES)
def test_infinite_points_in_single_precision_are_refused_by_their_place(value):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refused(
            "^Z contains NaN or infinity.*the first is infinity in row 11, column 1$",
            lambda: atlas().transform(_single(value), 1),
        )


@pytest.mark.parametrize("value", INFINITIES)
@pytest.mark.parametrize("scaled", [False, True])
def test_infinite_records_in_single_precision_are_refused_before_the_spend(value, scaled):
    target, points = POINTS["release_mixture"], _single(value)
    table = pa.table({"x": points[:, 0], "y": points[:, 1]})
    given = {**target.arguments(), "reference": table, "public": None}
    if scaled:
        given["preprocess"] = dp.Preprocessor((0.0, 0.0), (1.0, 1.0))
    refused("^reference contains infinite", lambda: target.call(given))
    assert partial_sums(ValidTask(1e100, missing=True), [points]).values == 1


@pytest.mark.parametrize("value", INFINITIES)
def test_infinite_records_in_single_precision_are_dropped(value):
    infinite, gone = _single(value), _single(np.nan)
    scales = dp.Preprocessor((0.0, 0.0), (1.0, 1.0), log=(False, False))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for records in (infinite, gone):
            assert np.isnan(scales.mapping()(records)[11, 1])
            inside = valid_inside(Subspace(np.zeros(2), np.array([[1.0], [0.0]])), records, 1)
            assert np.isnan(inside[11])
            assert not np.isnan(np.delete(inside, 11)).any()
    given = {"bounds": [(-3.0, 3.0)] * 2, "budget": RICH, "on_invalid": "drop", "seed": 0}
    assert dp.private_preprocessor(infinite, **given) == dp.private_preprocessor(gone, **given)


def test_a_rho_beyond_all_bounds_is_named():
    refused("^rho = ", lambda: Budget.from_rho(1.7e308, 1e-6))


def test_a_plan_of_one_column_names_its_anchors():
    refused("^noise = None: must be given for anchors", lambda: dp.plan(queries(1), 1000, budget=BUDGET))
