"""The atlas: release, transform, file, and its accuracy."""

import tempfile
from pathlib import Path

import numpy as np

from dpmd_fast import Atlas, Budget, plan, release_atlas
from dpmd_fast.lab.datasets import bounded_noise, distance_to_manifold, make_shape, simulate

from .common import SIGMA, THREAD_COUNTS, THREADS, Suite, sized

BUDGET = Budget(1.0, 1e-6)
SHAPES = {3: ("torus", {}), 60: ("sphere", {"ambient": 60})}
COLUMNS = sized((60,), (3, 60), (3, 60))
N, ANCHORS = sized((3_000, 300), (10_000, 500), (30_000, 1_000))
GENEROUS = Budget(sized(50.0, 4.0, 1.0), 1e-6)  # so that small samples have charts
MANY = sized(200, 20_000, 1_000_000)


def sample_of(D):
    name, options = SHAPES[D]
    shape = make_shape(name, **options)
    return shape, simulate(shape, N, ANCHORS, SIGMA, np.random.default_rng(0))


class Release(Suite):
    params = (COLUMNS,)
    param_names = ("D",)

    def setup(self, D):
        _, self.sample = sample_of(D)
        self.time_release_atlas(D)

    def time_release_atlas(self, D):
        release_atlas(
            self.sample.references,
            self.sample.queries,
            dim=2,
            budget=GENEROUS,
            accept_risk=True,
            n_threads=THREADS,
        )

    def peakmem_release_atlas(self, D):
        self.time_release_atlas(D)

    def time_plan(self, D):
        plan(self.sample.queries, N, dim=2, budget=GENEROUS)


class Transform(Suite):
    params = (COLUMNS, THREAD_COUNTS)
    param_names = ("D", "threads")

    def setup(self, D, threads):
        shape, sample = sample_of(D)
        self.atlas = release_atlas(
            sample.references, sample.queries, dim=2, budget=GENEROUS, seed=0, accept_risk=True
        )
        rng = np.random.default_rng(1)
        self.Z = shape.sample(MANY, rng) + bounded_noise(MANY, D, 0.2, rng)
        self.atlas.transform(self.Z[:100], n_threads=threads)

    def time_transform(self, D, threads):
        self.atlas.transform(self.Z, n_threads=threads)

    def peakmem_transform(self, D, threads):
        self.atlas.transform(self.Z, n_threads=threads)


class File(Suite):
    params = (COLUMNS,)
    param_names = ("D",)

    def setup(self, D):
        _, sample = sample_of(D)
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "atlas.dpmd"
        self.atlas = release_atlas(
            sample.references, sample.queries, dim=2, budget=GENEROUS, seed=0, accept_risk=True
        )
        self.atlas.save(self.path)

    def teardown(self, D):
        self.folder.cleanup()

    def time_save(self, D):
        self.atlas.save(self.path)

    def time_load(self, D):
        Atlas.load(self.path)

    def track_size(self, D):
        return self.path.stat().st_size

    track_size.unit = "bytes"


class Accuracy(Suite):
    """Mean distance to the manifold of the queries after the transform, epsilon = 1, delta = 1e-6."""

    unit = "distance"
    params = (sized(("circle",), ("circle", "torus"), ("circle", "torus")),)
    param_names = ("shape",)

    def setup(self, shape):
        self.shape = make_shape(shape)
        n, m = sized((5_000, 200), (20_000, 500), (30_000, 1_000))
        self.budget = Budget(sized(20.0, 1.0, 1.0), 1e-6)
        self.sample = simulate(self.shape, n, m, SIGMA, np.random.default_rng(0))

    def track_error(self, shape):
        Y, Z = self.sample.references, self.sample.queries
        atlas = release_atlas(
            Y, Z, dim=self.shape.dim, budget=self.budget, accept_risk=True, seed=0, n_threads=THREADS
        )
        return float(distance_to_manifold(atlas.transform(Z), self.shape).mean())
