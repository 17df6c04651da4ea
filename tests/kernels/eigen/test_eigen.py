"""Top eigenspaces: against LAPACK, and never a subspace that is not the dominant one."""

from __future__ import annotations

import numpy as np
import pytest

from dpmd_fast.kernels.eigen import iteration as eigen
from dpmd_fast.kernels.eigen import tridiagonal
from dpmd_fast.kernels.jit import kernel
from dpmd_fast.kernels.vector.lanes import LANES

EPS = np.finfo(float).eps
SIZES = [2, 3, 4, 5, 6, 7, 8, 9, 13, 20, 33, 40]


@kernel
def run_refine(C, width, d, eager, Q):
    _, Z, R, S, _, V = eigen.scratch(width, d)
    return eigen.refine(C, width, d, eager, Q, Z, R, S, V)


@kernel
def run_leading(C, n, width, d, eager, Q):
    _, Z, R, S, A, V = eigen.scratch(width, d)
    return eigen.leading_rows(C, n, width, d, eager, Q, Z, R, S, A, V)


@kernel
def run_following(C, n, width, d, eager, Q):
    _, Z, R, S, A, V = eigen.scratch(width, d)
    return eigen.following_rows(C, n, width, d, eager, Q, Z, R, S, A, V)


@kernel
def run_jacobi(A, V, n):
    eigen.jacobi(A, V, n)


@kernel
def run_direct(C, n, width, d, Q):
    return tridiagonal.direct(
        C, np.empty((width, width)), n, width, d, Q, np.zeros((d, width)), np.zeros((11, width))
    )


