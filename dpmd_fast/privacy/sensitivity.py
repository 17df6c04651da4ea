"""How far one record can move what the paper's route releases: its bounds.

Lemma 1 and Lemma 2 of the paper, up to an unknown constant C. `empirical_sensitivity` looks for the
C that a given data set needs.
"""

from __future__ import annotations


def projector_bound(n: int, dim: int, bandwidth: float, constant: float) -> float:
    """Delta_P = C / (n h^d), for the projector of Lemma 1 and the averaged projector of Lemma 2."""
    return constant / (n * bandwidth**dim)


def mean_bound(n: int, dim: int, bandwidth: float, constant: float) -> float:
    """Delta_m = C / (n h^(d-1)), for the weighted mean of Lemma 2."""
    return constant / (n * bandwidth ** (dim - 1))
