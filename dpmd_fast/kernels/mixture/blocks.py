"""Rows that are worked on together, and what is missing in them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpmd_fast.kernels.jit import device
from dpmd_fast.kernels.mixture.missing import expected_gap, factor_pattern
from dpmd_fast.kernels.vector.lanes import LANES
from dpmd_fast.kernels.vector.panels import pack
from dpmd_fast.kernels.width import WIDTH


class Block(NamedTuple):
    """Rows that are worked on together, from the origin, and what is missing in them."""

    Z: np.ndarray  # (n, padded)
    counts: np.ndarray  # (n,) of missing values
    columns: np.ndarray  # (n, D) where they are
    patterns: np.ndarray  # (n,) a number for each set of them
    fills: np.ndarray  # (K, n, largest count) what is expected there, under each component


@device(memory=True)
def take_block(components, Z, order):
    K, D, width = components.whitening.shape
    n, most = len(order), 0
    rows = np.zeros((n, width))
    counts, columns, patterns = np.zeros(n, np.int64), np.empty((n, D), np.int64), np.zeros(n, np.int64)
    for r in range(n):
        source, target = Z[order[r]], rows[r]
        gone = 0
        for j in range(D):
            target[j] = source[j] - components.origin[j]
            gone += source[j] != source[j]
        if gone > 0:
            for j in range(D):
                if source[j] != source[j]:
                    columns[r, counts[r]] = j
                    counts[r] += 1
            most = max(most, counts[r])
        if r > 0:
            other = counts[r] != counts[r - 1]
            for t in range(0 if other else counts[r]):
                other |= columns[r, t] != columns[r - 1, t]
            patterns[r] = patterns[r - 1] + other
    return Block(rows, counts, columns, patterns, np.empty((K, n, most)))


@device(memory=True)
def expect_missing(components, block, logs):
    """Set what is expected of missing values, and take them out of the log densities."""
    n, width = block.Z.shape
    most = block.fills.shape[2]
    L, gap = np.empty((most, most)), np.zeros(width)
    for k in range(len(components.means)):
        P, mean = components.precisions[k], components.means[k]
        half, pattern = 0.0, -1
        for r in range(n):
            count = block.counts[r]
            if count == 0:
                continue
            if block.patterns[r] != pattern:
                half, pattern = factor_pattern(P, block.columns, r, count, L), block.patterns[r]
            logs[k, r] -= half
            pack(block.Z, r * width, mean, 1.0, gap, 0, WIDTH, width // LANES)
            for t in range(count):
                gap[block.columns[r, t]] = 0.0
            fill = block.fills[k, r]
            expected_gap(P, block.columns, r, count, L, gap, fill)
            for t in range(count):
                fill[t] += mean[block.columns[r, t]]


@device(inline=True)
def fill_in(block, k):
    """Put what component k expects in the place of missing values."""
    if block.fills.shape[2] > 0:
        for r in range(len(block.counts)):
            for t in range(block.counts[r]):
                block.Z[r, block.columns[r, t]] = block.fills[k, r, t]