def pad(C):
    n = C.shape[-1]
    width = LANES * -(-n // LANES)
    out = np.zeros((*C.shape[:-2], width, width))
    out[..., :n, :n] = C
    return out


def rotated(rng, spectrum):
    """Symmetric matrix with the given eigenvalues and random axes."""
    spectrum = np.asarray(spectrum, float)
    axes = np.linalg.qr(rng.standard_normal((len(spectrum), len(spectrum))))[0]
    C = (axes * spectrum) @ axes.T
    return 0.5 * (C + C.T)


def assert_dominant(C, basis, d):
    """Orthonormal, invariant, and with the d largest eigenvalues; the same projector if there is a gap."""
    n = len(C)
    values, vectors = np.linalg.eigh(C)
    values, V = values[::-1], vectors[:, ::-1][:, :d]
    norm = max(np.abs(values).max(), np.finfo(float).tiny)
    B = basis[:, :n].T
    assert (basis[:, n:] == 0.0).all()
    np.testing.assert_allclose(B.T @ B, np.eye(d), rtol=0, atol=1e-13)
    core = B.T @ C @ B
    # 1e-11 is the certificate of `refine`; `direct` stays within 64 n eps, which is less
    assert np.linalg.norm(C @ B - B @ core) <= 2e-11 * norm
    np.testing.assert_allclose(np.linalg.eigvalsh(core)[::-1] / norm, values[:d] / norm, rtol=0, atol=2e-11)
    gap = (values[d - 1] - values[d]) / norm if d < n else 1.0
    if gap > 1e-6:
        bound = 2e-11 + 64 * n * EPS / gap
        np.testing.assert_allclose(B @ B.T, V @ V.T, rtol=0, atol=bound)


def families(rng, n, d):
    """Spectra by name: with and without a gap, of either sign, with ties and zeros."""
    fall = np.sort(rng.uniform(0.0, 1.0, n))[::-1]
    gap = np.concatenate([1.0 + fall[:d], 1e-3 * fall[d:]])
    tie = fall.copy()
    tie[: min(d + 1, n)] = 1.0  # the top eigenvalue once more than asked for
    block = np.concatenate([np.ones(d), 0.2 * fall[d:]])
    yield "easy gap", gap / gap.sum()
    yield "no gap", fall / fall.sum()
    yield "flat", np.full(n, 1.0 / n)
    yield "tie across", tie / tie.sum()
    yield "tie inside", block / block.sum()
    yield "indefinite", np.linspace(-1.0, 1.0, n) * 0.7
    yield "negative definite", -gap
    yield "negative, no gap", -fall - 0.1
    yield "largest is negative", np.concatenate([[-1.0], 1e-3 * fall[1:]])
    yield "two large are negative", np.concatenate([[-1.0, -0.9][: n - 1], 1e-4 * fall[2:], [0.0]])[:n]
    yield "one below, one above", np.concatenate([[-1.0], 0.1 * fall[1:]])
    yield "zero", np.zeros(n)
    yield "rank one", np.concatenate([[1.0], np.zeros(n - 1)])
    yield "rank one, negative", np.concatenate([[-1.0], np.zeros(n - 1)])
    yield "tiny gap", np.concatenate([1.0 + 1e-9 * fall[:d], np.full(n - d, 1.0)]) / n


@pytest.mark.parametrize(("n", "d"), [(n, d) for n in SIZES for d in (1, 2, 3, 5) if d <= n])
def test_top_subspaces(n, d):
    rng = np.random.default_rng(100 * n + d)
    names, matrices = [], []
    for name, spectrum in families(rng, n, d):
        names += [name, name + ", diagonal"]
        matrices += [rotated(rng, spectrum), np.diag(rng.permutation(spectrum))]
    bases = tridiagonal.top_subspaces(pad(np.array(matrices)), n, d)
    failed = []
    for name, C, basis in zip(names, matrices, bases, strict=True):
        try:
            assert_dominant(C, basis, d)
        except AssertionError as error:
            failed.append(f"{name}: {error}")
    assert failed == []


@pytest.mark.kernels
@pytest.mark.parametrize(("n", "d"), [(2, 1), (4, 2), (6, 3), (7, 2), (9, 1)])
def test_top_subspaces_small(n, d):
    rng = np.random.default_rng(n)
    for name, spectrum in families(rng, n, d):
        C = rotated(rng, spectrum)
        basis = tridiagonal.top_subspaces(pad(C[None]), n, d)[0]
        try:
            assert_dominant(C, basis, d)
        except AssertionError as error:
            raise AssertionError(name) from error


@pytest.mark.parametrize("n", [7, 20, 40])
def test_direct_alone(n):
    # most matrices above are settled by `refine` or LAPACK: here the tridiagonal way must answer by itself
    rng = np.random.default_rng(n)
    for d in (1, 3, 5):
        for spectrum in (rng.uniform(0, 1, n), rng.standard_normal(n), -rng.uniform(0, 1, n) - 1.0):
            C = rotated(rng, spectrum)
            Q = np.zeros((d, len(pad(C))))
            assert run_direct(pad(C), n, len(pad(C)), d, Q)
            assert_dominant(C, Q, d)


@pytest.mark.kernels
@pytest.mark.parametrize("n", [3, 6, 7, 9])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy warns where compiled code does not
def test_not_finite(n, bad):
    good = rotated(np.random.default_rng(n), np.linspace(1.0, 0.0, n))
    matrices = np.array([good] * 4)
    matrices[1, 0, 0] = bad
    matrices[2, n - 1, n - 1] = bad
    matrices[3, 0, n - 1] = matrices[3, n - 1, 0] = bad
    bases = tridiagonal.top_subspaces(pad(matrices), n, 2)
    assert_dominant(good, bases[0], 2)
    assert np.isnan(bases[1:]).all()


@pytest.mark.kernels
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6])
def test_jacobi(n):
    rng = np.random.default_rng(n)
    graded = (
        np.diag(10.0 ** -np.arange(n)) @ rotated(rng, np.arange(1.0, n + 1)) @ np.diag(10.0 ** -np.arange(n))
    )
    for C in (rotated(rng, rng.standard_normal(n)), np.ones((n, n)), np.zeros((n, n)), graded, -np.eye(n)):
        A, V = C.copy(), np.full((n, n), np.nan)
        run_jacobi(A, V, n)
        norm = max(np.linalg.norm(C), 1e-300)
        np.testing.assert_allclose(V @ V.T, np.eye(n), rtol=0, atol=1e-14 * n)
        np.testing.assert_allclose(V @ C @ V.T, np.diag(np.diag(A)), rtol=0, atol=1e-14 * n * norm)
        np.testing.assert_allclose(np.sort(np.diag(A)), np.linalg.eigvalsh(C), rtol=0, atol=1e-14 * n * norm)


