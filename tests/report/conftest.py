"""Fixtures of the reports of all models."""

from __future__ import annotations

import pytest


@pytest.fixture
def undrawn(monkeypatch):
    """Pictures are put together and not drawn, which takes most of the time: for tests of the words."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda _, out, **__: out.write(b"<svg></svg>"))
