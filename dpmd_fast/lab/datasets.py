"""Simulate the paper's manifolds: sample points on them, add noise, measure errors.

Every shape samples uniformly by area (not by parameter) and computes exact distances to itself. Where the
paper leaves the size open, we take:

* circle: radius 1 in R^2;
* torus: radii 2 (axis to centre of the tube) and 1 (tube) in R^3;
* Swiss roll: (t cos t, 21 v, t sin t), t in [1.5 pi, 4.5 pi], v in [0, 1], not rescaled;
* sphere: S^2 of radius 1 in the first three coordinates of R^D by default.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree

from dpmd_fast.arguments import checked, checked_choice, checked_integer, checked_points
from dpmd_fast.errors import UserTypeError, UserValueError

Floats = NDArray[np.float64]

ROLL_START = 1.5 * math.pi
ROLL_END = 4.5 * math.pi
ROLL_HEIGHT = 21.0
# 1.8e-3 apart: for a point at distance 1, the nearest node is within 4e-7 of the true distance; Newton's
# method removes the rest
_ROLL_NODES = 50_001


@dataclass(frozen=True)
class Shape:
    """A manifold of dimension `dim` in R^`ambient`.

    ``sample(n, rng)`` draws (n, ambient) points uniformly by area; ``distance(points)`` is the Euclidean
    distance of each row to the manifold.
    """

    name: str
    dim: int
    ambient: int
    sample: Callable[[int, np.random.Generator], Floats]
    distance: Callable[[ArrayLike], Floats]


@dataclass(frozen=True)
class Simulation:
    """Noisy references and noisier queries near a shape; ``clean`` holds the queries before noise."""

    references: Floats
    queries: Floats
    clean: Floats


# Shapes. Their functions are module-level, so that a Shape can be pickled.


def circle(radius: float = 1.0) -> Shape:
    """Return the circle around the origin of R^2."""
    radius = checked("radius", radius, positive=True)
    frame = np.eye(2)
    return Shape(
        "circle",
        1,
        2,
        functools.partial(_sample_sphere, frame, radius),
        functools.partial(_sphere_distance, frame, radius),
    )


def torus(major: float = 2.0, minor: float = 1.0) -> Shape:
    """Return the torus around the z axis of R^3: a tube of radius `minor` centred `major` from the axis."""
    major, minor = checked("major", major, positive=True), checked("minor", minor, positive=True)
    if minor >= major:
        raise UserValueError(
            f"minor = {minor:g}: must be below major = {major:g}, or the tube meets the axis",
            argument="minor",
        )
    return Shape(
        "torus",
        2,
        3,
        functools.partial(_sample_torus, major, minor),
        functools.partial(_torus_distance, major, minor),
    )


def swiss_roll() -> Shape:
    """Return the Swiss roll (t cos t, 21 v, t sin t), t in [1.5 pi, 4.5 pi], v in [0, 1], not rescaled."""
    return Shape("swiss-roll", 2, 3, _sample_roll, _roll_distance)


def sphere(ambient: int = 3, dim: int = 2, rotation: np.random.Generator | None = None) -> Shape:
    """Return the unit sphere S^`dim` in R^`ambient`.

    It lies in the first dim + 1 coordinates, or, given a generator as `rotation`, in a uniformly random
    linear subspace of that dimension.
    """
    dim = _count("dim", dim)
    ambient = checked_integer("ambient", ambient, minimum=dim + 1)
    if rotation is None:
        frame = np.eye(ambient, dim + 1)
    else:
        # QR of a Gaussian matrix spans a uniformly distributed subspace; the basis within it does not matter
        frame = np.linalg.qr(_generator(rotation).standard_normal((ambient, dim + 1)))[0]
    return Shape(
        "sphere",
        dim,
        ambient,
        functools.partial(_sample_sphere, frame, 1.0),
        functools.partial(_sphere_distance, frame, 1.0),
    )


SHAPES: dict[str, Callable[..., Shape]] = {
    "circle": circle,
    "torus": torus,
    "swiss-roll": swiss_roll,
    "sphere": sphere,
}


def make_shape(name: str, **options: Any) -> Shape:
    """Return a shape by name, for example ``make_shape("sphere", ambient=20)``."""
    return SHAPES[checked_choice("shape", name, tuple(SHAPES))](**options)


def _sample_sphere(frame: Floats, radius: float, n: int, rng: np.random.Generator) -> Floats:
    return np.asarray(radius * _directions(_count("n", n), frame.shape[1], _generator(rng)) @ frame.T)


def _sphere_distance(frame: Floats, radius: float, points: ArrayLike) -> Floats:
    X = checked_coordinates(points, frame.shape[0])
    within = X @ frame
    off = np.linalg.norm(X - within @ frame.T, axis=1)
    return np.asarray(np.hypot(np.linalg.norm(within, axis=1) - radius, off))


def _sample_torus(major: float, minor: float, n: int, rng: np.random.Generator) -> Floats:
    """Sample uniformly by area, without rejection.

    The area element is proportional to 1 + (minor/major) cos v, and reflecting a uniform v to pi - v with
    probability (1 - (minor/major) cos v)/2 gives exactly this density.
    """
    n, rng = _count("n", n), _generator(rng)
    u = rng.uniform(0.0, 2 * np.pi, n)
    v = rng.uniform(0.0, 2 * np.pi, n)
    keep = rng.random(n) < (1.0 + minor / major * np.cos(v)) / 2
    v = np.where(keep, v, np.pi - v)
    rho = major + minor * np.cos(v)
    return np.column_stack([rho * np.cos(u), rho * np.sin(u), minor * np.sin(v)])


def _torus_distance(major: float, minor: float, points: ArrayLike) -> Floats:
    X = checked_coordinates(points, 3)
    return np.abs(np.hypot(np.hypot(X[:, 0], X[:, 1]) - major, X[:, 2]) - minor)


def _sample_roll(n: int, rng: np.random.Generator) -> Floats:
    n, rng = _count("n", n), _generator(rng)
    t = _roll_parameter(rng.random(n))
    curve = _roll_curve(t)
    return np.column_stack([curve[:, 0], ROLL_HEIGHT * rng.random(n), curve[:, 1]])


def _roll_distance(points: ArrayLike) -> Floats:
    """Return distances to the roll: a planar spiral (columns 0 and 2) times an interval (column 1).

    Start from the nearest of many nodes on the spiral and find the foot of the perpendicular by Newton's
    method. Every iterate lies on the spiral and bounds the distance from above, so the best one counts and a
    bad step does no harm.
    """
    X = checked_coordinates(points, 3)
    below = np.maximum(0.0, np.maximum(-X[:, 1], X[:, 1] - ROLL_HEIGHT))
    planar = X[:, [0, 2]]
    tree, nodes = _roll_nodes()
    best, nearest = tree.query(planar)
    t = nodes[nearest]
    for _ in range(4):
        cos, sin = np.cos(t), np.sin(t)
        velocity = np.column_stack([cos - t * sin, sin + t * cos])
        acceleration = np.column_stack([-2 * sin - t * cos, 2 * cos - t * sin])
        offset = planar - _roll_curve(t)
        slope = np.einsum("ij,ij->i", offset, velocity)
        speed2 = 1.0 + t * t
        curvature = speed2 - np.einsum("ij,ij->i", offset, acceleration)
        curvature = np.where(curvature > 1e-3 * speed2, curvature, speed2)  # no Newton near the evolute
        t = np.clip(t + slope / curvature, ROLL_START, ROLL_END)
        best = np.minimum(best, np.linalg.norm(planar - _roll_curve(t), axis=1))
    return np.asarray(np.hypot(best, below))


def _roll_curve(t: Floats) -> Floats:
    return np.column_stack([t * np.cos(t), t * np.sin(t)])


def _roll_length(t: ArrayLike) -> Floats:
    """Arc length of the spiral from its centre to parameter t."""
    t = np.asarray(t, dtype=np.float64)
    return np.asarray((t * np.sqrt(1.0 + t * t) + np.arcsinh(t)) / 2)


def _roll_parameter(fraction: Floats) -> Floats:
    """Return the parameter t at which a `fraction` of the arc length is reached, by Newton's method.

    The length is convex in t and sqrt(2 length) lies beyond the root, so the iterates decrease
    monotonically; four steps reach rounding error.
    """
    first, last = _roll_length(ROLL_START), _roll_length(ROLL_END)
    length = first + fraction * (last - first)
    t = np.sqrt(2 * length)
    for _ in range(5):
        t -= (_roll_length(t) - length) / np.sqrt(1.0 + t * t)
    return np.clip(t, ROLL_START, ROLL_END)


@functools.cache
def _roll_nodes() -> tuple[cKDTree, Floats]:
    t = _roll_parameter(np.linspace(0.0, 1.0, _ROLL_NODES))
    return cKDTree(_roll_curve(t)), t


# Noise


def bounded_noise(n: int, D: int, radius: float, rng: np.random.Generator) -> Floats:
    """Draw (n, D) vectors uniformly in the l2 ball of the given radius."""
    n, D, radius, rng = _count("n", n), _count("D", D), checked("radius", radius), _generator(rng)
    return _directions(n, D, rng) * (radius * rng.random((n, 1)) ** (1.0 / D))


def gaussian_noise(n: int, D: int, radius: float, rng: np.random.Generator) -> Floats:
    """Draw (n, D) isotropic normal vectors with the mean square norm of `bounded_noise`, D/(D+2) radius^2."""
    n, D, radius, rng = _count("n", n), _count("D", D), checked("radius", radius), _generator(rng)
    return rng.normal(scale=radius / math.sqrt(D + 2), size=(n, D))


NOISES: dict[str, Callable[[int, int, float, np.random.Generator], Floats]] = {
    "bounded": bounded_noise,
    "gaussian": gaussian_noise,
}


def simulate(
    shape: Shape, n: int, m: int, sigma: float, rng: np.random.Generator, noise: str = "bounded"
) -> Simulation:
    """Draw `n` references with noise of radius `sigma` and `m` queries with noise of radius sqrt(sigma).

    Parameters
    ----------
    shape : Shape
    n, m : int
        Number of references and of queries.
    sigma : float
        Noise level, >= 0.
    rng : numpy.random.Generator
    noise : {"bounded", "gaussian"}
        Uniform in the l2 ball, or normal with the same mean square norm.
    """
    draw = NOISES[checked_choice("noise", noise, tuple(NOISES))]
    n, m, sigma = _count("n", n), _count("m", m), checked("sigma", sigma)
    references = shape.sample(n, rng) + draw(n, shape.ambient, sigma, rng)
    clean = shape.sample(m, rng)
    queries = clean + draw(m, shape.ambient, math.sqrt(sigma), rng)
    return Simulation(references, queries, clean)


# Errors


def distance_to_clean(points: ArrayLike, clean: ArrayLike) -> Floats:
    """Return the distance of each row of `points` to the same row of `clean`."""
    target = np.asarray(checked_points("clean", clean), dtype=np.float64)
    X = checked_coordinates(points, target.shape[1])
    if len(X) != len(target):
        raise UserValueError(f"points has {len(X)} rows: must have as many as clean, {len(target)}")
    return np.asarray(np.linalg.norm(X - target, axis=1))


def distance_to_manifold(points: ArrayLike, shape: Shape) -> Floats:
    """Return the distance of each row of `points` to the manifold."""
    return shape.distance(points)


def _directions(n: int, D: int, rng: np.random.Generator) -> Floats:
    """Uniform unit vectors."""
    g = rng.standard_normal((n, D))
    return np.asarray(g / np.linalg.norm(g, axis=1, keepdims=True))


# Checks


def checked_coordinates(points: ArrayLike, columns: int, name: str = "points") -> Floats:
    """Return `points` as float64, or refuse them unless they are finite and have `columns` columns."""
    array = np.asarray(checked_points(name, points), dtype=np.float64)
    if array.shape[1] != columns:
        raise UserValueError(f"{name} has {array.shape[1]} columns: must have {columns}")
    return array


def _count(name: str, value: int) -> int:
    return checked_integer(name, value, minimum=1)


def _generator(rng: np.random.Generator) -> np.random.Generator:
    if not isinstance(rng, np.random.Generator):
        raise UserTypeError(f"rng has type {type(rng).__name__}: must be a numpy.random.Generator")
    return rng
