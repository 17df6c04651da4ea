"""AnnData through an atlas, and as a private reference."""

import json
import os
import subprocess
import sys
import textwrap

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from samples import make_atlas

from dpmd_fast import Budget, DPManifoldDenoiser, release_atlas, release_moments
from dpmd_fast.privacy.scope import scope_of
from dpmd_fast.reference.sources.open import open_reference
from dpmd_fast.reference.sources.overlap import overlaps
from dpmd_fast.tables.anndata import denoise_anndata

ATLAS, NAMELESS = make_atlas(("g2", "g0", "g5")), make_atlas(None)
N = 500
RNG = np.random.default_rng(0)
COUNTS = np.where(RNG.random((N, 7)) < 0.4, 0.0, RNG.uniform(-2.0, 2.0, size=(N, 7)))
GENES = [f"g{k}" for k in range(7)]
MOVED, STATUS = ATLAS.transform(COUNTS[:, [2, 0, 5]], return_status=True)
KINDS = {
    "dense": lambda X: X,
    "Fortran": np.asfortranarray,
    "csr": sp.csr_matrix,
    "csc": sp.csc_matrix,
    "csr array": sp.csr_array,
}


def cells(X=COUNTS, **obsm):
    index = pd.Index([f"cell {k}" for k in range(len(COUNTS))])
    found = ad.AnnData(X, obs=pd.DataFrame(index=index), var=pd.DataFrame(index=GENES))
    for key, value in obsm.items():
        found.obsm[key] = value
    return found


# --- through an atlas


@pytest.mark.parametrize("kind", KINDS)
def test_cells_by_the_names_of_genes(kind):
    adata = cells(KINDS[kind](COUNTS))
    before = adata.X.copy()
    denoise_anndata(ATLAS, adata)
    np.testing.assert_array_equal(adata.obsm["X_dpmd"], MOVED)
    assert list(adata.obs["dpmd_status"]) == STATUS.tolist()
    assert (before != adata.X).sum() == 0
    assert type(adata.X) is type(before)


def test_the_guarantee_is_in_uns():
    adata = cells()
    denoise_anndata(ATLAS, adata)
    told = adata.uns["dpmd"]
    for name, value in ATLAS.guarantee.to_dict().items():
        found = {"conditions": list, "scope": json.loads}.get(name, lambda value: value)(told[name])
        assert found == value
    assert json.loads(told["scope"])[0]["covered"] is True
    assert (told["use"], told["key_added"], told["dim"], told["bandwidth"]) == ("X", "X_dpmd", 2, 0.8)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32])
def test_obsm_by_position(dtype):
    points = (2 * COUNTS[:, :3]).astype(dtype)
    adata = cells(X_pca=points)
    denoise_anndata(NAMELESS, adata, use="X_pca", key_added="X_clean")
    expected = NAMELESS.transform(points)
    np.testing.assert_array_equal(adata.obsm["X_clean"], expected)
    assert adata.obsm["X_clean"].dtype == expected.dtype
    assert set(adata.uns) == {"clean"}
    assert list(adata.obs) == ["clean_status"]


def test_a_frame_in_obsm_by_name():
    frame = pd.DataFrame(COUNTS, columns=GENES, index=cells().obs_names)
    adata = cells(proteins=frame[["g5", "g1", "g0", "g2"]])
    denoise_anndata(ATLAS, adata, use="proteins")
    np.testing.assert_array_equal(adata.obsm["X_dpmd"], MOVED)


def test_blocks_of_cells_do_not_show(monkeypatch):
    monkeypatch.setattr("dpmd_fast.tables.anndata._BLOCK_BYTES", 1)  # 64 cells at a time
    adata = cells(sp.csr_matrix(COUNTS))
    denoise_anndata(ATLAS, adata, n_threads=1)
    np.testing.assert_array_equal(adata.obsm["X_dpmd"], MOVED)


@pytest.mark.parametrize("kind", ["dense", "csr"])
def test_files_and_cells_on_disk(tmp_path, kind):
    cells(KINDS[kind](COUNTS)).write_h5ad(tmp_path / "cells.h5ad")
    adata = ad.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    denoise_anndata(ATLAS, adata)
    np.testing.assert_array_equal(adata.obsm["X_dpmd"], MOVED)
    whole = ad.read_h5ad(tmp_path / "cells.h5ad")
    denoise_anndata(ATLAS, whole)
    whole.write_h5ad(tmp_path / "clean.h5ad")
    again = ad.read_h5ad(tmp_path / "clean.h5ad")
    np.testing.assert_array_equal(again.obsm["X_dpmd"], MOVED)
    assert again.uns["dpmd"]["statement"] == ATLAS.guarantee.statement
    assert tuple(again.uns["dpmd"]["conditions"]) == ATLAS.guarantee.conditions
    assert scope_of(json.loads(again.uns["dpmd"]["scope"])) == ATLAS.guarantee.scope
    assert list(again.obs["dpmd_status"]) == STATUS.tolist()


