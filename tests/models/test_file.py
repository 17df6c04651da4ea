"""The format that the files of all models share: one kind is never taken for another, and nothing unpacks."""

import hashlib
import os
import re
import struct
import subprocess
import sys
import textwrap
import time
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from samples import make_atlas, make_mixture

import dpmd_fast
from dpmd_fast import Atlas, Mixture, load_model
from dpmd_fast.errors import UserValueError
from dpmd_fast.models import atlas_file, file, mixture_file
from dpmd_fast.models.file import HEAD, HEAD_PATTERN, KINDS, read_sealed, sealed

MODELS = {"atlas": make_atlas(), "mixture": make_mixture()}
PARTS = {
    "atlas": (atlas_file._metadata(MODELS["atlas"]), atlas_file._arrays(MODELS["atlas"])),
    "mixture": (mixture_file._metadata(MODELS["mixture"]), mixture_file._arrays(MODELS["mixture"])),
}
CLASSES = {"atlas": Atlas, "mixture": Mixture}
OTHER = {"atlas": "mixture", "mixture": "atlas"}


@pytest.fixture(params=MODELS)
def kind(request):
    return request.param


@pytest.fixture
def path(kind, tmp_path):
    MODELS[kind].save(tmp_path / "model.dpmd")
    return tmp_path / "model.dpmd"


def refusal(path, load=load_model):
    """The text of the refusal: a ValueError of one line that begins with the path."""
    with pytest.raises(ValueError, match="^" + re.escape(str(path))) as refused:
        load(path)
    assert type(refused.value) is UserValueError
    assert "\n" not in str(refused.value)
    return str(refused.value).removeprefix(str(path))


def refusal_of(tmp_path, data, load=load_model):
    path = tmp_path / "tested"
    path.write_bytes(data)
    return refusal(path, load)


def resealed(data):
    """The same with a size and a checksum that fit."""
    head = HEAD_PATTERN.search(data)
    kind, version = head.group(1).decode(), int(head.group(2))
    blank = HEAD.format(kind, version, len(data), 64 * "0").encode()
    data = data.replace(head.group(), blank)
    digest = hashlib.sha256(data).hexdigest()
    return data.replace(blank, HEAD.format(kind, version, len(data), digest).encode())


def rewritten(path, options=None, metadata=None):
    """The file written anew by Arrow, with other options or another text, and sealed."""
    table = pa.ipc.open_file(path).read_all()
    if metadata is not None:
        table = table.replace_schema_metadata({b"dpmd-fast": metadata(table.schema.metadata[b"dpmd-fast"])})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return resealed(sink.getvalue().to_pybytes())


def test_load_model_reads_every_kind(kind, path):
    loaded = load_model(path)
    assert type(loaded) is CLASSES[kind]
    again = path.with_name("again")
    loaded.save(again)
    assert again.read_bytes() == path.read_bytes()
    assert HEAD_PATTERN.search(path.read_bytes()).group(1).decode() == kind
    assert dpmd_fast.load_model is load_model
    assert "load_model" in dpmd_fast.__all__
    assert type(load_model(os.fsencode(path))) is CLASSES[kind]


def test_a_model_of_the_other_kind_is_named(kind, path):
    told = refusal(path, CLASSES[OTHER[kind]].load)
    is_a, not_a = KINDS[kind].called, KINDS[OTHER[kind]].called
    assert told == f" is {is_a}, not {not_a}: read it with {CLASSES[kind].__name__}.load or load_model"


def test_what_is_no_model(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"none does not exist: must be the file of an atlas or a mix"
    ):
        load_model(tmp_path / "none")
    assert refusal(tmp_path) == " is not an atlas or a mixture: it is not a regular file"
    assert refusal_of(tmp_path, b"PAR1") == " is not an atlas or a mixture"
    assert refusal_of(tmp_path, b"ARR") == " is truncated; get a fresh copy of the file"
    assert refusal_of(tmp_path, b"PAR1", Mixture.load) == " is not a mixture"


def test_a_kind_of_the_future(tmp_path, path, kind):
    data = resealed(path.read_bytes().replace(f"dpmd-fast {kind}".encode(), b"dpmd-fast tree"))
    for load in (load_model, Atlas.load, Mixture.load):
        told = refusal_of(tmp_path, data, load)
        assert told == (
            " was written by a newer version of dpmd-fast: this version reads no tree; update dpmd-fast"
        )


def test_a_version_of_the_future(tmp_path, path, kind):
    newest = KINDS[kind].version
    data = re.sub(rb'"version":\d', b'"version":%d' % (newest + 1), path.read_bytes())
    assert refusal_of(tmp_path, resealed(data)) == (
        f" was written by a newer version of dpmd-fast: its format is {newest + 1}, this version reads "
        f"{newest}; update dpmd-fast"
    )


