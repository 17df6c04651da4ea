"""Layouts of tables are found once for each schema, and never for the wrong one."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from samples import make_atlas

from dpmd_fast.tables.frames import ArrowTransform
from dpmd_fast.tables.layouts import _KEPT, Layouts
from dpmd_fast.tables.protocol import KeepMissing

FIELDS = [("a", pa.float64()), ("b", pa.float64()), ("c", pa.float64())]
SCHEMA = pa.schema(FIELDS)


def same(schema, other):
    return schema.equals(other, check_metadata=True)


def recorded():
    """Layouts, a function that finds the number of a schema's layout, and the schemas that got one."""
    layouts, made = Layouts(same), []

    def find(cleaner, schema):
        def make():
            made.append(schema)
            return len(made) - 1

        return layouts.find(cleaner, schema, make)

    return layouts, find, made


def test_one_layout_for_equal_schemas():
    _, find, made = recorded()
    atlas, other = make_atlas(), make_atlas()
    assert [find(atlas, pa.schema(FIELDS)) for _ in range(3)] == [0, 0, 0]
    assert find(other, SCHEMA) == 1  # of another cleaner
    assert find(atlas, SCHEMA.with_metadata({"k": "v"})) == 2
    assert find(atlas, pa.schema([pa.field("a", pa.float64(), nullable=False), *FIELDS[1:]])) == 3
    assert find(atlas, SCHEMA) == 0
    assert len(made) == 4


def test_layouts_depend_on_what_becomes_of_missing_values():
    _, find, made = recorded()
    atlas = make_atlas()
    assert [find(cleaner, SCHEMA) for cleaner in (atlas, KeepMissing(atlas), KeepMissing(atlas))] == [0, 1, 1]
    assert len(made) == 2


def test_the_last_layouts_are_kept_as_long_as_their_cleaner():
    layouts, find, made = recorded()
    atlas = make_atlas()
    schemas = [SCHEMA.with_metadata({"number": str(number)}) for number in range(_KEPT + 1)]
    for schema in schemas:
        find(atlas, schema)
    assert [find(atlas, schema) for schema in schemas[1:]] == list(range(1, _KEPT + 1))
    assert find(atlas, schemas[0]) == _KEPT + 1  # the oldest was dropped
    gone = weakref.ref(atlas)
    del atlas
    gc.collect()
    assert gone() is None
    assert len(layouts._known) == 0
    assert len(made) == _KEPT + 2


def test_a_refused_schema_is_refused_again():
    layouts, atlas = Layouts(same), make_atlas()

    def refuse():
        raise ValueError("refused")

    for _ in range(2):
        with pytest.raises(ValueError, match="refused"):
            layouts.find(atlas, SCHEMA, refuse)


def test_null_columns_are_refused_after_they_were_kept():
    atlas = make_atlas()
    table = pa.table({"a": [0.5], "b": pa.nulls(1), "c": [0.5]})
    for _ in range(2):
        kept, status = atlas.transform(table, on_missing="keep", return_status=True)
        assert kept.schema.types == [pa.float64()] * 3
        assert kept.to_pydict() == {"a": [0.5], "b": [None], "c": [0.5]}
        assert list(status) == ["missing"]
        with pytest.raises(ValueError, match=r"^Z has 1 column\(s\) that are not numeric: 'b' \(null\)$"):
            atlas.transform(table)


def test_threads_with_tables_of_many_schemas():
    atlas = make_atlas()
    points = np.random.default_rng(0).uniform(-2.0, 2.0, size=(20, 3))
    moved = atlas.transform(points)

    def check(number):
        names = [f"other {place}" for place in range(number % (2 * _KEPT))] + list("cab")
        columns = [*[["x"] * len(points)] * (len(names) - 3), *(points[:, place] for place in (2, 0, 1))]
        out = atlas.transform(pa.table(columns, names=names), n_threads=1)
        assert out.column_names == names
        np.testing.assert_array_equal(np.stack([out[name].to_numpy() for name in "abc"], 1), moved)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check, range(200)))


def test_an_equal_schema_gives_an_equal_result():
    atlas = make_atlas()
    first, second = (ArrowTransform(atlas, pa.schema(FIELDS, metadata={"k": k}), "Z") for k in ("v", "w"))
    assert first.schema.metadata == {b"k": b"v"}
    assert second.schema.metadata == {b"k": b"w"}


class Unit(pa.ExtensionType):
    """A type with a parameter, which Arrow's comparison of types does not see."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(pa.int64(), "dpmd_fast.tests.unit")

    def __arrow_ext_serialize__(self) -> bytes:
        return self.name.encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, raw: bytes) -> "Unit":
        return cls(raw.decode())


def in_struct(values):
    return pa.StructArray.from_arrays([values], ["dose"])


def in_list(values):
    return pa.ListArray.from_arrays([0, 1], in_struct(values))


@pytest.mark.parametrize("wrap", [lambda values: values, in_struct, in_list])
def test_types_of_extensions_keep_their_parameters(wrap):
    assert Unit("mg") == Unit("kg")
    atlas = make_atlas()
    for unit in ("mg", "kg"):
        further = wrap(pa.ExtensionArray.from_storage(Unit(unit), pa.array([1])))
        out = atlas.transform(pa.table({"a": [0.1], "b": [0.2], "c": [0.3], "further": further}))
        kind = out.schema.field("further").type
        while not isinstance(kind, Unit):
            kind = kind.field(0).type
        assert kind.name == unit


def test_metadata_within_dictionaries_are_of_their_own_table():
    atlas = make_atlas()
    for value in ("1", "2"):
        inner = pa.struct([pa.field("y", pa.int64(), metadata={"k": value})])
        codes = pa.array([0], pa.int8())
        further = pa.DictionaryArray.from_arrays(codes, pa.array([{"y": 7}], inner))
        out = atlas.transform(pa.table({"a": [0.1], "b": [0.2], "c": [0.3], "further": further}))
        assert out.schema.field("further").type.value_type.field("y").metadata == {b"k": value.encode()}
