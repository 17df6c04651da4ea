"""The ball index: reference points in 64-point leaves, with sketches and a tree of bounding boxes.

A point's *sketch*, in units of the radius, is its leading coordinates after a global rotation to
principal axes, and the length of the rest. `balls.py` says how it bounds distances.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np

from dpmd_fast.kernels.eigen.spectra import spectra
from dpmd_fast.kernels.jit import device, kernel, single_blas
from dpmd_fast.kernels.linear import gram
from dpmd_fast.kernels.scratch import aligned_zeros
from dpmd_fast.kernels.vector.lanes import LANES, add_multiple, dot
from dpmd_fast.kernels.vector.sketches import scaled_gap

LEAF = 64
_SKETCH_MOST = 24
SKETCH_ALL = 8  # up to this many columns the sketch is the whole point
_TAIL = 0.02  # mean square, in units of h^2, that the coordinates outside the sketch may carry: for the order
_SEARCH_TAIL = 0.1  # and for the search: of .02 to .2 good for all sums of benchmarks/limits.py


class BallIndex(NamedTuple):
    """Reference points in leaf order with their sketches and a tree of bounding boxes."""

    rows: np.ndarray  # (n, width) float64 in leaf order; column D is 1, the padding 0
    columns: int  # D
    depth: int  # sketch coordinates that enter products: all but the rest
    order: np.ndarray  # (n,) original number of each row
    sketch: np.ndarray  # (leaves, depth, 64) coordinates by leaf, in units of the radius
    rests: np.ndarray  # (leaves, 64) length of the part outside the sketch
    middles: np.ndarray  # (leaves, depth) centre of each leaf, and the leaf about it in single precision:
    single: np.ndarray  # (leaves, depth, 64)
    single_half_norms: np.ndarray  # (leaves, 64); padding -1e38
    single_rests: np.ndarray  # (leaves, 64)
    spreads: np.ndarray  # (leaves,) largest squared norm about the centre
    low: np.ndarray  # (nodes, depth) bounding boxes
    high: np.ndarray
    sizes: np.ndarray  # (nodes,) largest |sketch|^2
    children: np.ndarray  # (nodes, 2), or (-1, leaf number)
    spans: np.ndarray  # (nodes, 2) first leaf and number of leaves below a node
    leaf_nodes: np.ndarray  # (leaves,) node of each leaf
    leaf_low: np.ndarray  # (depth, leaves) the boxes of the leaves again, side by side
    leaf_high: np.ndarray
    axes: np.ndarray  # (D, kept) rotation to the leading axes
    center: np.ndarray  # (D,)
    radius: float
    rounding: float  # error of a squared distance between sketches, for sizes that sum to one


def build_index(Y: np.ndarray, radius: float, *, finest: int = LEAF) -> BallIndex:
    """Index the rows of `Y` for balls of one radius; each run of `finest` rows in leaf order lies close."""
    with single_blas() if Y.shape[1] > SKETCH_ALL else nullcontext():  # few columns are not rotated
        return _build_index(Y, radius, finest)


def _build_index(Y: np.ndarray, radius: float, finest: int) -> BallIndex:
    n, D = Y.shape
    sample = np.asarray(Y[:: max(1, n // 4096)], dtype=np.float64)
    center = _medians(sample)  # not the mean: one far record must not cost the others their digits
    axes, depth, whole = _leading_axes(sample - center, radius)
    coordinates, rests = _sketch(Y, center, axes, radius, whole)
    # the rest is one more sketch coordinate: its difference bounds the distance from below
    points = coordinates if whole else np.hstack([coordinates, rests[:, None]])
    order, children, spans, leaf_nodes = _tree(points, finest)
    if depth < axes.shape[1]:
        axes, rests = np.ascontiguousarray(axes[:, :depth]), _lengths(coordinates[:, depth:], rests)
        points = np.hstack([coordinates[:, :depth], rests[:, None]])
    width = LANES * ((D + LANES) // LANES)
    rows = aligned_zeros((n, width))
    rows[:, :D] = Y[order]
    rows[:, D] = 1.0
    sketch, leaf_rests, low, high, sizes = _packed(points, rests, order, children)
    middles = np.ascontiguousarray(0.5 * (low + high)[leaf_nodes, :depth])
    single, single_half_norms, single_rests, spreads = _shifted(sketch, leaf_rests, middles, n)
    return BallIndex(
        rows=rows,
        columns=D,
        depth=depth,
        order=order,
        sketch=sketch,
        rests=leaf_rests,
        middles=middles,
        single=single,
        single_half_norms=single_half_norms,
        single_rests=single_rests,
        spreads=spreads,
        low=low,
        high=high,
        sizes=sizes,
        children=children,
        spans=spans,
        leaf_nodes=leaf_nodes,
        leaf_low=np.ascontiguousarray(low[leaf_nodes].T),
        leaf_high=np.ascontiguousarray(high[leaf_nodes].T),
        axes=axes,
        center=center,
        radius=float(radius),
        rounding=float(np.finfo(float).eps) * (64.0 + 16.0 * D),
    )


def sketch_queries(index: BallIndex, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return sketch coordinates (m, depth) and rests (m,) of query points."""
    whole = index.axes.shape[1] == index.columns
    coordinates, rests = _sketch(X, index.center, index.axes, index.radius, whole)
    points = coordinates if whole else np.hstack([coordinates, rests[:, None]])
    return np.ascontiguousarray(points), rests


