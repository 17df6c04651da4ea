"""Compare exact Gaussian noise with OpenDP's, and with NumPy's, which is not safe.

python benchmarks/noise.py

OpenDP is not among the dependencies: `pip install opendp`. Its discrete Gaussian on the integers answers the
same need as our rounded one, with the same kind of guarantee: exact, from a cryptographic source.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run as a script

from benchmarks.common import THREADS, best_seconds
from dpmd_fast.privacy.entropy import open_source
from dpmd_fast.privacy.noise import rounded_normals

DEVIATION = 2**28


class Rate(NamedTuple):
    """Samples per second, and their ratio to those of the fastest OpenDP row on as many threads."""

    name: str
    per_second: float
    ratio: float


def noise_rates(count: int = 4_000_000, opendp_count: int = 20_000, repeats: int = 5) -> list[Rate]:
    """Time vectors of noise of one deviation, the best of `repeats`, on one thread and on THREADS."""
    rates = []
    for threads in (1, THREADS):
        peers = _opendp_rates(opendp_count, threads, repeats)
        fastest = max(peers.values())
        ours = partial(rounded_normals, open_source(), count, DEVIATION, threads)
        draws = [partial(np.random.default_rng().standard_normal, count // threads) for _ in range(threads)]
        rows = {
            "dpmd_fast, exact, AES-CTR": _rate(ours, count, repeats),
            **peers,
            "NumPy standard_normal, not safe": _rate(partial(_in_threads, draws), count, repeats),
        }
        label = f"{threads} thread" + ("s" if threads > 1 else "")
        rates += [Rate(f"{name}, {label}", rate, rate / fastest) for name, rate in rows.items()]
    return rates


def _opendp_rates(count: int, threads: int, repeats: int) -> dict[str, float]:
    """Vectors of integers and of floats, in Python threads: the library releases the interpreter lock."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    zeros: dict[str, np.ndarray] = {"integers": np.zeros(count, np.int32), "floats": np.zeros(count)}
    domains = {"integers": dp.atom_domain(T=int), "floats": dp.atom_domain(T=float, nan=False)}
    rates = {}
    for name, values in zeros.items():
        add_noise = dp.m.make_gaussian(
            dp.vector_domain(domains[name]), dp.l2_distance(T=float), scale=float(DEVIATION)
        )
        call = partial(_in_threads, [partial(add_noise, values)] * threads)
        rates[f"OpenDP make_gaussian, {name}"] = _rate(call, threads * count, repeats)
    return rates


def _rate(call: Callable[[], Any], count: int, repeats: int) -> float:
    call()
    return count / best_seconds(call, repeats)


def _in_threads(calls: list[Callable[[], Any]]) -> None:
    if len(calls) == 1:
        calls[0]()
        return
    with ThreadPoolExecutor(len(calls)) as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result()


if __name__ == "__main__":
    for rate in noise_rates():
        print(f"{rate.name:50s} {rate.per_second:14,.0f} per second {rate.ratio:10.2f}")
