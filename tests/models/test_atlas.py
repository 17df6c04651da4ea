"""What `Atlas.transform` returns, and that it keeps nothing between calls."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from samples import make_atlas

from dpmd_fast.status import WORDS, codes_of, words_of

ATLAS = make_atlas()
Z = np.random.default_rng(1).uniform(-2.0, 2.0, size=(300, 3))
MOVED, STATUS = ATLAS.transform(Z, return_status=True)


def test_status_only_if_it_is_asked_for():
    np.testing.assert_array_equal(ATLAS.transform(Z), MOVED)
    assert set(STATUS) == {"ok", "outside"}
    np.testing.assert_array_equal((MOVED != Z).any(axis=1), STATUS == "ok")
    with pytest.raises(TypeError):
        ATLAS.transform(Z, None, True)


def test_a_call_leaves_nothing_behind():
    atlas = make_atlas()
    atlas.transform(Z, return_status=True)
    assert set(vars(atlas)) == {field.name for field in dataclasses.fields(atlas)} | {"_fields"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        atlas.dim = 3


@pytest.mark.parametrize("kind", ["array", "table", "pandas"])
def test_threads_that_share_an_atlas_get_their_own_status(kind):
    make = {
        "array": lambda points: points,
        "table": lambda points: pa.table(dict(zip("abc", points.T, strict=True))),
        "pandas": lambda points: pd.DataFrame(points, columns=list("abc")),
    }[kind]
    atlas = make_atlas()
    parts = [slice(start, start + 11 + start % 7) for start in range(0, 280, 5)]
    given = [make(np.ascontiguousarray(Z[part])) for part in parts]

    def work(shift):
        wrong = 0
        for k in range(3 * len(parts)):
            part, points = parts[(k + shift) % len(parts)], given[(k + shift) % len(parts)]
            moved, status = atlas.transform(points, 1, return_status=True)
            wrong += not np.array_equal(status, STATUS[part])
            wrong += (
                not np.array_equal(np.stack([np.asarray(moved[n]) for n in "abc"], axis=1), MOVED[part])
                if kind != "array"
                else not np.array_equal(moved, MOVED[part])
            )
        return wrong

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(0, 40, 10))) == 0


def test_words_and_codes():
    codes = np.array([3, 0, 4, 2, 1, 0, 5, 6], dtype=np.int8)
    words = words_of(codes)
    expected = ["outside", "ok", "clipped", "failed", "no_neighbor", "ok", "filled", "missing"]
    assert words.tolist() == expected
    np.testing.assert_array_equal(codes_of(words), codes)
    assert codes_of(words).dtype == np.int8
    assert words_of(codes[:0]).shape == (0,)
    assert len(set(WORDS)) == len(WORDS) == 7
