"""All eigenvectors of small matrices: against LAPACK, and defined where LAPACK is free to choose."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from kernel_samples import on_another_target

from dpmd_fast.kernels.eigen.spectra import spectra, top_vectors
from dpmd_fast.kernels.jit import JIT_DISABLED

EPS = np.finfo(float).eps
SIZES = [1, 2, 3, 4, 5, 7, 8, 13, 20, 33]


def rotated(rng, spectrum):
    """Symmetric matrix with the given eigenvalues and random axes."""
    axes = np.linalg.qr(rng.standard_normal((len(spectrum), len(spectrum))))[0]
    C = (axes * np.asarray(spectrum, float)) @ axes.T
    return 0.5 * (C + C.T)


def assert_spectrum(C, values, vectors):
    """Ascending eigenvalues as LAPACK's, orthonormal eigenvectors, and the sign of the first large entry."""
    n, size = len(C), max(np.abs(C).max(), 1e-300)
    assert (np.diff(values) >= 0.0).all()
    np.testing.assert_allclose(values, np.linalg.eigvalsh(C), rtol=0.0, atol=8 * n * EPS * size * n)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(n), rtol=0.0, atol=16 * n * EPS)
    np.testing.assert_allclose(C @ vectors, vectors * values, rtol=0.0, atol=16 * n * n * EPS * size)
    for vector in vectors.T:
        large = np.flatnonzero(np.abs(vector) >= (1.0 - 1e-6) * np.abs(vector).max())
        assert vector[large[0]] > 0.0


@pytest.mark.kernels
@pytest.mark.parametrize("n", SIZES)
def test_spectra_are_those_of_lapack(n):
    rng = np.random.default_rng(n)
    spectra_of = [
        rng.standard_normal(n),
        np.full(n, 2.5),
        np.zeros(n),
        np.r_[np.ones(n // 2), np.zeros(n - n // 2)],
        10.0 ** -np.arange(n),
        np.r_[1.0, np.full(n - 1, 1e-14)],
        np.arange(n) * 1e200,
        np.arange(n) * 1e-200,
    ]
    C = np.array([rotated(rng, one) for one in spectra_of])
    C[2] = 0.0
    low = rng.standard_normal((2, n))
    C = np.concatenate([C, (low.T @ low)[None]])  # of rank two
    values, vectors = spectra(C)
    for one in range(len(C)):
        assert_spectrum(C[one], values[one], vectors[one])


@pytest.mark.kernels
def test_spectra_of_matrices_that_are_diagonal_or_tridiagonal_or_have_equal_entries():
    for C in (
        np.diag([3.0, 1.0, 2.0, 1.0]),
        np.eye(5),
        np.full((6, 6), 0.5),
        np.eye(7, k=1) + np.eye(7, k=-1),
        np.array([[0.0, 1.0], [1.0, 0.0]]),
        np.array([[-4.0]]),
    ):
        assert_spectrum(C, *spectra(C))


@pytest.mark.kernels
def test_a_matrix_that_is_not_finite_has_no_spectrum_and_others_keep_theirs():
    C = np.array([np.eye(3), np.full((3, 3), np.nan), np.full((3, 3), np.inf), np.diag([1.0, 2.0, 3.0])])
    values, vectors = spectra(C)
    assert np.isnan(values[1:3]).all()
    assert np.isnan(vectors[1:3]).all()
    assert_spectrum(C[0], values[0], vectors[0])
    assert_spectrum(C[3], values[3], vectors[3])
    assert spectra(np.empty((0, 4, 4)))[0].shape == (0, 4)


@pytest.mark.kernels
def test_top_vectors_are_the_last_columns_and_one_matrix_is_as_one_of_many():
    rng = np.random.default_rng(3)
    C = np.array([rotated(rng, rng.standard_normal(6)) for _ in range(100)])
    every = spectra(C)[1]
    assert np.array_equal(top_vectors(C, 2), every[:, :, -2:])
    for n_threads in (1, 2, None):
        assert np.array_equal(spectra(C, n_threads)[1], every)
    assert np.array_equal(spectra(C[17])[1], every[17])


def digest():
    rng = np.random.default_rng(4)
    C = np.array([rotated(rng, rng.standard_normal(9)) for _ in range(20)])
    C = np.concatenate(
        [C, np.diag(np.arange(9) // 3.0)[None], np.zeros((1, 9, 9)), np.full((1, 9, 9), math.pi)]
    )
    # LAPACK made the matrices: they are rounded to bits that all machines agree on
    C = np.rint(C * 2.0**20) * 2.0**-20
    return hashlib.sha256(b"".join(part.tobytes() for part in spectra(C))).hexdigest()


@pytest.mark.fixed_seed
@pytest.mark.skipif(JIT_DISABLED, reason="needs the compiler")
@pytest.mark.parametrize(
    "settings",
    [
        {"NUMBA_CPU_NAME": "generic"},
        pytest.param({"NUMBA_OPT": "1"}, marks=pytest.mark.slow),
        pytest.param({"OPENBLAS_CORETYPE": "Prescott"}, marks=pytest.mark.slow),
    ],
)
def test_bits_do_not_depend_on_the_target(settings):
    assert on_another_target(__file__, digest, **settings) == digest()
