"""Hostile tables in the place of the reference and of queries: pandas, polars, Arrow."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from dpmd_fast.kernels.search.index import build_index
from dpmd_fast.kernels.sums.exact import MomentSums
from dpmd_fast.privacy.lattice import choose_lattice
from dpmd_fast.reference import arrow_batches, merge_sums, partial_sums
from dpmd_fast.reference.tasks import PartialSums, SumTask, ValidTask
from dpmd_fast.tables import transform_batches
from fuzz.harness import UNREADABLE, fuzzed, judged
from fuzz.strategies import NAMES, array_recipes, table_recipes
from fuzz.targets import POINTS, atlas, queries, reference

READERS = {  # entry points that take tables, and the argument that may be one
    "release_moments": "reference",
    "release_atlas": "reference",
    "release_mixture": "reference",
    "DPManifoldDenoiser": "X",
    "DPManifoldDenoiser, projector": "X",
    "ManifoldDenoiser": "X",
    "private_preprocessor": "reference",
    "Ledger.fingerprint_of": "reference",
    "preprocessed_records": "reference",
    "Preprocessor.from_public": "sample",
    "Preprocessor.forward": "X",
    "Mixture.transform, plain": "X",
    "Mixture.transform, named": "X",
    "Mixture.transform, preprocessed": "X",
    "Atlas.transform, plain": "Z",
    "Atlas.transform, named": "Z",
    "Atlas.transform, subspace": "Z",
    "Atlas.transform, preprocessed": "Z",
}
CHOSEN = (None, ["x", "y"], ["y", "x"], ["x"], ["x", "nobody"], ["x", "x"], [], "x", ["more", "x"])


@fuzzed(
    0.05,
    name=st.sampled_from(sorted(READERS)),
    columns=st.integers(2, 3),
    recipe=table_recipes(),
    chosen=st.one_of(st.none(), st.sampled_from(CHOSEN)),
    drop=st.booleans(),
)
def test_tables(name, columns, recipe, chosen, drop):
    target, argument = POINTS[name], READERS[name]
    arguments = target.arguments(columns)
    table = recipe.value(np.asarray(arguments[argument]))
    changes = {argument: table}
    if "columns" in arguments:
        changes["columns"] = chosen
    if "on_invalid" in arguments:
        changes["on_invalid"] = "drop" if drop else "raise"
    arguments.update(changes)
    judged(
        f"tables, {name}",
        f"{name}({argument}: {recipe.label}; {columns} columns, columns={chosen!r}, drop={drop})",
        lambda: target.call(arguments),
        named=target.names(argument) | {"columns", "dim", "reference", "locations", "anchors", "features"},
        paid=target.paid(arguments),
        inputs=[] if hasattr(table, "read_next_batch") else [table],
        check=lambda result: target.check(arguments, result),
        unlucky=(*target.unlucky, *((UNREADABLE,) if drop and "stream" in recipe.label else ())),
        foreign=target.foreign,
        private=target.private,
    )


def _task():
    return SumTask(
        lambda n_threads: MomentSums(
            build_index(queries(2, 3), 0.8),
            2.0,
            1.0,
            choose_lattice(1.0, 1.0, "replace-one").steps,
            0.1,
            n_threads,
        )
    )


@fuzzed(0.04, recipe=array_recipes(), valid=st.booleans(), parts=st.integers(0, 3))
def test_partial_sums(recipe, valid, parts):
    """Sums where the records are: of anything that an engine may hand over as blocks."""
    task = ValidTask(1e100) if valid else _task()
    block = recipe.value(reference(2, 30))
    blocks = [block] * parts

    def check(sums):
        assert sums.rows == sum(len(np.asarray(block)) for block in blocks), "rows"
        assert sums.values.dtype == np.int64, "type"
        assert (merge_sums(task, [sums, sums]).values == 2 * sums.values).all(), "merged"

    judged(
        "tables, partial_sums",
        f"partial_sums({recipe.label}, {parts} times, {'valid' if valid else 'sums'})",
        lambda: partial_sums(task, blocks, 1),
        named={"blocks"},
        inputs=blocks,
        check=check,
    )


PARTS = (
    PartialSums(np.zeros((3, 3, 3), np.int64), 5),
    PartialSums(np.zeros((3, 3, 3)), 5),
    PartialSums(np.zeros((2, 3, 3), np.int64), 5),
    PartialSums(np.zeros(1, np.int64), 5),
    PartialSums(np.zeros((3, 3, 3), np.int64), -5),
    PartialSums(np.zeros((3, 3, 3), np.int64), 10**30),
    PartialSums(np.zeros((3, 3, 3), np.int64), 1.5),
    PartialSums(np.zeros((3, 3, 3), np.int64), None),
    PartialSums(np.full((3, 3, 3), 2**62), 10),
    PartialSums(None, 5),
    PartialSums([[1]], "5"),
    (np.zeros((3, 3, 3), np.int64), 5),
    None,
    7,
    "sums",
)


@fuzzed(0.02, parts=st.lists(st.sampled_from(range(len(PARTS))), max_size=4), valid=st.booleans())
def test_merged_sums(parts, valid):
    given = [PARTS[place] for place in parts]
    judged(
        "tables, merge_sums",
        f"merge_sums({parts}, {valid})",
        lambda: merge_sums(ValidTask(1.0) if valid else _task(), given),
        named={"partial sum", "parts", "records"},
    )


@fuzzed(0.02, recipe=table_recipes(), chosen=st.sampled_from(CHOSEN), way=st.booleans())
def test_batches_of_engines(recipe, chosen, way):
    made = recipe.value(queries())
    batches = made.to_batches() if isinstance(made, pa.Table) else [made]
    if way:
        call = lambda: list(arrow_batches(batches, chosen))  # noqa: E731
    else:
        call = lambda: list(transform_batches(atlas("named"), batches))  # noqa: E731
    judged(
        "tables, batches of engines",
        f"{'arrow_batches' if way else 'transform_batches'}({recipe.label}, {chosen!r})",
        call,
        named={"batch", "columns", "Z", "batches"},
    )


def test_a_good_table_is_read():
    made = pa.table({name: queries()[:, k] for k, name in enumerate(NAMES[:2])})
    moved = atlas("named").transform(made)
    np.testing.assert_array_equal(moved["x"].to_numpy(), atlas("named").transform(queries())[:, 0])
    with pytest.raises(ValueError, match="lacks 1 column"):
        atlas("named").transform(made.drop(["x"]))