@pytest.mark.kernels
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("eager", [0, 1, 4])
def test_refine_is_dominant_or_declines(d, eager):
    n = 8
    rng = np.random.default_rng(d)
    top = [0.6, 0.5, 0.4][:d]
    wide = top + [1e-3, 1e-4, 0.0, 0.0, 0.0][: n - d] + [0.0] * (3 - d)
    close = top + [0.39, 0.1, 0.1, 0.0, 0.0][: n - d] + [0.0] * (3 - d)
    sunk = [-0.9, 1e-3, 5e-4, 1e-4, 0.0, 0.0, 0.0, 0.0]  # the largest in size is not the largest
    answered = 0
    for spectrum in (wide, close, sunk):
        for axes in (np.eye(n), np.linalg.qr(rng.standard_normal((n, n)))[0]):
            C = (axes * spectrum) @ axes.T
            C = 0.5 * (C + C.T)
            starts = [axes[:, first : first + d].T for first in range(n - d + 1)]  # exact eigenvectors
            starts += [rng.standard_normal((d, n)), np.zeros((d, n)), np.ones((d, n))]
            for start in starts:
                Q = np.ascontiguousarray(start)
                if run_refine(C, n, d, eager, Q) >= 0:
                    assert_dominant(C, Q, d)
                    answered += 1
    assert answered >= 2  # it does not pass by always declining


@pytest.mark.kernels
def test_refine_takes_a_good_start_over():
    rng = np.random.default_rng(0)
    C = rotated(rng, [0.5, 0.4, 0.05, 0.03, 0.02, 0.0, 0.0, 0.0])
    Q = np.ascontiguousarray(rng.standard_normal((2, 8)))
    first = run_leading(C, 8, 8, 2, 4, Q)
    assert first >= 4
    assert_dominant(C, Q, 2)
    assert run_leading(C, 8, 8, 2, 0, Q) <= 1


@pytest.mark.parametrize("n", [6, 20])
def test_thread_count_does_not_matter(n):
    rng = np.random.default_rng(n)
    matrices = pad(np.array([rotated(rng, rng.uniform(0, 2 / n, n)) for _ in range(50)]))
    ref = tridiagonal.top_subspaces(matrices, n, 2, n_threads=1)
    np.testing.assert_array_equal(tridiagonal.top_subspaces(matrices, n, 2, n_threads=2), ref)


@pytest.mark.parametrize("n", [2, 3, 5, 6, 7, 12])
@pytest.mark.parametrize("gap", [0.05, 1.0])
def test_following_rows_of_small_matrices_are_always_found(n, gap):
    rng = np.random.default_rng(n)
    for d in range(1, n):
        spectrum = np.r_[np.ones(d), np.full(n - d, 1.0 - gap if gap < 1.0 else 1e-3)]
        C = rotated(rng, spectrum / spectrum.sum())
        width = len(pad(C))
        for _ in range(5):
            Q = np.zeros((d, width))
            Q[:, :n] = rng.normal(size=(d, n))
            taken = run_following(pad(C), n, width, d, np.int64(4), Q)
            if taken < 0:
                assert n > eigen.JACOBI_MOST  # larger ones without a gap are left to the direct solver
                continue
            assert_dominant(C, Q[:, :n], d)
