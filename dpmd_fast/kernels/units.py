"""Rows converted to the units of a preprocessor and back, in one pass over them.

A column's values are gathered for some rows, so that logarithms and exponentials are worked on by vectors.
"""

from __future__ import annotations

import numpy as np

from dpmd_fast.kernels.jit import kernel
from dpmd_fast.kernels.vector.elementary import set_exps, set_logs

_ROWS = 64  # at a time: they stay in the first cache; 16 and 128 take a fifth longer


@kernel
def to_units(X, logged, center, scale, clip, scaled, inside, clipped, without_log):
    """Set `scaled` to (X - center) / scale, of the log where `logged`, and `inside` to it within +-clip.

    `clipped` says of each row whether these differ, `without_log` of each logged column whether a value is
    not positive. `scaled` may have no rows: then it is left out.
    """
    n, D = X.shape
    for k in range(D):
        without_log[k] = False
    values, logs = np.empty(_ROWS), np.empty(_ROWS)
    for begin in range(0, n, _ROWS):
        here = min(_ROWS, n - begin)
        for i in range(here):
            clipped[begin + i] = False
        for k in range(D):
            for i in range(here):
                values[i] = X[begin + i, k]
            if logged[k]:
                low = False
                for i in range(here):
                    low |= values[i] <= 0.0
                without_log[k] |= low
                set_logs(values[:here], logs[:here])
                values[:here] = logs[:here]
            for i in range(here):
                values[i] = (values[i] - center[k]) / scale[k]
            if len(scaled):
                for i in range(here):
                    scaled[begin + i, k] = values[i]
            for i in range(here):
                value = values[i]
                clipped[begin + i] |= value < -clip or value > clip
                value = -clip if value < -clip else value
                inside[begin + i, k] = clip if value > clip else value  # NaN stays


@kernel
def from_units(X, before, after, logged, center, scale, out):
    """Set `out` to center + scale after, its exponential where `logged`, but to X where after is before."""
    n, D = X.shape
    values, exponentials = np.empty(_ROWS), np.empty(_ROWS)
    for begin in range(0, n, _ROWS):
        here = min(_ROWS, n - begin)
        for k in range(D):
            for i in range(here):
                values[i] = center[k] + scale[k] * after[begin + i, k]
            if logged[k]:
                set_exps(values[:here], exponentials[:here])
                values[:here] = exponentials[:here]
            for i in range(here):
                same = after[begin + i, k] == before[begin + i, k]
                out[begin + i, k] = X[begin + i, k] if same else values[i]
