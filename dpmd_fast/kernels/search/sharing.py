"""A tree of the balls of one leaf, along whose branches few rows change: a row is summed for many balls.

Where neighbouring balls share most of their rows, the tree is the shortest one that connects their centres
(Prim's). Where they do not, the centres are joined two by two, near ones first, and a joined ball stands for
the two below it: a set of rows from which both can be made by few changes. For each row alone, Fitch's
parsimony (Systematic Zoology 20, 1971) has the least number of changes along the branches: upwards, a row
*must* be in a joined ball if one of the two must have it and both may, and *may* be in it if one of them must
or both may; downwards, a row that may or may not be in a ball is in it if it is in the one above. All rows of
a word are done at once, with its bits.

Balls 0, ..., here - 1 are those of the points of the leaf, others are joined. The tree decides nothing but
the work: it is made from distances in single precision, by operations that are the same on every machine.
"""

from __future__ import annotations

import numpy as np

from dpmd_fast.kernels.jit import device
from dpmd_fast.kernels.search.index import LEAF
from dpmd_fast.kernels.vector.bits import count_ones

MOST_BALLS = 2 * LEAF - 1
_JOINED = 1 / 3  # share of the rows that change between neighbours from which balls are joined: about dim = 4
_NUMBER = np.int32(LEAF - 1)  # bits of the number of a point in a leaf
_NONE = np.int32(np.iinfo(np.int32).max)
_FAR = np.iinfo(np.int64).max
_MOST = 1e15  # coordinates whose squares can be added up in single precision


@device(memory=True)
def tree_of_balls(Y, first, here, D, scale, masks, found, above, order):
    """Arrange the balls around the points Y[first : first + here] as a tree; return how many balls it has.

    masks[r, :found] are the words of ball r; those of joined balls follow, for which there is memory. Sets
    above[b] to the ball above b, -1 at the root, and `order` to the balls, each behind the one above it.
    """
    gaps = _gaps(Y, first, here, D, scale)
    _connect(gaps, here, np.empty(LEAF, np.int64), np.empty(LEAF, np.int64), above, order)
    changed, total = 0, 0
    for b in range(here):
        for f in range(found):
            total += count_ones(masks[b, f])
            if above[b] >= 0:
                changed += count_ones(masks[b, f] ^ masks[above[b], f])
    if changed < _JOINED * total or here < 3:
        return here
    pairs = np.empty((here - 1, 2), np.int64)
    _join(gaps, here, np.empty(LEAF, np.int32), np.empty((3, LEAF + 1), np.int64), pairs)
    _share(masks, np.empty((here - 1, found), np.uint64), pairs, here, found)
    balls = 2 * here - 1
    above[balls - 1] = -1
    for j in range(here - 1):
        above[pairs[j, 0]] = here + j
        above[pairs[j, 1]] = here + j
    for i in range(balls):
        order[i] = balls - 1 - i
    return balls


@device
def list_children(balls, above, order, sizes, child, sibling):
    """List the balls below each: child[b] is the one with most below it, the others are its siblings.

    Lists end with -1; `sizes` is scratch.
    """
    for b in range(balls):
        sizes[b] = 1
        child[b] = -1
    for i in range(balls - 1, 0, -1):
        b = order[i]
        parent = above[b]
        sizes[parent] += sizes[b]
        largest = child[parent]
        if largest < 0 or sizes[b] > sizes[largest]:
            sibling[b] = largest
            child[parent] = b
        else:
            sibling[b] = sibling[largest]
            sibling[largest] = b


@device(memory=True)
def _gaps(Y, first, here, D, scale):
    """Return squared distances between points in units of 1 / `scale`, as the bits of single precision.

    These are in the order of the numbers: nothing is negative, infinite or not a number.
    """
    turned = np.zeros((D, LEAF), np.float32)
    for r in range(here):
        for k in range(D):
            value = scale * (Y[first + r, k] - Y[first, k])
            value = value if value < _MOST else _MOST
            turned[k, r] = np.float32(value if value > -_MOST else -_MOST)
    gaps = np.zeros((here, LEAF), np.float32)
    for r in range(here):
        for k in range(D):
            own = turned[k, r]
            for j in range(LEAF):
                gap = turned[k, j] - own
                gaps[r, j] += gap * gap
    return gaps.view(np.int32)


@device
def _connect(gaps, here, nearest, done, above, order):
    """Set `above` and `order` to the shortest tree from point 0.

    nearest[j] holds the distance of point j to the tree, the point of the tree and j, in this order of bits.
    """
    for j in range(LEAF):
        nearest[j] = _FAR
        done[j] = _FAR if j >= here else 0
    last = np.int64(0)
    above[0], order[0] = -1, 0
    for i in range(1, here):
        done[last] = _FAR
        least = _FAR
        for j in range(LEAF):
            nearest[j] = min(nearest[j], (np.int64(gaps[last, j]) << 12) | (last << 6) | j)
            least = min(least, nearest[j] | done[j])
        last = least & 63
        above[last], order[i] = least >> 6 & 63, last


@device
def _join(keys, here, gone, links, pairs):
    """Set pairs[j] to the balls that ball here + j is joined from.

    Those whose most distant points are closest are joined first (complete linkage, by chains of nearest
    neighbours). The last bits of distances are replaced by the number of the other point, so that the least
    key of a row tells which is nearest.
    """
    names, path = links[0], links[1]
    for r in range(here):
        names[r] = r
        for j in range(LEAF):
            keys[r, j] = keys[r, j] & ~_NUMBER | np.int32(j)
        keys[r, r] = _NONE
    for j in range(LEAF):
        gone[j] = _NONE if j >= here else np.int32(0)
    length = 0
    last = np.int64(0)
    for joined in range(here - 1):
        while True:
            if length == 0:
                path[0] = last
                length = 1
            a = path[length - 1]
            least = _NONE
            for j in range(LEAF):
                least = min(least, keys[a, j] | gone[j])
            b = np.int64(least & _NUMBER)
            if length > 1 and keys[a, path[length - 2]] & ~_NUMBER <= least & ~_NUMBER:
                b = path[length - 2]
                break  # each is the nearest of the other
            path[length] = b
            length += 1
        length -= 2
        last = b
        pairs[joined, 0] = names[a]
        pairs[joined, 1] = names[b]
        names[b] = here + joined
        gone[a] = _NONE
        for j in range(LEAF):
            keys[b, j] = max(keys[a, j], keys[b, j])
        number = np.int32(b)
        for r in range(here):
            keys[r, b] = keys[b, r] & ~_NUMBER | number
        keys[b, b] = _NONE


@device
def _share(masks, may, pairs, here, found):
    """Set the words masks[b, :found] of the joined balls b >= here; `may` (here - 1, found) is scratch."""
    for j in range(here - 1):
        a, b = pairs[j, 0], pairs[j, 1]
        for f in range(found):
            must_a, must_b = masks[a, f], masks[b, f]
            may_a = may[a - here, f] if a >= here else must_a
            may_b = may[b - here, f] if b >= here else must_b
            both = may_a & may_b
            one = must_a | must_b
            masks[here + j, f] = both & one
            may[j, f] = both | one
    for j in range(here - 2, -1, -1):
        for side in range(2):
            below = pairs[j, side]
            if below >= here:
                for f in range(found):
                    masks[below, f] |= may[below - here, f] & masks[here + j, f]
