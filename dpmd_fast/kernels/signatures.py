"""What Python hands to each kernel, and which kernels a route runs: all that is needed to compile ahead.

A type is written as a letter and a number of dimensions, "f2" for a contiguous matrix of float64. Kernels get
nothing else: the functions around them convert, so that no type depends on how the records came in.
`tests/test_compilation.py` runs all routes and fails if one compiles anything that is not named here.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

LETTERS = {
    "f": "float64",
    "s": "float32",
    "i": "int64",
    "j": "int32",
    "u": "uint64",
    "h": "uint16",
    "b": "bool",
}
# Types of arguments by kernel, and kernels by what runs together. One process compiles one group; the longest
# come first.
_GROUPS: dict[str, dict[str, str]] = {
    "eigen": {
        "eigen.tridiagonal._top_subspaces": "f3 i f3 b1",
    },
    "posterior": {
        "posterior._set_rows": "POSTERIOR f2 i1 i f2 f2 f1 u2",
    },
    "tangents": {
        "tangents._all_tangents": "BALLS f3 i1 b1",
    },
    "descent": {
        "descent._descend": "BALLS f3 f2 f i f i1 i1 f1",
    },
    "residuals": {
        "sums.residuals._clip_block": "BALLS f3 f4 f f2 f2 f CLIP j1 f1 i1 f2 f1",
        "sums.residuals._accumulate": "PAIR f2 f i1 f2 f2 f3 b1",
    },
    "moments": {
        "sums.moments._clip_block": "BALLS f2 f f CLIP j1 f1 i1 f1",
        "sums.moments._accumulate": "BALLS f2 f i1 f2 f3 b1",
    },
    "mixtures": {
        "sums.mixtures._add_block": "f1 f3 SCREEN f CLIP f2 f4 b1",
    },
    "wide charts": {
        "wide_charts.move_wide": "SIZES SKETCH BOXES PLANES i f1 f i f2 b1 i1 i b1",
    },
    "charts": {
        "narrow_charts.move_narrow": "SIZES SKETCH BOXES ROWS f1 f i f2 b1 i1 i b1",
    },
    "projectors": {
        "projectors._local_geometry": "BALLS f3 f2 f2 f1 f i1 f1 f2 f3",
        "projectors._project_to_planes": "f2 f2 f3",
    },
    "scatter": {
        "tangents._scatter_at": "i BALLS f2 f2 f1 f3",
        "tangents._scatter_many": "BALLS f2 f2 f1 f3",
    },
    "exact noise": {
        "noise.exact_normal.fill": "u1 i1 i DIGITS",
    },
    "index": {
        "search.index._split": "f2 i f1 i2 i1 i2 i2 i1",
        "search.index._pack_leaves": "f2 f1 i1 i2 f2 f3 f2 f2 f2 f1",
    },
    "spectra": {
        "eigen.spectra._spectra": "f3 f2 f3 b1",
    },
    "balls": {
        "search.balls._count": "BALLS f2 f2 f1 i1",
    },
    "leaves": {
        "search.index._shift_leaves": "f3 f2 f2 i s3 s2 s2 f1",
    },
    "features": {
        "sums.features._add": "f2 i CLIP f3 b1",
        "sums.features._coordinates": "f2 f1 f2 f2 f2 b1",
    },
    "pairs": {
        "sums.pairs._sort_pairs": "i j1 f1 i1 f2 f2 f2 i2 i1",
    },
    "normal noise": {
        "noise.normal.fill": "u1 f1 f1 f1",
        "noise.normal._fill_chunks": "u2 f1 f1 f1 i2",
        "noise.normal.add_symmetric": "f3 i f1 f1",
    },
    "subspace": {
        "sums.features._inside": "f2 f1 f2 f2 i i",
        "sums.features._points": "f2 f1 f2 f2 i i",
    },
    "logarithms": {
        "vector.elementary._logs": "f1 f1",
        "vector.elementary._exps": "f1 f1",
    },
    "units": {
        "units.to_units": "f2 b1 f1 f1 f f2 f2 b1 b1",
        "units.from_units": "f2 f2 f2 b1 f1 f1 f2",
    },
    "integers": {
        "sums.exact._symmetric": "f3 i3 i1 i3",
    },
}
# Groups with the same helpers: a process that has compiled one of them compiles the next in half the time.
_FAMILIES = {
    "search": ("tangents", "descent", "residuals", "moments", "projectors", "scatter", "balls"),
    "charts": ("wide charts", "charts"),
}
_INDEX = ("index", "leaves")  # apart: two processes compile what a first transform needs in the same time
_MOMENTS = ("moments", *_INDEX, "spectra", "exact noise", "pairs", "integers")
_PAPER = ("tangents", "scatter", "projectors", "eigen", "spectra", *_INDEX, "normal noise")
#: Groups of kernels that a route may run; the first line of each is what a release runs before or after its
#: debit, the others are methods without privacy.
ROUTES: dict[str, tuple[str, ...]] = {
    "noise": ("exact noise", "logarithms"),
    "moments": _MOMENTS,
    "prediction": ("charts", "logarithms", *_MOMENTS),
    "transform": ("charts", *_INDEX),
    "wide transform": ("wide charts", *_INDEX, "spectra"),
    "many columns": ("wide charts",),
    "logarithms": ("logarithms",),
    "units": ("units",),
    "coordinates": ("subspace",),
    "atlas": ("residuals", "charts", "logarithms", *_MOMENTS),
    "subspace": ("features", "subspace", "spectra"),
    "mixture": ("mixtures", "spectra", "logarithms", "exact noise", "integers"),
    "posterior": ("posterior", "logarithms"),
    "projector": ("scatter", "eigen", "spectra", *_INDEX, "normal noise"),
    "paper": _PAPER,
    "descent": ("descent", "tangents", "scatter", "eigen", "spectra", *_INDEX),
    "search": ("balls", *_INDEX, "spectra"),
}


def groups_of(*routes: str) -> list[tuple[str, ...]]:
    """Return the names of the kernels of some routes, by group; of all kernels for no route."""
    wanted = {group for route in routes for group in ROUTES[route]} if routes else set(_GROUPS)
    return [tuple(kernels) for group, kernels in _GROUPS.items() if group in wanted]


@functools.cache
def family_of(name: str) -> str:
    """Return what a kernel shares its helpers with: the name of a family, or its own group's."""
    group = next(group for group, kernels in _GROUPS.items() if name in kernels)
    return next((family for family, groups in _FAMILIES.items() if group in groups), group)


