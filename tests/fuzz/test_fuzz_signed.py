"""Signed models, keys and mixtures: what was edited is refused, however it is sealed again."""

import functools
import json

import numpy as np
from hypothesis import strategies as st

from dpmd_fast import load_model
from dpmd_fast.models import atlas_file, mixture_file
from dpmd_fast.models.file import HEAD_KEYS, _opened, sealed
from dpmd_fast.privacy.keys import create_keys, public_key_of, signing_key
from fuzz import corpus
from fuzz.harness import folder, fuzzed, judged
from fuzz.strategies import byte_edits, json_values
from fuzz.targets import atlas, mixture

MODELS = {"atlas": atlas, "mixture": mixture}
FILES = {"atlas": atlas_file, "mixture": mixture_file}
kinds = st.sampled_from(sorted(MODELS))


@functools.cache
def key():
    return create_keys(folder() / "fuzz.key")


@functools.cache
def signed_file(kind):
    path = folder() / f"signed {kind}.dpmd"
    MODELS[kind]("named").save(path, key())
    return path.read_bytes()


@functools.cache
def parts(kind):
    metadata, arrays = _opened(kind, signed_file(kind))
    version = metadata["version"]
    return version, {name: value for name, value in metadata.items() if name not in HEAD_KEYS}, arrays


def load(data, family, what, trusted):
    path = folder() / "tested.dpmd"
    path.write_bytes(data)
    return judged(family, what, lambda: load_model(path, trusted=trusted), named={path.name}, private=False)


@fuzzed(0.05, kind=kinds, place=st.integers(0, 10**6), value=json_values(),
        how=st.sampled_from(["put", "put", "put", "drop", "add", "double"]))  # fmt: skip
def test_edited_metadata_of_signed_models(kind, place, value, how):
    version, good, arrays = parts(kind)
    metadata = json.loads(json.dumps(good))
    path = corpus.edited(metadata, place, value, how)
    try:
        data = sealed(kind, version, metadata, arrays)
    except (ValueError, RecursionError):  # JSON cannot hold it
        return
    same = json.loads(json.dumps(metadata)) == good
    outcome = load(data, "signed models, edited metadata", f"{kind}: {how} {path} = {value!r}", key().name)
    assert same or isinstance(outcome, ValueError)


@fuzzed(0.02, kind=kinds, place=st.integers(0, 10**6), how=st.sampled_from(sorted(corpus.ARRAY_EDITS)))
def test_edited_arrays_of_signed_models(kind, place, how):
    version, good, found = parts(kind)
    metadata, arrays = json.loads(json.dumps(good)), dict(found)
    name = sorted(arrays)[place % len(arrays)]
    arrays[name] = np.ascontiguousarray(corpus.ARRAY_EDITS[how](arrays[name]), dtype=np.float64)
    metadata["shapes"][name] = list(arrays[name].shape)
    same = arrays[name].shape == found[name].shape and arrays[name].tobytes() == found[name].tobytes()
    outcome = load(
        sealed(kind, version, metadata, arrays), "signed models, edited arrays", f"{kind} {how}", None
    )
    assert same or isinstance(outcome, ValueError)


@fuzzed(0.04, kind=kinds, edit=byte_edits(), again=st.booleans())
def test_damaged_signed_models(kind, edit, again):
    good = signed_file(kind)
    data = edit.value(good, signed_file("atlas"))
    if again:
        data = corpus.resealed(data)
    outcome = load(data, "signed models, damaged", f"{kind}: {edit.label}", key().name)
    if not isinstance(outcome, Exception):  # bytes that say nothing, such as padding
        model = MODELS[outcome_kind(outcome)]("named")
        assert outcome.guarantee == model.guarantee
        assert outcome.spends == model.spends


def outcome_kind(model):
    return type(model).__name__.lower()


@fuzzed(0.02, private=st.booleans(), edit=byte_edits())
def test_damaged_keys(private, edit):
    key()
    source = folder() / ("fuzz.key" if private else "fuzz.key.pub")
    path = folder() / "tested.key"
    path.touch(0o600)  # of others' keys there is a warning
    path.write_bytes(edit.value(source.read_bytes(), (folder() / "fuzz.key.pub").read_bytes()))
    judged(
        "keys, damaged",
        f"{'private' if private else 'public'}: {edit.label}",
        lambda: (signing_key if private else public_key_of)(path),
        named={path.name},
        private=False,
    )
