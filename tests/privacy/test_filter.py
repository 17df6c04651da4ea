"""The filter of a ledger: every short sequence of spends is let through up to the total, and not beyond."""

from __future__ import annotations

import itertools
import math

import pytest

from dpmd_fast import BudgetExceeded
from dpmd_fast.privacy.ledger.ledger import Statement
from dpmd_fast.privacy.ledger.store import Account

DECLARED = ("d", 1.0, 1e-6, "gdp", 1.0, "replace-one", None, "2000-01-01T00:00:00+00:00", "host", 1)
SIZES = (0.1, 0.25, 0.3, 0.5, 1.0, 2.0**-40)


def statement(spent):
    rows = [
        (number, "2000-01-01T00:00:00+00:00", "x", "x", "{}", mu2, "unconditional", "host", 1)
        for number, mu2 in enumerate(spent, 1)
    ]
    return Statement(Account(1, DECLARED, rows, "", [""] * len(rows)), {})


def _is_taken(spent, mu2):
    try:
        statement(spent).check(mu2, "x", None, None)
    except BudgetExceeded:
        return False
    return True


def test_every_sequence_stops_at_the_total():
    """Whoever chooses the next spend by what came before cannot get more than the total (filter)."""
    refused = 0
    for asked in itertools.product(SIZES, repeat=5):
        spent: list[float] = []
        for mu2 in asked:
            if _is_taken(spent, mu2):
                spent.append(mu2)
            else:
                assert math.fsum([*spent, mu2]) > 1.0
                refused += 1
        assert math.fsum(spent) <= 1.0 + 1e-12
    assert refused > 1000


@pytest.mark.parametrize("parts", [3, 7, 10, 1000])
def test_equal_parts_of_the_total_fit(parts):
    spent = [1.0 / parts] * (parts - 1)
    statement(spent).check(1.0 / parts, "x", None, None)
    with pytest.raises(BudgetExceeded):
        statement([*spent, 1.0 / parts]).check(1e-9, "x", None, None)