def test_keys_that_are_there_are_not_replaced_unasked():
    adata = cells(X_dpmd=COUNTS[:, :2])
    with pytest.raises(ValueError, match=r"key_added = 'X_dpmd': adata has its keys in obsm already"):
        denoise_anndata(ATLAS, adata)
    np.testing.assert_array_equal(adata.obsm["X_dpmd"], COUNTS[:, :2])
    denoise_anndata(ATLAS, adata, overwrite=True)
    np.testing.assert_array_equal(adata.obsm["X_dpmd"], MOVED)


def test_what_is_refused_leaves_the_cells_as_they_were():
    odd = COUNTS.copy()
    odd[400, 5] = np.nan
    for adata, arguments, told in (
        (cells(odd), {}, r"adata\.X contains NaN or infinity"),
        (cells(sp.csr_matrix(odd)), {}, r"adata\.X contains NaN or infinity"),
        (cells()[:, :3].copy(), {}, r"adata\.X lacks 1 column\(s\) of the atlas: 'g5'"),
        (cells(X_pca=COUNTS), {"use": "X_pca"}, r"adata\.X_pca has 7 columns: must have 3"),
        (cells(X_pca=COUNTS), {"use": "X_umap"}, r"use = 'X_umap': must be one of 'X', 'X_pca'"),
        (cells(None), {}, r"adata\.X is None"),
        (cells(), {"key_added": "X_"}, "key_added = 'X_'"),
        (cells(), {"n_threads": 0}, "n_threads"),
    ):
        with pytest.raises(ValueError, match=told):
            denoise_anndata(ATLAS, adata, **arguments)
        assert "X_dpmd" not in adata.obsm
        assert not len(adata.uns)
        assert not len(adata.obs.columns)
    with pytest.raises(ValueError, match="adata is a ndarray: must be an AnnData"):
        denoise_anndata(ATLAS, COUNTS)


# --- as a reference


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [None, ["g4", "g1"]])
def test_a_reference(kind, columns):
    source = open_reference(cells(KINDS[kind](COUNTS)), columns=columns, batch_rows=64)
    blocks = list(source.blocks())
    expected = COUNTS if columns is None else COUNTS[:, [4, 1]]
    np.testing.assert_array_equal(np.concatenate(blocks), expected)
    assert [len(block) for block in blocks] == [64] * 7 + [52]
    assert all(block.flags.c_contiguous for block in blocks)
    assert source.column_names == tuple(columns or GENES)
    assert (source.rows, source.rereadable, source.dtype) == (N, True, np.float64)


def test_a_reference_of_single_precision():
    source = open_reference(cells(COUNTS.astype(np.float32)))
    assert source.dtype == np.float32
    assert next(source.blocks()).dtype == np.float32


def test_a_release_from_cells_is_that_from_an_array():
    places = RNG.normal(size=(4, 2))
    settings = {"bandwidth": 2.0, "budget": Budget(1.0, 1e-6), "seed": 1}
    ours = release_moments(cells(sp.csr_matrix(COUNTS)), places, columns=["g4", "g1"], **settings)
    np.testing.assert_array_equal(
        ours.values, release_moments(COUNTS[:, [4, 1]].copy(), places, **settings).values
    )


def test_an_estimator_takes_cells(tmp_path):
    queries = RNG.normal(size=(5, 7))
    for reference in (cells(), cells(sp.csr_matrix(COUNTS))):
        model = DPManifoldDenoiser(5.0, 1, Budget(1.0, 1e-4), seed=1).fit(reference)
        expected = DPManifoldDenoiser(5.0, 1, Budget(1.0, 1e-4), seed=1).fit(COUNTS).transform(queries)
        frame = pd.DataFrame(queries, columns=GENES)
        np.testing.assert_array_equal(model.transform(frame), expected)


def test_queries_from_the_cells_are_refused():
    adata = cells(X_pca=COUNTS[:, :3].copy())
    for points in (adata.X, adata.X[:100], adata.obsm["X_pca"], adata):
        assert overlaps(adata, points)
    assert not overlaps(adata, COUNTS[:, :3].copy())
    sparse = sp.csr_matrix(COUNTS)
    assert overlaps(cells(sparse), cells(sparse).X.data)
    with pytest.raises(ValueError, match="anchors is part of the reference"):
        release_atlas(adata, adata.X, dim=1, budget=Budget(1.0, 1e-6))


def test_cells_that_cannot_be_read():
    with pytest.raises(ValueError, match=r"^reference\.X is None: must hold numbers$"):
        open_reference(cells(None))
    with pytest.raises(ValueError, match="columns holds 'g9'"):
        open_reference(cells(), columns=["g9"])


def test_without_anndata_nothing_imports_it():
    code = """
        import sys
        import numpy as np
        from dpmd_fast.columns import is_anndata
        from dpmd_fast.reference.sources.open import open_reference
        open_reference(np.zeros((3, 2)))
        assert not is_anndata(np.zeros((3, 2)))
        assert not {"anndata", "pandas"} & set(sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
