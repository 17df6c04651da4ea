"""The simulated manifolds of the paper: where points lie, how noise is added, how errors are measured.

Every shape samples uniformly by area (not by parameter) and knows the exact distance to itself. The paper
leaves some choices open; ours are:

* circle: radius 1 in R^2;
* torus: radii 2 (axis to centre of the tube) and 1 (tube) in R^3;
* Swiss roll: (t cos t, 21 v, t sin t), t in [1.5 pi, 4.5 pi], v in [0, 1], not rescaled;
* sphere: radius 1, S^2 in the first three coordinates of R^D unless told otherwise.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree

Array = NDArray[np.float64]

ROLL_START = 1.5 * math.pi
ROLL_END = 4.5 * math.pi
ROLL_HEIGHT = 21.0
_ROLL_NODES = (
    50_001  # 1.8e-3 apart: the nearest node is within 4e-7 of the distance from 1 away, Newton does the rest
)


@dataclass(frozen=True)
class Shape:
    """A manifold of dimension `dim` in R^`ambient`.

    ``sample(n, rng)`` draws (n, ambient) points uniformly by area; ``distance(points)`` is the Euclidean
    distance of each row to the manifold.
    """

    name: str
    dim: int
    ambient: int
    sample: Callable[[int, np.random.Generator], Array]
    distance: Callable[[ArrayLike], Array]


@dataclass(frozen=True)
class Simulation:
    """Noisy references and noisier queries around a shape; ``clean`` are the queries before noise."""

    references: Array
    queries: Array
    clean: Array


# Shapes. The functions behind them are module-level so that a Shape can be sent to a spawned process.


def circle(radius: float = 1.0) -> Shape:
    """The circle around the origin of R^2."""
    radius = _positive("radius", radius)
    frame = np.eye(2)
    return Shape(
        "circle",
        1,
        2,
        functools.partial(_sample_sphere, frame, radius),
        functools.partial(_sphere_distance, frame, radius),
    )


def torus(major: float = 2.0, minor: float = 1.0) -> Shape:
    """The torus around the z axis of R^3: tube of radius `minor`, its centre `major` from the axis."""
    major, minor = _positive("major", major), _positive("minor", minor)
    if minor >= major:
        raise ValueError(
            f"minor must be smaller than major (the tube must not meet the axis): {minor} >= {major}"
        )
    return Shape(
        "torus",
        2,
        3,
        functools.partial(_sample_torus, major, minor),
        functools.partial(_torus_distance, major, minor),
    )


def swiss_roll() -> Shape:
    """The Swiss roll (t cos t, 21 v, t sin t), t in [1.5 pi, 4.5 pi], v in [0, 1], not rescaled."""
    return Shape("swiss-roll", 2, 3, _sample_roll, _roll_distance)


def sphere(ambient: int = 3, dim: int = 2, rotation: np.random.Generator | None = None) -> Shape:
    """The unit sphere S^`dim` in R^`ambient`: in the first dim + 1 coordinates, or, with a generator as
    `rotation`, in a uniformly random linear subspace of that dimension."""
    dim = check_count("dim", dim)
    ambient = check_count("ambient", ambient)
    if ambient <= dim:
        raise ValueError(f"ambient must be at least dim + 1 = {dim + 1}, got {ambient}")
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
    """The shape registered as `name`, for example ``make_shape("sphere", ambient=20)``."""
    if name not in SHAPES:
        raise ValueError(f"unknown shape {name!r}; known: {', '.join(SHAPES)}")
    return SHAPES[name](**options)


def _sample_sphere(frame: Array, radius: float, n: int, rng: np.random.Generator) -> Array:
    return radius * _directions(check_count("n", n), frame.shape[1], _generator(rng)) @ frame.T


def _sphere_distance(frame: Array, radius: float, points: ArrayLike) -> Array:
    X = check_points("points", points, frame.shape[0])
    within = X @ frame
    off = np.linalg.norm(X - within @ frame.T, axis=1)
    return np.hypot(np.linalg.norm(within, axis=1) - radius, off)


def _sample_torus(major: float, minor: float, n: int, rng: np.random.Generator) -> Array:
    """The area element is proportional to 1 + (minor/major) cos v. Reflecting a uniform v to pi - v with
    probability (1 - (minor/major) cos v)/2 gives exactly this density, without rejection."""
    n, rng = check_count("n", n), _generator(rng)
    u = rng.uniform(0.0, 2 * np.pi, n)
    v = rng.uniform(0.0, 2 * np.pi, n)
    keep = rng.random(n) < (1.0 + minor / major * np.cos(v)) / 2
    v = np.where(keep, v, np.pi - v)
    rho = major + minor * np.cos(v)
    return np.column_stack([rho * np.cos(u), rho * np.sin(u), minor * np.sin(v)])


def _torus_distance(major: float, minor: float, points: ArrayLike) -> Array:
    X = check_points("points", points, 3)
    return np.abs(np.hypot(np.hypot(X[:, 0], X[:, 1]) - major, X[:, 2]) - minor)


def _sample_roll(n: int, rng: np.random.Generator) -> Array:
    n, rng = check_count("n", n), _generator(rng)
    t = _roll_parameter(rng.random(n))
    curve = _roll_curve(t)
    return np.column_stack([curve[:, 0], ROLL_HEIGHT * rng.random(n), curve[:, 1]])


def _roll_distance(points: ArrayLike) -> Array:
    """The roll is a product: a planar spiral (columns 0 and 2) and an interval (column 1).

    The nearest of many nodes on the spiral, then Newton's method for the foot of the perpendicular. The
    best of all iterates counts, so a step that leads astray does no harm: any point of the spiral bounds
    the distance from above.
    """
    X = check_points("points", points, 3)
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
    return np.hypot(best, below)


def _roll_curve(t: Array) -> Array:
    return np.column_stack([t * np.cos(t), t * np.sin(t)])


def _roll_length(t: ArrayLike) -> Array:
    """Arc length of the spiral from its centre to parameter t."""
    t = np.asarray(t, dtype=np.float64)
    return (t * np.sqrt(1.0 + t * t) + np.arcsinh(t)) / 2


def _roll_parameter(fraction: Array) -> Array:
    """The parameter t at which a `fraction` of the roll's arc length is reached, by Newton's method.

    The length is convex in t and sqrt(2 length) lies beyond the root, so the iteration falls
    monotonically; from this start four steps reach rounding.
    """
    first, last = _roll_length(ROLL_START), _roll_length(ROLL_END)
    length = first + fraction * (last - first)
    t = np.sqrt(2 * length)
    for _ in range(5):
        t -= (_roll_length(t) - length) / np.sqrt(1.0 + t * t)
    return np.clip(t, ROLL_START, ROLL_END)


@functools.cache
def _roll_nodes() -> tuple[cKDTree, Array]:
    t = _roll_parameter(np.linspace(0.0, 1.0, _ROLL_NODES))
    return cKDTree(_roll_curve(t)), t


# Noise


def bounded_noise(n: int, D: int, radius: float, rng: np.random.Generator) -> Array:
    """(n, D) vectors uniform in the l2 ball of the given radius."""
    n, D, radius, rng = check_count("n", n), check_count("D", D), _radius(radius), _generator(rng)
    return _directions(n, D, rng) * (radius * rng.random((n, 1)) ** (1.0 / D))


def gaussian_noise(n: int, D: int, radius: float, rng: np.random.Generator) -> Array:
    """(n, D) isotropic normal vectors with the mean square norm of `bounded_noise`, D/(D+2) radius^2."""
    n, D, radius, rng = check_count("n", n), check_count("D", D), _radius(radius), _generator(rng)
    return rng.normal(scale=radius / math.sqrt(D + 2), size=(n, D))


NOISES: dict[str, Callable[[int, int, float, np.random.Generator], Array]] = {
    "bounded": bounded_noise,
    "gaussian": gaussian_noise,
}


def simulate(
    shape: Shape, n: int, m: int, sigma: float, rng: np.random.Generator, noise: str = "bounded"
) -> Simulation:
    """`n` references with noise of radius `sigma` and `m` queries with noise of radius sqrt(sigma).

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
    if noise not in NOISES:
        raise ValueError(f"unknown noise {noise!r}; known: {', '.join(NOISES)}")
    n, m, sigma = check_count("n", n), check_count("m", m), _radius(sigma, "sigma")
    draw = NOISES[noise]
    references = shape.sample(n, rng) + draw(n, shape.ambient, sigma, rng)
    clean = shape.sample(m, rng)
    queries = clean + draw(m, shape.ambient, math.sqrt(sigma), rng)
    return Simulation(references, queries, clean)


