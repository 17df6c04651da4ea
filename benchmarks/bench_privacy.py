"""Budgets and the ledger: what a release costs before it begins."""

import tempfile
from pathlib import Path

from dpmd_fast import Budget, Ledger
from dpmd_fast.privacy import accounting

from .common import Suite, sized


class Accounting(Suite):
    def time_gdp_mu(self):
        accounting.gdp_mu(1.0, 1e-6)

    def time_gdp_epsilon(self):
        accounting.gdp_epsilon(0.3, 1e-6)

    def time_gdp_delta(self):
        accounting.gdp_delta(0.3, 1.0)

    def time_zcdp_rho(self):
        accounting.zcdp_rho(1.0, 1e-6)

    def time_budget(self):
        _ = Budget(1.0, 1e-6).mu


class Spending(Suite):
    """A debit is on disk when `spend` returns; `entries` are there already."""

    params = (sized((2,), (10, 300), (10, 3000)),)
    param_names = ("entries",)
    number = 1
    repeat = sized(1, 5, 20)

    def setup(self, entries):
        self.folder = tempfile.TemporaryDirectory()
        self.ledger = Ledger(Path(self.folder.name) / "budget.db")
        self.ledger.create("data", epsilon=1000.0, delta=1e-6)
        for _ in range(entries):
            self.ledger.spend("data", 1e-6, "a release")

    def teardown(self, entries):
        self.folder.cleanup()

    def time_spend(self, entries):
        self.ledger.spend("data", 1e-6, "a release")

    def time_remaining(self, entries):
        self.ledger.remaining("data")

    def time_history(self, entries):
        self.ledger.history("data")
