"""The random words: reproducible when seeded, never shared when not."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from dpmd_fast.privacy import entropy
from dpmd_fast.privacy.entropy import EntropySource, open_source

SEED_0 = ["0xebb87f40f501d7de", "0xb95ad99347f08e9b"]


def chi_square_p(values: np.ndarray, cells: int) -> float:
    return float(stats.chisquare(np.bincount(values, minlength=cells)).pvalue)


def test_words_are_the_cipher_stream():
    key = bytes(range(32))
    ref = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * 1000))
    comp = EntropySource(key).words(1000)
    assert comp.dtype == np.uint64
    assert comp.tobytes() == ref


@pytest.mark.fixed_seed
def test_seeded_stream_is_fixed_for_ever():
    # Recorded once: stored results and tests of other modules rest on it.
    assert [hex(w) for w in open_source(0).words(2).tolist()] == SEED_0
    assert not open_source(0).private


def test_division_into_calls_does_not_matter():
    ref = open_source(5).words(400_000)
    source = open_source(5)
    # Odd counts, nothing at all, and more than one chunk of the zero input.
    comp = np.concatenate([source.words(count) for count in (1, 0, 3, 131_072, 131_073, 137_851)])
    np.testing.assert_array_equal(comp, ref)


def test_streams_differ():
    streams = [open_source(0), open_source(1), open_source(10), open_source(), open_source()]
    firsts = {source.words(4).tobytes() for source in streams}
    assert len(firsts) == 5
    assert open_source().private


def test_results_are_independent_arrays():
    source = open_source(2)
    first = source.words(10)
    kept = first.copy()
    second = source.words(10)
    assert not np.shares_memory(first, second)
    np.testing.assert_array_equal(first, kept)
    assert first.shape == (10,)
    assert first.flags.c_contiguous
    assert first.flags.writeable


def test_words_are_balanced():
    words = open_source(2024).words(200_000)
    ones = np.unpackbits(words.view(np.uint8)).reshape(-1, 64).sum(axis=0, dtype=np.int64)
    z = (ones - 100_000) / np.sqrt(50_000)
    assert np.abs(z).max() < 4.5
    assert 20 < (z**2).sum() < 125  # chi-square with 64 degrees: neither too rough nor too even
    octets = words.view(np.uint8).astype(np.int64)
    assert 1e-4 < chi_square_p(octets, 256) < 1 - 1e-4
    pairs = (octets[:-1] >> 4) * 16 + (octets[1:] >> 4)
    assert chi_square_p(pairs[::2], 256) > 1e-4
    # The test has power: a stream that is off by one part in a hundred does not pass.
    octets[::100] = 7
    assert chi_square_p(octets, 256) < 1e-12


def test_threads_take_whole_pieces_of_one_stream(monkeypatch):
    # Many cipher calls per draw, so that threads could meet.
    monkeypatch.setattr(entropy, "_CHUNK", 64)
    monkeypatch.setattr(entropy, "_ZEROS", memoryview(bytes(64)))
    ref = open_source(9).words(8 * 20 * 800)
    source = open_source(9)
    parts: list[np.ndarray] = []

    def draw() -> None:
        for _ in range(20):
            parts.append(source.words(800))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=draw) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert {part.tobytes() for part in parts} == {piece.tobytes() for piece in ref.reshape(-1, 800)}


FORK = """
import os, sys
import dpmd_fast.privacy.entropy as entropy

if sys.argv[1] == "no hook":  # as if C code had forked: only the process id tells
    entropy._sources.clear()
private, seeded = entropy.open_source(), entropy.open_source(3)
if sys.argv[1] == "no hook":
    entropy._sources.clear()
private.words(5), seeded.words(5)
if sys.argv[1] == "locked":
    private._lock.acquire()
for child in range(2):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, f"{private.words(3).tolist()};{seeded.words(3).tolist()}".encode())
        os._exit(0)
    os.waitpid(pid, 0)
    print(os.read(read, 10_000).decode())
if sys.argv[1] == "locked":
    private._lock.release()
print(f"{private.words(3).tolist()};{seeded.words(3).tolist()}")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.parametrize("how", ["hook", "no hook", "locked"])
def test_forked_children_draw_their_own_words(how):
    done = subprocess.run(
        [sys.executable, "-c", FORK, how], capture_output=True, text=True, timeout=20, check=True
    )
    lines = [line.split(";") for line in done.stdout.splitlines()]
    assert len(lines) == 3
    assert len({private for private, _ in lines}) == 3
    assert len({seeded for _, seeded in lines}) == 1


@pytest.mark.parametrize("source", [open_source(), open_source(1)], ids=["private", "seeded"])
def test_copies_are_refused(source):
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="same noise"):
            attempt(source)


@pytest.mark.parametrize("bad", [True, False, np.True_, 1.0, -1, "1", b"1", (1,), np.array([1, 2])], ids=repr)
def test_bad_seeds_and_counts_are_refused(bad):
    with pytest.raises(ValueError, match=r"^seed = .*integer >= 0"):
        open_source(bad)
    with pytest.raises(ValueError, match=r"^count = .*integer >= 0"):
        open_source(1).words(bad)


def test_key_length_is_checked():
    with pytest.raises(ValueError, match=r"^key has 16 bytes"):
        EntropySource(bytes(16))


def test_any_integer_is_a_seed():
    assert open_source(np.int64(7)).words(1) == open_source(7).words(1)
    assert open_source(2**200).words(1) != open_source(2**200 + 1).words(1)