# Errors


def distance_to_clean(points: ArrayLike, clean: ArrayLike) -> Array:
    """Distance of each row of `points` to its row of `clean`."""
    clean = check_points("clean", clean)
    points = check_points("points", points, clean.shape[1])
    if len(points) != len(clean):
        raise ValueError(f"points and clean must have equally many rows, got {len(points)} and {len(clean)}")
    return np.linalg.norm(points - clean, axis=1)


def distance_to_manifold(points: ArrayLike, shape: Shape) -> Array:
    """Distance of each row of `points` to the manifold."""
    return shape.distance(points)


# Validation and helpers


def _directions(n: int, D: int, rng: np.random.Generator) -> Array:
    """Uniform unit vectors."""
    g = rng.standard_normal((n, D))
    return g / np.linalg.norm(g, axis=1, keepdims=True)


def check_count(name: str, value: int) -> int:
    try:
        count = index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
    if count < 1:
        raise ValueError(f"{name} must be at least 1, got {count}")
    return count


def _positive(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be finite and positive, got {value!r}")
    return float(value)


def _radius(value: float, name: str = "radius") -> float:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} must be finite and not negative, got {value!r}")
    return float(value)


def _generator(rng: np.random.Generator) -> np.random.Generator:
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng must be a numpy.random.Generator, got {type(rng).__name__}")
    return rng


def check_points(name: str, points: ArrayLike, columns: int | None = None) -> Array:
    X = np.asarray(points, dtype=np.float64)
    if X.ndim != 2 or (columns is not None and X.shape[1] != columns):
        width = "D" if columns is None else columns
        raise ValueError(f"{name} must have shape (n, {width}), got {X.shape}")
    if not np.isfinite(X).all():
        raise ValueError(f"{name} must be finite")
    return X
