"""Exponential and logarithm with the same bits on every machine.

The last bit of a library's exp and log depends on the library and on the width of its vectors. These are made
of additions, multiplications, one division and moves of bits, each rounded in one way everywhere: Numba
contracts none of them. What a private record adds to a sum may therefore depend on them.
"""

from __future__ import annotations

import math

import numpy as np

from dpmd_fast.kernels.jit import JIT_DISABLED, device, kernel
from dpmd_fast.kernels.late import intrinsic, types
from dpmd_fast.kernels.vector.lanes import F64, I64, integer

_LOG2_E = 1.4426950408889634
_LN2_HIGH = 6.93147180369123816490e-01  # its last 21 bits are zero, so that n times it is exact
_LN2_LOW = 1.90821492927058770002e-10
_SHIFT = 1.5 * 2.0**52  # added to x, it leaves the integer next to x in the last bits
_BITS_OF_ONE = 1023 << 52
_BITS_OF_SQRT_HALF = 0x3FE6A09E667F3BCD
_LOWEST, _HIGHEST = -700.0, 700.0
_SMALLEST_NORMAL = 2.0**-1022

_E2, _E3, _E4, _E5, _E6, _E7, _E8, _E9, _E10, _E11, _E12, _E13 = (
    1.0 / math.factorial(n) for n in range(2, 14)
)
_L3, _L5, _L7, _L9, _L11, _L13, _L15, _L17, _L19, _L21, _L23 = (2.0 / n for n in range(3, 24, 2))


@intrinsic
def _power_of_two(typingctx, shifted):
    """Return 2^n from _SHIFT + n, for integers n from -1022 to 1023."""

    def codegen(context, builder, signature, args):
        bits = builder.shl(builder.bitcast(args[0], I64), integer(52))
        return builder.bitcast(builder.add(bits, integer(_BITS_OF_ONE)), F64)

    return types.float64(types.float64), codegen


@intrinsic
def _split(typingctx, x):
    """Return m in [sqrt(1/2), sqrt(2)) and e with x = m 2^e, both as float64."""

    def codegen(context, builder, signature, args):
        bits = builder.bitcast(args[0], I64)
        exponent = builder.ashr(builder.sub(bits, integer(_BITS_OF_SQRT_HALF)), integer(52))
        mantissa = builder.bitcast(builder.sub(bits, builder.shl(exponent, integer(52))), F64)
        pair = (mantissa, builder.sitofp(exponent, F64))
        return context.make_tuple(builder, signature.return_type, pair)

    return types.UniTuple(types.float64, 2)(types.float64), codegen


def _plain_power_of_two(shifted):
    return math.ldexp(1.0, int(shifted - _SHIFT))


def _plain_split(x):
    if not 0.0 < x < math.inf:
        return 1.0, 0.0
    mantissa, exponent = math.frexp(x)
    if mantissa < math.sqrt(0.5):
        mantissa, exponent = 2.0 * mantissa, exponent - 1
    return mantissa, float(exponent)


power_of_two = _plain_power_of_two if JIT_DISABLED else _power_of_two
split = _plain_split if JIT_DISABLED else _split


@device(inline=True)
def fixed_exp(x):
    """Return exp(x) for x <= 700 to 1e-15 of its value; 0 below -700 and for NaN."""
    inside = x >= _LOWEST
    y = min(x, _HIGHEST) if inside else 0.0
    shifted = y * _LOG2_E + _SHIFT
    n = shifted - _SHIFT
    r = (y - n * _LN2_HIGH) - n * _LN2_LOW
    s = r * r
    even = ((((_E12 * s + _E10) * s + _E8) * s + _E6) * s + _E4) * s + _E2
    odd = ((((_E13 * s + _E11) * s + _E9) * s + _E7) * s + _E5) * s + _E3
    value = (1.0 + (r + s * (even + r * odd))) * power_of_two(shifted)
    return value if inside else 0.0


@device(inline=True)
def fixed_log(x):
    """Return log(x) to 1e-15 of its value for a positive normal x; any number for others."""
    m, e = split(x)
    g = (m - 1.0) / (m + 1.0)
    s = g * g
    tail = (((_L23 * s + _L21) * s + _L19) * s + _L17) * s + _L15
    tail = (((((tail * s + _L13) * s + _L11) * s + _L9) * s + _L7) * s + _L5) * s + _L3
    return e * _LN2_HIGH + (2.0 * g + (g * s * tail + e * _LN2_LOW))


@device(inline=True)
def set_logs(values, out):
    """Set `out` to `fixed_log` of each value; -inf for 0, NaN for what is less."""
    for i in range(len(values)):
        out[i] = fixed_log(values[i])
    for i in range(len(values)):
        x = values[i]
        if not (x >= _SMALLEST_NORMAL and x < math.inf):
            if x > 0.0 and x < math.inf:
                out[i] = fixed_log(x * 2.0**54) - 54.0 * (_LN2_HIGH + _LN2_LOW)
            elif x == 0.0:
                out[i] = -math.inf
            else:
                out[i] = x if x > 0.0 else math.nan


@device(inline=True)
def set_exps(values, out):
    """Set `out` to `fixed_exp` of each value; 0 and inf where it is beyond the range of numbers."""
    for i in range(len(values)):
        out[i] = fixed_exp(values[i])
    for i in range(len(values)):
        x = values[i]
        if not (x >= _LOWEST and x <= _HIGHEST):
            half = fixed_exp(0.5 * x) if x < 2.0 * _HIGHEST else math.inf
            out[i] = x if math.isnan(x) else half * half


@kernel
def _logs(values, out):
    set_logs(values, out)


@kernel
def _exps(values, out):
    set_exps(values, out)


def fixed_logs(values: np.ndarray) -> np.ndarray:
    """Return `fixed_log` of each value; -inf for 0, NaN for what is less."""
    return _of_each(_logs, values)


def fixed_exps(values: np.ndarray) -> np.ndarray:
    """Return `fixed_exp` of each value; 0 and inf where it is beyond the range of numbers."""
    return _of_each(_exps, values)


def _of_each(function, values):
    array = np.asarray(values, dtype=np.float64)
    flat = np.ascontiguousarray(array).reshape(-1)
    out = np.empty(len(flat))
    with np.errstate(over="ignore", under="ignore"):  # without the compiler, infinity would warn
        function(flat, out)
    return out.reshape(array.shape)
