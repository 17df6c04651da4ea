"""Private medians and MADs, and the preprocessing that they make."""

import warnings

import numpy as np

from dpmd_fast import Budget, Preprocessor, private_preprocessor
from dpmd_fast.mechanisms.preprocessor import noisy_counts
from dpmd_fast.models.quantiles import fitted_counts
from dpmd_fast.privacy.entropy import open_source
from dpmd_fast.privacy.histograms import Grid, nested_lattice
from dpmd_fast.reference.histograms import NestedCounts

from .common import Suite, sized

ROWS = sized(2_000, 100_000, 1_000_000)
BINS = 1024


class Preprocessing(Suite):
    params = (sized((3,), (20,), (5, 60)),)
    param_names = ("D",)

    def setup(self, D):
        warnings.simplefilter("ignore")
        self.Y = np.random.default_rng(0).normal(size=(ROWS, D))
        self.bounds = np.column_stack([np.full(D, -20.0), np.full(D, 20.0)])
        self.budget = Budget(sized(20.0, 1.0, 1.0), 1e-9)
        self.grids = [Grid.between(-20.0, 20.0, BINS, False)] * D
        self.plan = nested_lattice(self.budget.mu, D, BINS, "replace-one")
        self.counts = NestedCounts(self.grids)
        self.counts.add(self.Y)
        self.source = open_source()
        self.noisy = noisy_counts(self.counts.counts, self.plan, self.source)
        self.made = Preprocessor.from_public(self.Y[:1000], log=False)
        self.forward = self.made.forward(self.Y)

    def time_private_preprocessor(self, D):
        private_preprocessor(self.Y, bounds=self.bounds, budget=self.budget, log=False)

    def peakmem_private_preprocessor(self, D):
        self.time_private_preprocessor(D)

    def time_count(self, D):
        NestedCounts(self.grids).add(self.Y)

    def time_noise(self, D):
        noisy_counts(self.counts.counts, self.plan, self.source)

    def time_fit_counts(self, D):
        fitted_counts(self.noisy, ROWS)

    def time_forward(self, D):
        self.made.forward(self.Y)

    def time_inverse(self, D):
        self.made.inverse(self.forward)
