"""Hostile arrays in the place of the reference, of queries and of other points."""

import numpy as np
from hypothesis import strategies as st

from fuzz.harness import fuzzed, judged
from fuzz.strategies import array_recipes
from fuzz.targets import POINTS

SPENDING = sorted(name for name, target in POINTS.items() if target.spends)
FREE = sorted(name for name, target in POINTS.items() if not target.spends)


def hostile(recipe, good):
    """What a recipe makes of an argument: of a list of numbers, by way of a column."""
    if isinstance(good, dict):
        return {name: hostile(recipe, value) for name, value in good.items()}
    base = np.asarray(good, dtype=np.float64)
    made = recipe.value(base if base.ndim == 2 else base[:, None])
    flat = base.ndim == 1 and isinstance(made, np.ndarray) and made.ndim == 2 and made.shape[1] == 1
    return made[:, 0] if flat else made


def _run(name, columns, place, recipe, paid, **changes):
    target = POINTS[name]
    arguments = {**target.arguments(columns, paid), **changes}
    argument = target.arrays[place % len(target.arrays)]
    arguments[argument] = hostile(recipe, arguments[argument])
    judged(
        f"arrays, {name}",
        f"{name}({argument}: {recipe.label}; columns {columns}, {changes})",
        lambda: target.call(arguments),
        named=target.names(argument, "dim") | {"no-such"},  # or the file that a text names
        paid=target.paid(arguments),
        inputs=list(arguments.values()),
        check=lambda result: target.check(arguments, result),
        unlucky=target.unlucky,
        foreign=target.foreign,
        private=target.private,
    )


@fuzzed(
    0.06,
    name=st.sampled_from(SPENDING),
    columns=st.integers(2, 4),
    place=st.integers(0, 1),
    recipe=array_recipes(),
    paid=st.booleans(),
)
def test_arrays_where_a_budget_is_spent(name, columns, place, recipe, paid):
    _run(name, columns, place, recipe, paid)


@fuzzed(
    0.02,
    name=st.sampled_from(["release_moments", "release_atlas", "release_mixture", "private_preprocessor"]),
    columns=st.integers(1, 3),
    recipe=array_recipes(),
    adjacency=st.sampled_from(["replace-one", "add-remove"]),
)
def test_arrays_whose_invalid_records_are_dropped(name, columns, recipe, adjacency):
    changes = {"on_invalid": "drop", "adjacency": adjacency}
    if adjacency == "add-remove":
        changes["dataset"] = "other"
        if name in ("release_atlas", "release_mixture"):
            changes["n_public"] = 100
    _run(name, columns, 0, recipe, True, **changes)


@fuzzed(
    0.06,
    name=st.sampled_from(FREE),
    columns=st.integers(1, 4),
    place=st.integers(0, 2),
    recipe=array_recipes(),
)
def test_arrays_that_cost_nothing(name, columns, place, recipe):
    _run(name, columns, place, recipe, False)