def dispatcher_of(name: str) -> Any:
    """Return the kernel of this name."""
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(f"dpmd_fast.kernels.{module}"), function)


@functools.cache
def words_of(name: str) -> tuple[str, ...]:
    """Return the words for the types of the arguments of a kernel."""
    return tuple(next(kernels[name] for kernels in _GROUPS.values() if name in kernels).split())


@functools.cache
def types_of(name: str) -> tuple[Any, ...]:
    """Return Numba's types of the arguments of a kernel."""
    return tuple(map(_type, words_of(name)))


@functools.cache
def _type(word: str) -> Any:
    from numba import types

    if word in TUPLES:
        parts = [_type(part) for part in TUPLES[word].split()]
        return types.NamedTuple(parts, _named(NAMED[word])) if word in NAMED else types.Tuple(parts)
    base = getattr(types, LETTERS[word[0]].replace("bool", "boolean"))
    return types.Array(base, int(word[1:]), "C") if word[1:] else base


def _named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(f"dpmd_fast.kernels.{module}"), name)


#: Words for tuples, and what they are made of.
TUPLES = {
    "BALLS": "f2 i i i1 f3 f2 f2 s3 s2 s2 f1 f2 f2 f1 i2 i2 i1 f2 f2 f2 f1 f f",
    "CLIP": "f f i",
    "DIGITS": "i i h1 i1 i2",
    "PAIR": "f f",
    "SIZES": "i i f f",
    "SKETCH": "f1 f2 f2 s3 s2 s2",
    "BOXES": "f1 f1 f2 f2",
    "PLANES": "f2 f2",
    "ROWS": "f3 f2 i i b1",
    "SCREEN": "f1 s2 s3 f2 f1 f f",
    "POSTERIOR": "f1 f1 f2 f3 f2 f3 f3 f2 b1 f3 f2 f1 b i b",
}
NAMED = {
    "BALLS": "search.index.BallIndex",
    "CLIP": "sums.clip.Clipping",
    "DIGITS": "noise.exact_normal.Tables",
    "SCREEN": "sums.screen.Screen",
    "POSTERIOR": "mixture.components.PosteriorComponents",
}