def test_a_kind_cannot_be_exchanged(tmp_path, kind):
    metadata, arrays = PARTS[kind]
    told = refusal_of(tmp_path, sealed(OTHER[kind], 1, metadata, arrays))
    assert re.match(f" is not a valid {OTHER[kind]}: its metadata (lacks|has the unexpected)", told)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_arrays_are_refused(tmp_path, path, kind, codec):
    data = rewritten(path, pa.ipc.IpcWriteOptions(compression=codec))
    assert refusal_of(tmp_path, data) == f" is not a valid {kind}: its arrays are compressed"


@pytest.mark.parametrize("noted", [10**7, 1])  # an honest list of shapes, and one that hides the size
def test_a_small_file_does_not_become_a_large_one(tmp_path, noted):
    """A compressed body is refused before it is unpacked."""
    table = pa.table(
        [
            pa.array(["weights"]),
            pa.array([[10**7]], pa.list_(pa.int64())),
            pa.LargeListArray.from_arrays(pa.array([0, 10**7]), pa.array(np.zeros(10**7))),
        ],
        schema=file._schema(),
    )
    text = HEAD.format("mixture", 1, 0, 64 * "0") + f'"shapes":{{"weights":[{noted}]}}}}'
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, table.schema.with_metadata({"dpmd-fast": text}), options=options) as writer:
        writer.write_table(table)
    (tmp_path / "tested").write_bytes(resealed(sink.getvalue().to_pybytes()))
    assert os.path.getsize(tmp_path / "tested") < 10**5
    usual = pa.default_memory_pool()
    watched = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(watched)
    try:
        told = refusal(tmp_path / "tested")
    finally:
        pa.set_memory_pool(usual)
    lacks = "it lacks bytes: arrays of its shapes need 80000000, and it has "
    assert (lacks if noted > 1 else "its arrays are compressed") in told
    assert watched.max_memory() < 10**5


def made_of(path, text=None, rows=1, shape=()):
    """A file of Arrow that no model wrote: `rows` empty arrays, and a text of its own."""
    names = pa.array([""] * rows)
    shapes = pa.array([shape] * rows, pa.list_(pa.int64()))
    values = pa.LargeListArray.from_arrays(pa.array(np.zeros(rows + 1, np.int64)), pa.array(np.zeros(0)))
    text = HEAD.format("mixture", 1, 0, 64 * "0") + (text or '"shapes":{}}')
    schema = file._schema().with_metadata({"dpmd-fast": text})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(pa.table([names, shapes, values], schema=schema))
    path.write_bytes(resealed(sink.getvalue().to_pybytes()))


def memory_of(load, path):
    """The refusal, and the bytes that Python objects took at most, the file apart."""
    tracemalloc.start()
    try:
        told = refusal(path, load)
        return told, tracemalloc.get_traced_memory()[1] - os.path.getsize(path)
    finally:
        tracemalloc.stop()


def test_a_text_that_would_become_many_objects_is_not_parsed(tmp_path):
    made_of(tmp_path / "tested", '"shapes":{},"x":[' + ",".join(["[]"] * 6_000_000) + "]}")
    told, taken = memory_of(load_model, tmp_path / "tested")
    assert re.search(r"its metadata has \d+ bytes: must have at most 16777216$", told)
    assert taken < 10**8  # parsed, it is 5 10^8


def test_more_arrays_than_any_model_has_do_not_become_objects(tmp_path):
    made_of(tmp_path / "tested", rows=300_000)
    told, taken = memory_of(load_model, tmp_path / "tested")
    assert told.endswith("it has too many arrays: must have at most 10000")
    assert taken < 2 * 10**6


def test_the_checksum_takes_no_copy_of_the_file(tmp_path, path):
    data = path.read_bytes()
    os.truncate(path, 1 << 26)  # a hole, whose checksum is wrong
    size = f'"bytes":{len(data):>19}'.encode()
    path.write_bytes(path.read_bytes().replace(size, f'"bytes":{1 << 26:>19}'.encode()))
    told, taken = memory_of(load_model, path)
    assert "its checksum does not match" in told
    assert taken < 10**6


def test_a_file_larger_than_any_model_is_not_read(path):
    data = path.read_bytes()
    size = f'"bytes":{len(data):>19}'.encode()
    path.write_bytes(data.replace(size, f'"bytes":{(1 << 34) + 1:>19}'.encode()))
    os.truncate(path, (1 << 34) + 1)  # a hole
    told, taken = memory_of(load_model, path)
    assert told == " has 17179869185 bytes: a model must have at most 17179869184"
    assert taken < 10**6


def test_the_footer_is_not_followed(tmp_path, path, kind):
    """Blocks of the footer that point elsewhere change nothing: messages are read one after another."""
    data = path.read_bytes()
    footer = struct.unpack("<i", data[-10:-6])[0]
    start = len(data) - 10 - footer
    head = HEAD_PATTERN.search(data, start)
    changed = bytearray(data)
    for place in range(start, len(data) - 10):
        if not head.start() - 200 < place < head.end():
            changed[place] = 0xFF
    path.write_bytes(resealed(bytes(changed)))
    assert type(load_model(path)) is CLASSES[kind]


