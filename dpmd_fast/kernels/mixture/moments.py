"""Posterior means and deviations of the rows of a block, from the shares of the components in them."""

from __future__ import annotations

import math

import numpy as np

from dpmd_fast.kernels.jit import device
from dpmd_fast.kernels.mixture.blocks import fill_in
from dpmd_fast.kernels.mixture.densities import multiply
from dpmd_fast.kernels.mixture.missing import added_variances, factor_pattern
from dpmd_fast.kernels.vector.lanes import add_multiple
from dpmd_fast.kernels.vector.rows import combine_rows


@device(memory=True)
def multiply_counting(components, block, shares, pairs, terms):
    """Set the terms of all pairs of a component and a row in which it has a share; return their number."""
    n = len(block.counts)
    rows = np.empty(n + 4, np.int64)
    at = 0
    for k in range(len(shares)):
        count = 0
        for r in range(n):
            rows[count] = r
            count += shares[k, r] != 0.0
        if components.still:  # nothing moves but what is missing
            for i in range(count):
                pairs[at + i, 0] = k
                pairs[at + i, 1] = rows[i]
                for j in range(terms.shape[1]):
                    terms[at + i, j] = 0.0
        elif count > 0:
            fill_in(block, k)
            multiply(components, block, k, rows, count, at, pairs, terms)
        at += count
    return at


@device
def note_all(n, pairs):
    """Note all pairs of a component and one of n rows, one component after the other; return their number."""
    for p in range(len(pairs)):
        pairs[p, 0] = p // n
        pairs[p, 1] = p % n
    return len(pairs)


@device(memory=True)
def set_moments(components, block, shares, pairs, terms, Z, order, means, spreads):
    """Set the moments of the rows of a block: mean = start + scale * sum over components of share * term."""
    D, width = len(components.origin), terms.shape[1]
    n = len(block.counts)
    sums = np.empty((n, width)) if components.direct else np.zeros((n, width))
    if block.fills.shape[2] > 0:
        for p in range(len(pairs)):
            k, r = pairs[p, 0], pairs[p, 1]
            for t in range(block.counts[r]):
                terms[p, block.columns[r, t]] = block.fills[k, r, t]
    if components.direct:  # all pairs are there, one component after the other
        for r in range(n):
            combine_rows(shares, r, n, terms, r * width, n * width, len(shares), sums, r * width, width)
    else:
        for p in range(len(pairs)):
            k, r = pairs[p, 0], pairs[p, 1]
            add_multiple(shares[k, r], terms, p * width, sums, r * width, width)
    for r in range(n):
        row = order[r]
        if components.direct:  # then all of them start from the point
            point, mean, total = Z[row], means[row], sums[r]
            for j in range(D):
                mean[j] = point[j] + components.scales[j] * total[j]
        else:
            for j in range(D):
                start = Z[row, j] if components.from_point[j] else components.origin[j]
                means[row, j] = start + components.scales[j] * sums[r, j]
        for t in range(block.counts[r]):
            j = block.columns[r, t]
            means[row, j] = components.origin[j] + sums[r, j]
    if len(spreads) > 0:
        _deviations(components, block, shares, pairs, terms, sums, order, spreads)


@device(memory=True)
def _deviations(components, block, shares, pairs, terms, sums, order, spreads):
    """Set deviations; variances are sums of share * (variance in the component + squared gap to the mean)."""
    D = len(components.origin)
    n, most = len(block.counts), block.fills.shape[2]
    L, T, added = np.empty((most, most)), np.empty((most, D)), np.zeros(D)
    within, between = np.zeros((n, D)), np.zeros((n, D))
    component = pattern = -1
    for p in range(len(pairs)):
        k, r = pairs[p, 0], pairs[p, 1]
        share = shares[k, r]
        if share == 0.0:
            continue
        if block.counts[r] > 0:
            if k != component or block.patterns[r] != pattern:
                component, pattern = k, block.patterns[r]
                factor_pattern(components.precisions[k], block.columns, r, block.counts[r], L)
                added_variances(components.gains[k], block.columns, r, block.counts[r], L, T, added)
            for j in range(D):
                within[r, j] += share * added[j]
        for j in range(D):
            gap = terms[p, j] - sums[r, j]
            within[r, j] += share * components.variances[k, j]
            between[r, j] += share * (gap * gap)
    for r in range(n):
        for j in range(D):
            scale = components.scales[j]
            spreads[order[r], j] = math.sqrt(within[r, j] + (scale * scale) * between[r, j])
        for t in range(block.counts[r]):
            j = block.columns[r, t]
            spreads[order[r], j] = math.sqrt(within[r, j] + between[r, j])
