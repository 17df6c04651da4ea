"""Hypothesis strategies for hostile arrays, tables, parameters and files.

An array is drawn as a good one with something done to its values, then to its form; so is a table, with
something done to its columns. What was done is its label. A drawn case is a small recipe that is carried out
on the good input of an entry point: examples stay readable and quick to make.
"""

from __future__ import annotations

import datetime
import decimal
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import scipy.sparse
from hypothesis import reject
from hypothesis import strategies as st

from fuzz.harness import CANARY, DIGITS


class Made(NamedTuple):
    """A hostile value, and what is hostile about it."""

    label: str
    value: object

    def __repr__(self):  # of the value there may be none: numbers of more than 4,300 digits have no text
        return f"Made({self.label})"


# Values of arrays

POISONS = (np.nan, np.inf, -np.inf, 1e100, 1.0000001e100, -1e101, 1.7e308, 5e-324, -1e-310, -0.0, 1e15, 1e-40)


def _somewhere(value):
    def change(array, seed):
        array = array.copy()
        if array.size:
            array.flat[seed % array.size] = value
        return array

    return change


def _column(value):
    def change(array, seed):
        array = array.copy()
        array[:, seed % array.shape[1]] = value
        return array

    return change


VALUES = {
    "as they are": lambda a, s: a,
    **{f"{value} somewhere": _somewhere(value) for value in POISONS},
    **{f"a column of {value}": _column(value) for value in (np.nan, 0.0, 1e100, CANARY)},
    "all equal": lambda a, s: np.full_like(a, a.flat[0] if a.size else 0.0),
    "all zero": lambda a, s: np.zeros_like(a),
    "all NaN": lambda a, s: np.full_like(a, np.nan),
    "two points": lambda a, s: a[np.arange(len(a)) % 2],
    "on a line": lambda a, s: np.repeat(a[:, :1], a.shape[1], axis=1),
    "far away": lambda a, s: a + 1e15,
    "huge": lambda a, s: a * 1e99,
    "too huge": lambda a, s: a * 1e160,
    "tiny": lambda a, s: a * 1e-30,
    "subnormal": lambda a, s: a * 1e-310,
    "of all sizes": lambda a, s: a * 10.0 ** np.random.default_rng(s).uniform(-300, 99, a.shape),
    "negative": lambda a, s: -np.abs(a),
    "few rows": lambda a, s: a[: s % 5],
    "one row": lambda a, s: a[:1],
    "no rows": lambda a, s: a[:0],
    "no columns": lambda a, s: a[:, :0],
    "nothing": lambda a, s: a[:0, :0],
    "a column less": lambda a, s: a[:, 1:],
    "a column more": lambda a, s: np.hstack([a, a[:, :1]]),
    "many columns": lambda a, s: np.tile(a, (1, 5)),
    "rows again": lambda a, s: np.concatenate([a, a]),
}

# Forms of arrays


def _unaligned(array):
    out = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out


def _read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def _masked(array, some):
    mask = np.zeros(array.shape, bool)
    if some and mask.size:
        mask.flat[0] = True
    return np.ma.MaskedArray(array, mask)