def test_a_larger_file_is_not_read_to_its_end(path):
    with open(path, "r+b") as opened:
        opened.truncate(1 << 36)  # with a hole that does not fit into memory
    assert "was edited or damaged: its checksum does not match" in refusal(path)


def test_a_head_that_is_not_at_the_beginning_of_the_metadata(tmp_path, path, kind):
    data = rewritten(path, metadata=lambda text: b'{"format":"another","inner":' + text + b"}")
    assert refusal_of(tmp_path, data) == f" is not a valid {kind}: its metadata does not begin as that of one"


HOSTILE = {
    "no shapes": lambda text: text.replace(b'"shapes"', b'"shapez"'),
    "shapes as a number": lambda text: re.sub(rb'"shapes":\{[^}]*\}', b'"shapes":7', text),
    "shapes as texts": lambda text: re.sub(rb'"shapes":\{[^}]*\}', b'"shapes":{"a":"bc"}', text),
    "huge shapes": lambda text: re.sub(rb'"shapes":\{[^}]*\}', b'"shapes":{"a":[1' + 30 * b"0" + b"]}", text),
    "negative shapes": lambda text: re.sub(rb'"shapes":\{[^}]*\}', b'"shapes":{"a":[-5]}', text),
    "nested": lambda text: text[:-1] + b',"x":' + 50_000 * b"[" + 50_000 * b"]" + b"}",
    "long number": lambda text: text[:-1] + b',"x":' + 20_000 * b"9" + b"}",
    "not UTF-8": lambda text: text[:-1] + b',"\xff":1}',
    "NaN": lambda text: text[:-1] + b',"x":NaN}',
    "infinity": lambda text: text[:-1] + b',"x":-Infinity}',
    "a list": lambda text: b"[" + text + b"]",
    "cut": lambda text: text[:-1],
    "twice": lambda text: text + text,
}


@pytest.mark.parametrize(
    "shape", ["[]", "[0]", "[true]", "[1.0]", "[[2]]", "[1,1,1,1,1]", "[2199023255552]", '{"2":3}', "[null]"]
)
def test_what_is_no_shape(tmp_path, shape):
    made_of(tmp_path / "tested", f'"shapes":{{"a":{shape}}}}}')
    assert "shapes must be lists of 1 to 4 positive integers" in refusal(tmp_path / "tested")


def test_a_shape_without_end_is_not_multiplied(tmp_path):
    """Hung before: the product of a million numbers has millions of digits."""
    made_of(tmp_path / "tested", '"shapes":{"a":[' + ",".join(["999999999"] * 1_000_000) + "]}}")
    start = time.monotonic()
    assert "shapes must be lists" in refusal(tmp_path / "tested")
    made_of(tmp_path / "tested", shape=[999_999_999] * 3_000_000)
    told, taken = memory_of(load_model, tmp_path / "tested")
    assert told.endswith("its arrays must have 1 to 4 axes")
    assert taken < 10**7  # as a list it is 10^8
    assert time.monotonic() - start < 30.0  # a product takes many minutes


@pytest.mark.parametrize("how", HOSTILE)
def test_hostile_metadata(tmp_path, path, kind, how):
    told = refusal_of(tmp_path, rewritten(path, metadata=HOSTILE[how]))
    assert told.startswith(f" is not a valid {kind}: ")


def test_several_batches_are_one_table(tmp_path, path, kind):
    table = pa.ipc.open_file(path).read_all()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1)
    path.write_bytes(resealed(sink.getvalue().to_pybytes()))
    assert type(load_model(path)) is CLASSES[kind]


def test_truncated_and_damaged_files(tmp_path, path):
    data = path.read_bytes()
    for cut in {*np.linspace(0, len(data) - 1, 30).astype(int), *range(10)}:
        assert refusal_of(tmp_path, data[:cut]).startswith(" is truncated")
    rng = np.random.default_rng(0)
    head = data.index(b'{"format"')
    for place in rng.integers(len(data), size=100):
        changed = bytearray(data)
        changed[place] ^= 1 << rng.integers(8)
        told = refusal_of(tmp_path, changed)
        if not (place < 8 or head <= place < head + 160):
            assert "was edited or damaged: its checksum does not match" in told


def test_a_maker_that_fails_is_no_other_error(path, kind):
    def fail(metadata, arrays):
        raise KeyError("x")

    told = refusal(path, lambda path: read_sealed(path, {kind: fail}))
    assert told == f" is not a valid {kind}: its metadata is malformed"


def test_only_the_model_of_the_file_is_imported(tmp_path):
    MODELS["atlas"].save(tmp_path / "model.dpmd")
    code = """
        import sys
        from dpmd_fast import load_model
        load_model(sys.argv[1])
        found = {name for name in sys.modules if name.startswith(("dpmd_fast.models.mix", "dpmd_fast.mech"))}
        assert not found, found
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), tmp_path / "model.dpmd"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
