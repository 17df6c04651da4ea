"""Exponential and logarithm against extended precision, and under another compile target."""

from __future__ import annotations

import hashlib
import math
import sys

import mpmath
import numpy as np
import pytest
from kernel_samples import on_another_target

from dpmd_fast.kernels.jit import JIT_DISABLED, kernel
from dpmd_fast.kernels.vector.elementary import fixed_exp, fixed_exps, fixed_log, fixed_logs


@kernel
def run_exp(x, out):
    for i in range(len(x)):
        out[i] = fixed_exp(x[i])


@kernel
def run_log(x, out):
    for i in range(len(x)):
        out[i] = fixed_log(x[i])


def values(run, x):
    out = np.empty(len(x))
    run(x, out)
    return out


def exponents(count=4000):
    rng = np.random.default_rng(0)
    return np.concatenate(
        [
            -np.exp(rng.uniform(-40.0, math.log(700.0), count)),
            (np.arange(-1000, 1) * 0.5) * math.log(2.0),  # where the range reduction turns
            np.arange(-700.0, 1.0),
            [0.0, -0.0, -1e-300, -5e-324],
        ]
    )


def positives(count=4000):
    rng = np.random.default_rng(1)
    return np.concatenate(
        [
            np.exp(rng.uniform(-708.0, 709.0, count)),
            1.0 + rng.uniform(-1.0, 1.0, count) * 2.0 ** -rng.integers(1, 53, count),
            np.ldexp(math.sqrt(0.5) * (1.0 + np.arange(-8, 9) * 2.0**-53), 1),
            2.0 ** np.arange(-1022.0, 1024.0),
            [sys.float_info.min, sys.float_info.max],
        ]
    )


def test_values_are_right_to_1e_15():
    for run, ref, points in ((run_exp, mpmath.exp, exponents()), (run_log, mpmath.log, positives())):
        comp = values(run, points)
        with mpmath.workdps(40):
            for x, y in zip(points.tolist(), comp.tolist(), strict=True):
                exact = ref(mpmath.mpf(x))
                assert abs(y - exact) <= 1e-15 * abs(exact), (run, x)


@pytest.mark.kernels
def test_few_values():
    x = exponents(50)
    np.testing.assert_allclose(values(run_exp, x), [math.exp(v) for v in x], rtol=1e-15)
    x = positives(50)
    np.testing.assert_allclose(values(run_log, x), [math.log(v) for v in x], rtol=1e-15)


@pytest.mark.kernels
def test_ends_of_the_range():
    assert values(run_exp, np.array([-math.inf, -1e300, -700.1, math.nan])).tolist() == [0.0] * 4
    assert values(run_exp, np.array([0.0, -0.0])).tolist() == [1.0, 1.0]
    assert values(run_exp, np.array([-700.0]))[0] > 0.0
    assert values(run_log, np.array([1.0]))[0] == 0.0
    values(run_log, np.array([0.0, -1.0, math.inf, math.nan, 5e-324]))  # any number, but no error


@pytest.mark.kernels
def test_an_exponential_is_monotone_enough_for_a_comparison():
    x = -np.linspace(0.0, 50.0, 2001)
    assert (np.diff(values(run_exp, x)) < 0.0).all()


@pytest.mark.kernels
def test_arrays_of_any_shape_and_values_beyond_the_range():
    x = positives(200)
    np.testing.assert_array_equal(fixed_logs(x), values(run_log, x))
    np.testing.assert_array_equal(
        fixed_logs(x[:200].reshape(20, 10)[::2, 3:]), values(run_log, x[:200]).reshape(20, 10)[::2, 3:]
    )
    y = exponents(200)
    np.testing.assert_array_equal(fixed_exps(y), values(run_exp, y))
    odd = [0.0, -0.0, -1.0, math.inf, -math.inf, math.nan, 5e-324, 1e-310]
    expected = [
        -math.inf,
        -math.inf,
        math.nan,
        math.inf,
        math.nan,
        math.nan,
        math.log(5e-324),
        math.log(1e-310),
    ]
    np.testing.assert_allclose(fixed_logs(np.array(odd)), expected, rtol=1e-15)
    odd = [-math.inf, -800.0, -744.0, -708.5, 705.0, 710.0, 1500.0, math.inf, math.nan]
    expected = [0.0, 0.0, 1e-323, math.exp(-708.5), math.exp(705.0), math.inf, math.inf, math.inf, math.nan]
    np.testing.assert_allclose(fixed_exps(np.array(odd)), expected, rtol=4e-15)
    assert fixed_logs(np.empty((0, 3))).shape == (0, 3)


def digest() -> str:
    bits = np.concatenate([values(run_exp, exponents()), values(run_log, positives())])
    return hashlib.sha256(bits.tobytes()).hexdigest()


@pytest.mark.fixed_seed
@pytest.mark.skipif(JIT_DISABLED, reason="nothing is compiled")
@pytest.mark.parametrize(
    "settings", [{"NUMBA_CPU_NAME": "generic"}, pytest.param({"NUMBA_OPT": "1"}, marks=pytest.mark.slow)]
)
def test_another_target_gives_the_same_bits(settings):
    assert on_another_target(__file__, digest, **settings) == digest()