def _mixed(array, other):
    out = array.astype(object)
    if out.size:
        out.flat[out.size // 2] = other
    return out


def _structured(array):
    names = [(f"f{k}", array.dtype) for k in range(max(1, array.shape[1]))]
    return np.zeros(len(array), dtype=names)


class Duck:
    """Says what it holds by ``__array__``."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.array, dtype=dtype)


class Broken:
    """Fails with a private value in its text, as readers may."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError(f"no array of {DIGITS}")


def _ragged(array):
    rows = array.tolist()
    return [*rows[:-1], rows[-1][:-1]] if rows else [[1.0], []]


def _typed(kind):
    return lambda array: array.astype(kind)


def _whole(kind):
    return lambda array: np.nan_to_num(array, posinf=1, neginf=0).clip(0, 1).astype(kind)


FORMS = {
    "as it is": lambda a: a,
    "columns in order": np.asfortranarray,
    "backwards": lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
    "every second": lambda a: np.repeat(a, 2, axis=0)[::2],
    "read-only": _read_only,
    "unaligned": _unaligned,
    "broadcast": lambda a: np.broadcast_to(a[:1], a.shape) if len(a) else a,
    "swapped bytes": lambda a: a.astype(">f8"),
    "memory view": lambda a: memoryview(np.ascontiguousarray(a)),
    "matrix": lambda a: a.view(np.matrix) if a.ndim == 2 else a,
    **{kind: _typed(kind) for kind in ("f4", ">f4", "f2", "g", "c16", "O", "U8", "S4")},
    **{kind: _whole(kind) for kind in ("i1", "u8", "i8", ">i4", "?", "M8[s]", "m8[D]")},
    "large integers": lambda a: np.full(a.shape, 2**63 - 1),
    "Python's large integers": lambda a: _mixed(a, 10**400),
    "object with None": lambda a: _mixed(a, None),
    "object with a text": lambda a: _mixed(a, f"private {DIGITS}"),
    "object with a list": lambda a: _mixed(a, [1.0]),
    "object with a fraction": lambda a: _mixed(a, Fraction(1, 3)),
    "object with a decimal": lambda a: _mixed(a, decimal.Decimal("sNaN")),
    "object with a complex": lambda a: _mixed(a, 1j),
    "texts": lambda a: np.full(a.shape, DIGITS),
    "masked": lambda a: _masked(a, True),
    "masked, nothing": lambda a: _masked(a, False),
    "structured": _structured,
    "records": lambda a: _structured(a).view(np.recarray),
    "0-d": lambda a: np.array(CANARY),
    "1-d": lambda a: a.ravel(),
    "3-d": lambda a: a[None],
    "a last axis": lambda a: a[..., None],
    "transposed": lambda a: a.T,
    "lists": lambda a: a.tolist(),
    "tuples": lambda a: tuple(map(tuple, a.tolist())),
    "list of arrays": list,
    "ragged": _ragged,
    "empty list": lambda a: [],
    "nested empty lists": lambda a: [[]],
    "iterator": lambda a: iter(a),
    "a dictionary": lambda a: {"x": a},
    "a set": lambda a: {CANARY},
    "None": lambda a: None,
    "a number": lambda a: CANARY,
    "a text": lambda a: f"no-such-{DIGITS[:3]}.parquet",
    "bytes": lambda a: b"bytes",
    "a type": lambda a: np.ndarray,
    "sparse": lambda a: (
        scipy.sparse.csr_matrix(np.nan_to_num(a)) if a.size else scipy.sparse.csr_matrix((2, 2))
    ),
    "duck": Duck,
    "broken": lambda a: Broken(),
    "series": lambda a: pd.Series(a.ravel()),
    "polars series": lambda a: pl.Series(a.ravel()),
    "arrow array": lambda a: pa.array(a.ravel()),
}
_PLAIN = [
    name for name in FORMS if name in ("as it is", "columns in order", "read-only", "f4", "every second")
]


@st.composite
def array_recipes(draw):
    """(label, function of a good array): half of them with odd values only, the others with an odd form."""
    seed = draw(st.integers(0, 10**6))
    value = draw(st.sampled_from(sorted(VALUES)))
    form = draw(st.sampled_from(_PLAIN if draw(st.booleans()) else sorted(FORMS)))

    def make(good):
        with np.errstate(all="ignore"):
            return FORMS[form](VALUES[value](np.array(good, dtype=np.float64), seed))

    return Made(f"{value}, {form}, {seed}", make)


# Tables

NAMES = ("x", "y", "z", "w")


def _arrow_column(kind):
    def change(table, place):
        n = table.num_rows
        made = {
            "nulls": lambda: pa.array([None if k == 1 else 0.5 for k in range(n)], pa.float64()),
            "all null": lambda: pa.nulls(n),
            "texts": lambda: pa.array([f"private {DIGITS}"] * n),
            "dictionary": lambda: pa.array([0.5] * n).dictionary_encode(),
            "lists": lambda: pa.array([[CANARY]] * n, pa.list_(pa.float64())),
            "structs": lambda: pa.array([{"a": CANARY}] * n, pa.struct([("a", pa.float64())])),
            "decimals": lambda: pa.array([decimal.Decimal("0.25")] * n, pa.decimal128(10, 2)),
            "half": lambda: pa.array(np.full(n, 0.5, np.float16)),
            "integers": lambda: pa.array([2**62] * n, pa.int64()),
            "unsigned": lambda: pa.array([1] * n, pa.uint8()),
            "booleans": lambda: pa.array([True] * n),
            "dates": lambda: pa.array([datetime.date(2020, 1, 1)] * n),
            "times": lambda: pa.array([0] * n, pa.timestamp("us")),
            "durations": lambda: pa.array([0] * n, pa.duration("s")),
            "binary": lambda: pa.array([b"x"] * n, pa.large_binary()),
            "run-end": lambda: pa.RunEndEncodedArray.from_arrays([max(n, 1)], [0.5]).slice(0, n),
            "NaN": lambda: pa.array([np.nan] * n, pa.float64()),
            "infinite": lambda: pa.array([np.inf] * n, pa.float64()),
            "huge": lambda: pa.array([1e200] * n, pa.float64()),
            "float32": lambda: table.column(place).cast(pa.float32(), safe=False),
            "view": lambda: pa.array([DIGITS] * n, pa.string_view()),
        }[kind]()
        return table.set_column(place, table.schema.names[place], made)

    return change


def _renamed(change):
    return lambda table, place: table.rename_columns(change(list(table.schema.names), place))


def _same_name(names, place):
    names[place] = names[0] if place else names[-1]
    return names


def _name(text):
    def change(names, place):
        names[place] = text
        return names

    return change


COLUMNS = {
    "as they are": lambda table, place: table,
    **{
        kind: _arrow_column(kind)
        for kind in (
            *("nulls", "all null", "texts", "dictionary", "lists", "structs", "decimals", "half", "integers"),
            *("unsigned", "booleans", "dates", "times", "durations", "binary", "run-end", "NaN", "infinite"),
            *("huge", "float32", "view"),
        )
    },
    "a name twice": _renamed(_same_name),
    "no name": _renamed(_name("")),
    "another name": _renamed(_name("other")),
    "a name with a null": _renamed(_name("a\0b")),
    "a name with quotes": _renamed(_name('"x"\n')),
    "one missing": lambda table, place: table.remove_column(place),
    "none left": lambda table, place: table.select([]),
    "text beside": lambda table, place: table.append_column("text", pa.array([DIGITS] * table.num_rows)),
    "number beside": lambda table, place: table.append_column("more", table.column(0)),
    "in reverse": lambda table, place: table.select(table.schema.names[::-1]),
    "no rows": lambda table, place: table.slice(0, 0),
    "one row": lambda table, place: table.slice(0, 1),
    "cut out": lambda table, place: table.slice(1, max(0, table.num_rows - 2)),
    "in chunks": lambda table, place: pa.concat_tables(
        [table.slice(0, 3), table.slice(3, 0), table.slice(3)]
    ),
    "empty chunks": lambda table, place: pa.table(
        [pa.chunked_array([], type=pa.float64()) for _ in table.schema.names], names=table.schema.names
    ),
    "metadata": lambda table, place: table.replace_schema_metadata({b"pandas": b"{", b"x": b"\xff"}),
}


class Stream:
    """Exports an Arrow stream that fails half way, with a private value in its text."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        def batches():
            yield from self.table.slice(0, 2).to_batches()
            raise RuntimeError(f"a record of {DIGITS}")

        reader = pa.RecordBatchReader.from_batches(self.table.schema, batches())
        return reader.__arrow_c_stream__(requested_schema)


def _nullable(table):
    return table.to_pandas().convert_dtypes()


def _pandas(change):
    return lambda table: change(table.to_pandas())


def _pandas_names(names):
    return lambda table: table.to_pandas().set_axis(names(table.num_columns), axis=1)


KINDS = {
    "table": lambda table: table,
    "batch": lambda table: table.combine_chunks().to_batches()[0] if table.num_rows else table,
    "reader": lambda table: table.to_reader(max_chunksize=7),
    "stream": Stream,
    "polars": pl.from_arrow,
    "polars, lazy": lambda table: pl.from_arrow(table).lazy(),
    "pandas": _pandas(lambda frame: frame),
    "pandas, nullable": _nullable,
    "pandas, Arrow": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
    "pandas, objects": _pandas(lambda frame: frame.astype(object)),
    "pandas, categories": _pandas(lambda frame: frame.astype("category")),
    "pandas, sparse": _pandas(lambda frame: frame.astype(pd.SparseDtype("float64", np.nan))),
    "pandas, texts": _pandas(lambda frame: frame.astype(str)),
    "pandas, numbers as names": _pandas_names(range),
    "pandas, levels of names": _pandas_names(
        lambda n: pd.MultiIndex.from_tuples([("a", k) for k in range(n)])
    ),
    "pandas, one index": _pandas(lambda frame: frame.set_axis([0] * len(frame), axis=0)),
    "pandas, columns in order": lambda table: pd.DataFrame(
        np.asfortranarray(table.to_pandas().to_numpy()), columns=table.schema.names
    ),
    "dictionary": lambda table: table.to_pydict(),
    "columns": lambda table: table.columns,
    "series": _pandas(lambda frame: frame.iloc[:, 0]),
}


@st.composite
def table_recipes(draw):
    """(label, function of a good array): a table of it with something wrong, or nothing."""
    column = draw(st.sampled_from(sorted(COLUMNS)))
    kind = draw(st.sampled_from(sorted(KINDS)))
    place = draw(st.integers(0, 3))

    def make(good):
        table = pa.table({NAMES[k]: np.ascontiguousarray(good[:, k]) for k in range(good.shape[1])})
        try:
            return KINDS[kind](COLUMNS[column](table, place % good.shape[1]))
        except KeyboardInterrupt:
            raise
        except BaseException:  # there is no such table; polars panics
            return reject()

    return Made(f"{column}, {kind}, {place}", make)


# Parameters

REFERENCE = "the private reference itself"

ATOMS = [
    *(None, True, False, Ellipsis, NotImplemented),
    *(0, 1, 2, 3, -1, 7, 10**6, 2**31, 2**63, 2**64, -(2**63), 10**30, 10**400, -(10**400), 10**5000),
    *(0.0, -0.0, 0.5, 1.0, 2.0, -1.5, 1e-12, 1e-300, 5e-324, 1e16, 1e100, 1e300, 1.7e308),
    *(float("nan"), float("inf"), float("-inf")),
    *("", " ", "1", "auto", "nan", "raise", "drop", "replace-one", "add-remove", "x" * 5000, "two\nlines"),
    *("\ud800", "\0", "ä", "../..", "moments", "projector", "gdp", "rich", "poor", "other"),
    *(b"1", b"", bytearray(b"1"), 1j, complex("nan")),
    *(Fraction(1, 3), Fraction(10**400, 3), Fraction(1, 10**400), -Fraction(1, 2)),
    *(decimal.Decimal("0.5"), decimal.Decimal("NaN"), decimal.Decimal("sNaN"), decimal.Decimal("1e999")),
    *(np.float64(0.5), np.float32(0.5), np.float16(2.0), np.longdouble("0.5"), np.longdouble("1e4000")),
    *(np.float64("nan"), np.int64(2), np.int8(-1), np.uint64(2**63), np.bool_(True), np.str_("auto")),
    *(np.datetime64("NaT"), np.timedelta64(1, "s"), np.void(b"x"), np.complex128(1)),
    *(
        np.array(0.5),
        np.array([0.5]),
        np.array([]),
        np.array([[1.0, 2.0]]),
        np.array("auto"),
        np.array([1, 2]),
    ),
    *(
        [],
        [1],
        [0.5, 0.5],
        ["x"],
        ["x", "x"],
        [None],
        (),
        (1, 2),
        {},
        {"x": 1},
        {"x": (0, 1), "y": (0, 1)},
        set(),
    ),
    *(object(), object, len, range(3), slice(None), datetime.timedelta(1), pd.NA, pd.NaT, np.ma.masked),
    *(pd.Series([1.0]), pa.scalar(1.0), iter([1.0])),
    REFERENCE,
]


def parameter_values():
    """Hostile values of a parameter: odd ones from a list, and numbers of all sizes."""
    return st.one_of(
        st.integers(0, len(ATOMS) - 1).map(lambda k: Made(f"atom {k}", ATOMS[k])),
        st.floats(allow_subnormal=True).map(lambda x: Made(repr(x), x)),
        st.floats(0.0, 10.0).map(lambda x: Made(repr(x), x)),
        st.integers(-5, 40).map(lambda x: Made(repr(x), x)),
        st.integers(-(10**40), 10**40).map(lambda x: Made(repr(x), x)),
    )


def parameter_changes(names):
    """One or two parameters of those named, and hostile values for them."""
    return st.dictionaries(st.sampled_from(sorted(names)), parameter_values(), min_size=1, max_size=2)


# Files


EDITS = (
    *("flip", "flip", "flips", "cut", "cut end", "insert", "delete", "swap", "double", "zero", "splice"),
    *("random", "empty", "set", "number"),
)
JSON = (
    *(None, True, False, 0, 1, -1, 2, 3, 100, 10**9, 10**30, 10**400, 0.0, -0.0, 0.5, -0.5, 1e-300, 1e308),
    *("", "x", "NaN", "replace-one", "add-remove", "unconditional", "conditional", "not private"),
    *([], {}, [1], [None], ["a", "b"], [["round", 0.1]], [[1.0]], {"x": 1}, {"bandwidth": 1.0}),
)


@st.composite
def byte_edits(draw):
    """(label, function): flips, cuts, insertions, splices, swapped and doubled blocks, other bytes."""
    kind = draw(st.sampled_from(EDITS))
    a, b = draw(st.floats(0, 1)), draw(st.floats(0, 1))
    size = draw(st.integers(1, 64))
    seed = draw(st.integers(0, 2**32 - 1))

    def change(data, other=b""):
        rng = np.random.default_rng(seed)
        data, n = bytearray(data), len(data)
        i, j = int(a * max(0, n - 1)), int(b * max(0, n - 1))
        low, high = min(i, j), max(i, j)
        if kind == "flip" and n:
            data[i] ^= 1 << (seed % 8)
        elif kind == "flips" and n:
            for place in rng.integers(n, size=size):
                data[place] ^= 1 << rng.integers(8)
        elif kind == "cut":
            del data[i:]
        elif kind == "cut end":
            del data[max(0, n - size) :]
        elif kind == "insert":
            data[i:i] = rng.bytes(size)
        elif kind == "delete":
            del data[i : i + size]
        elif kind == "swap":
            data[low : low + size], data[high : high + size] = (
                data[high : high + size],
                data[low : low + size],
            )
        elif kind == "double":
            data[i:i] = data[i : i + size]
        elif kind == "zero":
            data[i : i + size] = bytes(len(data[i : i + size]))
        elif kind == "splice":
            data = data[:i] + bytearray(other[int(b * len(other)) :])
        elif kind == "random":
            data = bytearray(rng.bytes(size * 8))
        elif kind == "empty":
            data = bytearray()
        elif kind == "set" and n:
            data[i] = seed % 256
        elif kind == "number":
            word = rng.choice([0, -1, 2**31 - 1, 2**63 - 1, 1 << 20, -(2**63)]).astype("<i8").tobytes()
            data[i : i + 8] = word[: len(data[i : i + 8])]
        return bytes(data)

    return Made(f"{kind} at {a:.4f}, {b:.4f}, {size}, {seed}", change)


def json_values():
    """What may stand in the place of a value of metadata."""
    return st.one_of(
        st.sampled_from(JSON), st.floats(allow_nan=False, allow_infinity=False), st.integers(-3, 12)
    )