def visiting_order(index: BallIndex, X: np.ndarray) -> np.ndarray:
    """Return an order of the rows of `X` in which neighbours follow each other, for the caches."""
    with single_blas():
        return _tree(sketch_queries(index, X)[0], LEAF)[0]


def pad_queries(index: BallIndex, X: np.ndarray) -> np.ndarray:
    """Return query points laid out like `index.rows`."""
    padded = aligned_zeros((len(X), index.rows.shape[1]))
    padded[:, : index.columns] = X
    padded[:, index.columns] = 1.0
    return padded


def _medians(sample):
    """Return the medians of columns, as ``numpy.median`` does, which imports masked arrays for it."""
    n = len(sample)
    middle = [n // 2] if n % 2 else [n // 2 - 1, n // 2]
    ordered = np.partition(sample, [*middle, n - 1], axis=0)
    medians = np.mean(ordered[middle[0] : middle[-1] + 1], axis=0)
    return np.where(np.isnan(ordered[-1]), np.nan, medians)  # NaN is last


def _leading_axes(sample, radius):
    """Return principal axes for the order, how many of them the search needs, and whether they are all.

    They carry all but a small share of h^2. With few columns they are the columns, unrotated.
    """
    D = sample.shape[1]
    if D <= SKETCH_ALL:
        return np.eye(D), D, True
    lengths = np.sqrt(np.einsum("ij,ij->i", sample, sample))
    most = 10.0 * max(float(np.median(lengths)), radius)  # far records do not choose the axes
    sample = sample * np.minimum(1.0, most / np.maximum(lengths, most))[:, None] / radius
    values, vectors = spectra(gram(sample) / len(sample))
    values, vectors = values[::-1], vectors[:, ::-1]
    tail = np.concatenate([np.cumsum(values[::-1])[::-1], [0.0]])
    kept, needed = (int(np.argmax(tail <= most)) or 1 for most in (_TAIL, _SEARCH_TAIL))
    kept = min(kept, _SKETCH_MOST, D - 1)
    return np.ascontiguousarray(vectors[:, :kept]), min(needed, kept), False


def _lengths(coordinates, rests):
    """Return the lengths of what is outside the sketch, with these coordinates outside as well."""
    return np.sqrt(np.einsum("ij,ij->i", coordinates, coordinates) + rests * rests)


def _sketch(Y, center, axes, radius, whole):
    coordinates, rests = np.empty((len(Y), axes.shape[1])), np.zeros(len(Y))
    for start in range(0, len(Y), 8192):
        part = slice(start, start + 8192)
        X = (np.asarray(Y[part], dtype=np.float64) - center) / radius
        if whole:
            coordinates[part] = X
            continue
        coordinates[part] = X @ axes
        X -= coordinates[part] @ axes.T
        rests[part] = np.sqrt(np.einsum("ij,ij->i", X, X))
    return coordinates, rests


@device(inline=True)
def sketch_point(index, X, x0, point, across, left):
    """Sketch the row at element `x0` of X, as `sketch_queries` does; return the rest.

    `point` has one element for each sketch coordinate, the rest among them; `across` holds the axes in rows
    as wide as X, `left` is scratch for one row.
    """
    D, depth = index.columns, index.depth
    scale = 1.0 / index.radius
    if depth == D:
        scaled_gap(X, x0, index.center, scale, point, D)
        return 0.0
    width = len(left)
    left[D:] = 0.0  # the padding: a record that is not finite must leave nothing to the next
    scaled_gap(X, x0, index.center, scale, left, D)
    for k in range(depth):
        point[k] = dot(across, k * width, left, 0, width)
    for k in range(depth):
        add_multiple(-point[k], across, k * width, left, 0, width)
    rest = math.sqrt(dot(left, 0, left, 0, width))
    point[depth] = rest
    return rest


@device
def _select(keys, order, start, stop, at):
    """Quickselect on `keys[start:stop]`, moving `order` along: everything before `at` is <= the rest."""
    left = start
    right = stop - 1
    while left < right:
        middle = (left + right) >> 1
        a, b, c = keys[left], keys[middle], keys[right]
        pivot = max(min(a, b), min(max(a, b), c))
        i = left
        j = right
        while i <= j:
            while keys[i] < pivot:
                i += 1
            while keys[j] > pivot:
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                order[i], order[j] = order[j], order[i]
                i += 1
                j -= 1
        if at <= j:
            right = j
        elif at >= i:
            left = i
        else:
            return


# Python makes the arrays that the kernels below fill: a quarter of the time to compile them less.


def _tree(points, finest):
    """Return the order of points in leaves, and the tree above them: children, spans, nodes of leaves."""
    n = len(points)
    n_leaves = (n + LEAF - 1) // LEAF
    order, leaf_nodes = np.arange(n, dtype=np.int64), np.empty(n_leaves, np.int64)
    children, spans = np.empty((2, 2 * n_leaves - 1, 2), np.int64)
    _split(points, finest, np.empty(n), np.empty((128, 3), np.int64), order, children, spans, leaf_nodes)
    return order, children, spans, leaf_nodes


def _packed(points, rests, order, children):
    """Return sketches and rests by leaf, and boxes and sizes of the nodes."""
    depth, n_leaves, nodes = points.shape[1], (len(points) + LEAF - 1) // LEAF, len(children)
    sketch = np.zeros((n_leaves, depth, LEAF))
    norms, leaf_rests = np.zeros((n_leaves, LEAF)), np.zeros((n_leaves, LEAF))
    low, high = np.full((nodes, depth), np.inf), np.full((nodes, depth), -np.inf)
    sizes = np.zeros(nodes)
    _pack_leaves(points, rests, order, children, norms, sketch, leaf_rests, low, high, sizes)
    return sketch, leaf_rests, low, high, sizes


def _shifted(sketch, rests, middles, n):
    """Return the leaves about their centres in single precision, half norms, rests and largest norms."""
    n_leaves, depth = middles.shape
    single = aligned_zeros((n_leaves, depth, LEAF), np.float32)
    half_norms, single_rests = aligned_zeros((2, n_leaves, LEAF), np.float32)
    spreads = np.empty(n_leaves)
    _shift_leaves(sketch, rests, middles, n, single, half_norms, single_rests, spreads)
    return single, half_norms, single_rests, spreads


@kernel
def _split(points, finest, keys, stack, order, children, spans, leaf_nodes):
    """Split at medians along the longest side, at multiples of 64 points; fill in the tree, sort `order`.

    Inside a leaf the splits go on, at multiples of `finest`, for the order alone.
    """
    n, depth = points.shape
    stack[0, 0] = 0
    stack[0, 1] = 0
    stack[0, 2] = n
    top = 1
    nodes = 1
    while top > 0:
        top -= 1
        node, start, stop = stack[top, 0], stack[top, 1], stack[top, 2]
        unit = LEAF if node >= 0 else finest
        parts = (stop - start + unit - 1) // unit
        if node >= 0:
            spans[node, 0] = start // LEAF
            spans[node, 1] = parts
            if parts == 1:
                children[node, 0] = -1
                children[node, 1] = start // LEAF
                leaf_nodes[start // LEAF] = node
                parts = (stop - start + finest - 1) // finest
                unit, node = finest, -1
        if parts <= 1:
            continue
        best = 0
        longest = -1.0
        for k in range(depth):
            low = points[order[start], k]
            high = low
            for i in range(start + 1, stop):
                value = points[order[i], k]
                low = min(low, value)
                high = max(high, value)
            if high - low > longest:
                longest = high - low
                best = k
        for i in range(start, stop):
            keys[i] = points[order[i], best]
        middle = start + (parts // 2) * unit
        _select(keys, order, start, stop, middle)
        left = right = -1
        if node >= 0:
            left, right = nodes, nodes + 1
            children[node, 0] = left
            children[node, 1] = right
            nodes += 2
        stack[top, 0] = right
        stack[top, 1] = middle
        stack[top, 2] = stop
        stack[top + 1, 0] = left
        stack[top + 1, 1] = start
        stack[top + 1, 2] = middle
        top += 2


@kernel
def _pack_leaves(points, rests, order, children, norms, sketch, leaf_rests, low, high, sizes):
    n, depth = points.shape
    for position in range(n):
        leaf, slot, i = position // LEAF, position % LEAF, order[position]
        norm = 0.0
        for k in range(depth):
            value = points[i, k]
            sketch[leaf, k, slot] = value
            norm += value * value
        norms[leaf, slot] = norm
        leaf_rests[leaf, slot] = rests[i]
    for node in range(len(children) - 1, -1, -1):  # children come after their parent
        if children[node, 0] < 0:
            leaf = children[node, 1]
            for k in range(depth):
                for slot in range(min(LEAF, n - leaf * LEAF)):
                    low[node, k] = min(low[node, k], sketch[leaf, k, slot])
                    high[node, k] = max(high[node, k], sketch[leaf, k, slot])
            for slot in range(min(LEAF, n - leaf * LEAF)):
                sizes[node] = max(sizes[node], norms[leaf, slot])
        else:
            for k in range(depth):
                low[node, k] = min(low[children[node, 0], k], low[children[node, 1], k])
                high[node, k] = max(high[children[node, 0], k], high[children[node, 1], k])
            sizes[node] = max(sizes[children[node, 0]], sizes[children[node, 1]])


@device(memory=True)
def shift_leaf(sketch, lengths, here, middle, single, half_norms, rests):
    """Shift the sketch of a leaf to `middle`, in single precision; return its largest squared norm."""
    norms = np.zeros(LEAF)
    for k in range(len(single)):
        center = middle[k]
        for j in range(LEAF):
            value = np.float32(sketch[k, j] - center)
            single[k, j] = value
            norms[j] += np.float64(value) * np.float64(value)
        for j in range(here, LEAF):  # the padding must stay small: its products may not overflow
            single[k, j] = np.float32(0.0)
    largest = 0.0
    for j in range(LEAF):
        rest = lengths[j]
        rests[j] = np.float32(rest)
        norm = norms[j] + rest * rest
        half_norms[j] = np.float32(-0.5 * norm)
        if j < here:
            largest = max(largest, norm)
    for j in range(here, LEAF):
        half_norms[j] = np.float32(-1e38)
    return largest


@kernel
def _shift_leaves(sketch, rests, middles, n, single, half_norms, single_rests, spreads):
    for leaf in range(len(spreads)):
        here = min(LEAF, n - leaf * LEAF)
        spreads[leaf] = shift_leaf(
            sketch[leaf], rests[leaf], here, middles[leaf], single[leaf], half_norms[leaf], single_rests[leaf]
        )
