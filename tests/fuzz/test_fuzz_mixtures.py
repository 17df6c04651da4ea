"""Files of mixtures, and of models that a stranger has signed: refused, or as good as new.

A stranger can write anything into a file, with a checksum that fits and a signature by a key of their own. It
is then read like any other, if nobody asks for a trusted key, and must be checked as thoroughly.
"""

import functools
import json
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from dpmd_fast import Mixture, load_model
from dpmd_fast.models import atlas_file, mixture_file
from dpmd_fast.models.file import sealed
from dpmd_fast.models.signature import KEY, Signature, _message
from dpmd_fast.privacy.keys import create_keys
from fuzz import corpus
from fuzz.harness import folder, fuzzed, judged
from fuzz.strategies import byte_edits, json_values
from fuzz.targets import atlas, mixture, queries

MIXTURES = ("plain", "named", "preprocessed")
MODELS = {
    **{("mixture", kind): functools.partial(mixture, kind) for kind in MIXTURES},
    **{("atlas", kind): functools.partial(atlas, kind) for kind in ("plain", "named", "preprocessed")},
}
FILES = {"atlas": atlas_file, "mixture": mixture_file}
PLURAL = {"atlas": "atlases", "mixture": "mixtures"}
HOW = st.sampled_from(["put", "put", "put", "drop", "add", "double"])


@functools.cache
def good(kind):
    path = folder() / f"good {kind} mixture.dpmd"
    mixture(kind).save(path)
    return path.read_bytes()


@functools.cache
def stranger():
    return create_keys(folder() / "stranger.key")


def load(data, family, what, same=None):
    """Load bytes, and use what they hold."""
    path = folder() / "tested mixture.dpmd"
    path.write_bytes(data)

    def call():
        loaded = load_model(path)
        Z = np.abs(queries(loaded.n_columns)) + 0.1
        if not isinstance(loaded, Mixture):
            return loaded, loaded.transform(Z, 1)
        Z[0, 0] = np.nan
        return loaded, loaded.transform(Z, 0.5, 1)

    def check(result):
        loaded, moved = result
        assert np.isfinite(moved).all(), "moves points to infinity"
        # a signature of 3 is none of 3.0, which is what is written
        replace(loaded, signature=None).save(folder() / "again.dpmd")
        assert load_model(folder() / "again.dpmd").guarantee == loaded.guarantee, "guarantee"
        if same is not None:
            for name, array in mixture_file._arrays(loaded).items():
                np.testing.assert_array_equal(array, mixture_file._arrays(same)[name])

    return judged(family, what, call, named={path.name}, check=check, private=False)


@fuzzed(0.04, kind=st.sampled_from(MIXTURES), edit=byte_edits())
def test_damaged_mixtures(kind, edit):
    """Any change of the bytes is noticed."""
    data = edit.value(good(kind), good("plain"))
    same = mixture("plain" if data == good("plain") else kind)
    outcome = load(data, "mixtures, damaged", f"{kind}: {edit.label}", same)
    assert data in (good(kind), good("plain")) or isinstance(outcome, ValueError)


@fuzzed(0.04, kind=st.sampled_from(MIXTURES), edit=byte_edits())
def test_damaged_mixtures_with_a_right_checksum(kind, edit):
    load(
        corpus.resealed(edit.value(good(kind))), "mixtures, damaged and sealed anew", f"{kind}: {edit.label}"
    )


def written(kind, metadata, arrays, signed):
    """The bytes of a file, signed by the stranger if asked for; None for what JSON cannot hold."""
    signed = signed and all(array.size for array in arrays.values())  # others are refused before that
    try:
        if signed:
            name = stranger().name
            value = stranger().sign(_message(kind, metadata, arrays, name, None))
            metadata = {**metadata, KEY: Signature(name, None, value, "").to_dict()}
        return sealed(kind, 3 if kind == "atlas" else 2, metadata, arrays)
    except (ValueError, RecursionError):
        return None


@fuzzed(0.08, which=st.sampled_from(sorted(MODELS)), place=st.integers(0, 10**6), value=json_values(),
        how=HOW, signed=st.booleans())  # fmt: skip
def test_edited_metadata_sealed_and_signed_by_a_stranger(which, place, value, how, signed):
    kind, _ = which
    model = MODELS[which]()
    metadata = json.loads(json.dumps(FILES[kind]._metadata(model)))
    path = corpus.edited(metadata, place, value, how)
    data = written(kind, metadata, FILES[kind]._arrays(model), signed)
    if data is not None:
        family = f"{PLURAL[kind]}, edited metadata, {'signed by a stranger' if signed else 'sealed anew'}"
        load(data, family, f"{which}: {how} {path} = {value!r}")


@fuzzed(0.04, which=st.sampled_from(sorted(MODELS)), place=st.integers(0, 10**6), noted=st.booleans(),
        how=st.sampled_from(sorted(corpus.ARRAY_EDITS)), signed=st.booleans())  # fmt: skip
def test_edited_arrays_sealed_and_signed_by_a_stranger(which, place, how, noted, signed):
    kind, _ = which
    model = MODELS[which]()
    metadata, arrays = FILES[kind]._metadata(model), dict(FILES[kind]._arrays(model))
    name = sorted(arrays)[place % len(arrays)]
    arrays[name] = np.ascontiguousarray(corpus.ARRAY_EDITS[how](arrays[name]), dtype=np.float64)
    if noted:
        metadata["shapes"][name] = list(arrays[name].shape)
    data = written(kind, metadata, arrays, signed)
    if data is not None:
        family = f"{PLURAL[kind]}, edited arrays, {'signed by a stranger' if signed else 'sealed anew'}"
        load(data, family, f"{which}: {name} {how}")
