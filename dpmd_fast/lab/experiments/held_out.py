"""Shapes held out from the recipe of the atlas: a wavy sheet, an ellipse, a figure eight, a helix.

The rule for the first bandwidth and the number of rounds was chosen with these in view (`tuning.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial import cKDTree

from dpmd_fast.arguments import checked_integer
from dpmd_fast.lab.datasets import Floats, Shape, checked_coordinates

WAVY_SIDE = 6.0
_NODES = 400_001  # on a curve: the error of a distance is below half the squared gap of two nodes


def wavy_sheet() -> Shape:
    """Return the sheet z = 0.3 sin 3x over [0, 6]^2 in R^3."""
    return Shape("wavy-sheet", 2, 3, _sample_wavy, _wavy_distance)


def ellipse() -> Shape:
    """Return the ellipse with half axes 2 and 1/2 in R^2; its ends have a radius of curvature of 1/8."""
    return _curve_shape("ellipse", 2)


def figure_eight() -> Shape:
    """Return the closed curve (1.5 sin t, 1.5 sin t cos t, 0.4 cos t) in R^3; its strands pass 0.8 apart."""
    return _curve_shape("figure-eight", 3)


def helix() -> Shape:
    """Return three turns of (cos t, sin t, 0.2 t) in R^3."""
    return _curve_shape("helix", 3)


def _curve_shape(name: str, ambient: int) -> Shape:
    return Shape(
        name, 1, ambient, functools.partial(_sample_curve, name), functools.partial(_curve_distance, name)
    )


def _ellipse_at(t: Floats) -> Floats:
    return np.column_stack([2.0 * np.cos(t), 0.5 * np.sin(t)])


def _eight_at(t: Floats) -> Floats:
    return np.column_stack([1.5 * np.sin(t), 1.5 * np.sin(t) * np.cos(t), 0.4 * np.cos(t)])


def _helix_at(t: Floats) -> Floats:
    return np.column_stack([np.cos(t), np.sin(t), 0.2 * t])


def _wave_at(t: Floats) -> Floats:
    return np.column_stack([t, 0.3 * np.sin(3.0 * t)])


_CURVES: dict[str, tuple[Callable[[Floats], Floats], float]] = {
    "ellipse": (_ellipse_at, 2.0 * np.pi),
    "figure-eight": (_eight_at, 2.0 * np.pi),
    "helix": (_helix_at, 6.0 * np.pi),
    "wave": (_wave_at, WAVY_SIDE),
}


@functools.cache
def _nodes(name: str) -> tuple[Floats, Floats, cKDTree]:
    """Return parameters along a curve, the arc length up to each, and a tree of the points."""
    at, end = _CURVES[name]
    t = np.linspace(0.0, end, _NODES)
    points = at(t)
    lengths = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1))])
    return t, lengths, cKDTree(points)


def _sample_curve(name: str, n: int, rng: np.random.Generator) -> Floats:
    """Sample uniformly by arc length."""
    t, lengths, _ = _nodes(name)
    return _CURVES[name][0](
        np.interp(rng.random(checked_integer("n", n, minimum=1)) * lengths[-1], lengths, t)
    )


def _curve_distance(name: str, points: ArrayLike) -> Floats:
    tree = _nodes(name)[2]
    return np.asarray(tree.query(checked_coordinates(points, tree.m))[0])


def _sample_wavy(n: int, rng: np.random.Generator) -> Floats:
    wave = _sample_curve("wave", n, rng)
    return np.column_stack([wave[:, 0], WAVY_SIDE * rng.random(n), wave[:, 1]])


def _wavy_distance(points: ArrayLike) -> Floats:
    X = checked_coordinates(points, 3)
    beyond = np.maximum(0.0, np.maximum(-X[:, 1], X[:, 1] - WAVY_SIDE))
    return np.asarray(np.hypot(_curve_distance("wave", X[:, [0, 2]]), beyond))


HELD_OUT: dict[str, Callable[[], Shape]] = {
    "wavy-sheet": wavy_sheet,
    "ellipse": ellipse,
    "figure-eight": figure_eight,
    "helix": helix,
}
