"""The inner loops of the kernels: register tiles, vectors, bit masks, gathers; one thread, data in the cache.

Functions that only kernels call have no way in from Python, so each is looped over by a small kernel here.
"""

import numpy as np

from dpmd_fast.kernels.charts import make_field
from dpmd_fast.kernels.eigen.iteration import leading_rows, scratch
from dpmd_fast.kernels.jit import kernel
from dpmd_fast.kernels.vector.bits import ball_masks
from dpmd_fast.kernels.vector.gather import add_differences, add_outers_four, append_inside
from dpmd_fast.kernels.vector.integers import pack_truncated, truncated_square
from dpmd_fast.kernels.vector.lanes import LANES, dot, square_distance
from dpmd_fast.kernels.vector.tiles import add_gram, multiply_symmetric
from dpmd_fast.kernels.width import WIDTH

from .bench_charts import planes
from .common import Suite, best_seconds, sized
from .limits import dgemm_rate
from .parts import inner_nanoseconds

ROWS = 44  # of a panel, as in the sums
TURNS = sized(2, 200, 2000)
ROUNDS = sized(2, 20_000, 100_000)  # of what takes nanoseconds


@kernel
def gram(panel, C, turns):
    groups = C.shape[0] // LANES
    for _ in range(turns):
        add_gram(panel, panel.shape[1], panel.shape[1], C, groups)


@kernel
def symmetric(Q, C, Z, turns):
    for _ in range(turns):
        multiply_symmetric(Q, len(Q), C, Z, C.shape[0])


@kernel
def distances(X, turns):
    width, total = X.shape[1], 0.0
    for _ in range(turns):
        for i in range(len(X)):
            total += square_distance(X, 0, X, i * width, width) + dot(X, 0, X, i * width, width)
    return total


@kernel
def truncated(X, panel, turns):
    width, total = X.shape[1], 0.0
    groups = width // LANES
    for _ in range(turns):
        for i in range(len(X)):
            pack_truncated(X, i * width, X, 0, 1000.0, panel, WIDTH * i, WIDTH * len(X), groups)
            total += truncated_square(X, i * width, X, 0, 1000.0, width)
    return total


@kernel
def masks(x, leaf, half_norms, rests, out, turns):
    for _ in range(turns):
        ball_masks(x, 0, leaf, 0, len(x), half_norms, rests, 0, 0.1, 0.0, 1.0, out)


@kernel
def gathered(X, word, places, tents, inside, out, turns):
    width, end = X.shape[1], 0
    for _ in range(turns):
        end = append_inside(word, X, 0, X, 0, width, 1e9, 1.0, places, tents, 0, inside)
        add_differences(tents, places, 0, end, X, X, 0, out, width)
    return end


@kernel
def outers(bases, roots, places, C, turns):
    for _ in range(turns):
        add_outers_four(bases, roots, places, 0, len(places), bases.shape[1], C)


@kernel
def eigenspaces(C, n, d, turns):
    width, done = C.shape[0], 0
    for _ in range(turns):
        Q, Z, R, S, A, V = scratch(width, d)
        for c in range(d):
            Q[c, c] = 1.0
        done += leading_rows(C, n, width, d, 3, Q, Z, R, S, A, V) >= 0
    return done


class Tiles(Suite):
    params = (sized((20,), (20, 60), (20, 60, 100)),)
    param_names = ("D",)
    unit = "share"

    def setup(self, D):
        rng = np.random.default_rng(0)
        self.width = 4 * -(-D // 4)
        self.panel = rng.normal(size=(-(-self.width // WIDTH), ROWS, WIDTH))
        self.C = np.zeros((self.width, self.width))
        self.Q, self.Z = rng.normal(size=(5, self.width)), np.zeros((5, self.width))
        self.time_add_gram(D)
        self.time_multiply_symmetric(D)

    def time_add_gram(self, D):
        gram(self.panel, self.C, TURNS)

    def time_multiply_symmetric(self, D):
        symmetric(self.Q, self.C, self.Z, TURNS)

    def track_gram_of_dgemm(self, D):
        """Useful flops, the upper triangle, over the rate of DGEMM on one thread."""
        flops = TURNS * ROWS * self.width * (self.width + 1.0)
        spent = best_seconds(lambda: self.time_add_gram(D))
        return flops / spent / dgemm_rate(sized(100, 1000, 2000), threads=1)


class Vectors(Suite):
    params = (sized((20,), (20,), (4, 20, 60)),)
    param_names = ("width",)

    def setup(self, width):
        rng = np.random.default_rng(0)
        self.X = rng.normal(size=(64, width))
        self.panel = np.zeros((-(-width // WIDTH), 64, WIDTH))
        self.places, self.tents = np.arange(64, dtype=np.int32), np.ones(64)
        self.inside, self.out = np.zeros(1, np.int64), np.zeros(width)
        self.leaf = rng.normal(size=(8, 64)).astype(np.float32)
        self.point, self.zeros = np.ones(8, np.float32), np.zeros(64, np.float32)
        self.words = np.zeros(2, np.uint64)
        self.bases, self.C = rng.normal(size=(64, 2, LANES)), np.zeros((LANES, LANES))
        for call in (self.time_distances, self.time_truncated, self.time_masks, self.time_gather):
            call(width)
        self.time_outers(width)

    def time_distances(self, width):
        distances(self.X, TURNS)

    def time_truncated(self, width):
        truncated(self.X, self.panel, TURNS)

    def time_masks(self, width):
        masks(self.point, self.leaf, self.zeros, self.zeros, self.words, TURNS)

    def time_gather(self, width):
        every = np.uint64(2**64 - 1)
        gathered(self.X, every, self.places, self.tents, self.inside, self.out, TURNS)

    def time_outers(self, width):
        outers(self.bases, self.tents, self.places, self.C, TURNS)


class Charts(Suite):
    """Charts of few columns: the masks that find them, their weights, and their rows, which are added."""

    params = (sized((3, 8), (3, 8), (2, 3, 5, 8)),)
    param_names = ("D",)
    unit = "ns"

    def setup(self, D):
        rng = np.random.default_rng(0)
        centers = rng.normal(size=(256, D))
        self.field = make_field(centers, planes(centers, D), np.ones(256), 3.0 * np.sqrt(D))

    def track_mask_of_a_leaf(self, D):
        return inner_nanoseconds(self.field, ROUNDS).mask

    def track_weights_of_a_vector_of_charts(self, D):
        return inner_nanoseconds(self.field, ROUNDS).weights

    def track_row_of_a_chart(self, D):
        return inner_nanoseconds(self.field, ROUNDS).row


class Eigenspaces(Suite):
    """From a cold start, one matrix with a gap."""

    params = (sized((20,), (20, 60), (3, 20, 60)), sized((2,), (2,), (1, 2, 5)))
    param_names = ("D", "d")

    def setup(self, D, d):
        rng = np.random.default_rng(0)
        width = 4 * -(-D // 4)
        X = rng.normal(size=(300, D)) * np.r_[np.full(d, 1.0), np.full(D - d, 0.2)]
        self.C = np.zeros((width, width))
        self.C[:D, :D] = X.T @ X / np.square(X).sum()
        if eigenspaces(self.C, D, d, 1) != 1:
            raise RuntimeError("the iteration did not converge")

    def time_leading_rows(self, D, d):
        eigenspaces(self.C, D, d, TURNS)
