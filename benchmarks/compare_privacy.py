"""Compare noise, accounting and private covariances with OpenDP, diffprivlib and dp-accounting.

Each of the peers is left out where it is not installed; the table then says so.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import THREADS, best_seconds, clock
from benchmarks.markdown import seconds, table
from benchmarks.noise import noise_rates
from dpmd_fast import Budget, release_moments
from dpmd_fast.privacy.accounting import gdp_epsilon, gdp_mu, zcdp_epsilon
from dpmd_fast.privacy.entropy import open_source
from dpmd_fast.privacy.noise import rounded_normals, standard_normals

DELTA = 1e-6


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def diffprivlib() -> Any:
    """The package; 0.6.6 asks scikit-learn for two names that releases from 1.7 on no longer have.

    They are the types of its trees and have nothing to do with what is measured here.
    """
    import sklearn.tree._tree as trees

    for name, kind in (("DTYPE", np.float32), ("DOUBLE", np.float64)):
        if not hasattr(trees, name):
            setattr(trees, name, kind)
    import diffprivlib as found
    import diffprivlib.mechanisms
    import diffprivlib.models

    return found


# Noise


def show_noise(count: int, repeats: int) -> Iterator[str]:
    source = open_source()
    generators = [np.random.default_rng() for _ in range(THREADS)]

    def in_threads() -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda g: g.standard_normal(count // THREADS), generators))

    sides = {
        f"dpmd_fast, AES-CTR, {THREADS} threads": lambda: standard_normals(source, count, THREADS),
        "dpmd_fast, AES-CTR, 1 thread": lambda: standard_normals(source, count, 1),
        "NumPy default_rng, 1 thread": lambda: generators[0].standard_normal(count),
        f"NumPy default_rng, {THREADS} Python threads": in_threads,
    }
    rows = []
    for name, call in sides.items():
        call()
        rows.append([name, f"{count / best_seconds(call, repeats) / 1e6:.0f}"])
    yield (
        f"## Normal variates, {count:,} at a time\n\n"
        "Not the same thing: ours come from a cryptographic stream, NumPy's from a generator whose state can "
        "be computed from its output.\n\n" + table(["source", "millions per second"], rows)
    )
    rows = []
    missing = [name for name in ("opendp", "diffprivlib") if not installed(name)]
    if installed("opendp"):
        rows += [
            [rate.name, f"{rate.per_second / 1e6:.3g}", f"{rate.ratio:.3g} x", _sameness(rate.name)]
            for rate in noise_rates(count, count // 200, repeats)
        ]
    if installed("diffprivlib"):
        rows += list(_diffprivlib_rates(count, max(200, count // 1000), repeats))
    yield (
        f"## Exact normal noise on the integers, {count:,} at a time\n\n"
        + table(["source", "millions per second", "beside the peer", "the same thing?"], rows)
        + "".join(f"\n\n{name} is not installed." for name in missing)
    )


def _sameness(name: str) -> str:
    if name.startswith("OpenDP"):
        return "the same need, another law: the discrete Gaussian; exact, cryptographic source"
    if name.startswith("NumPy"):
        return "no: floating point, not a cryptographic source"
    return ""


def _diffprivlib_rates(count: int, peer_count: int, repeats: int) -> Iterator[list[str]]:
    """One thread on both sides: its mechanisms take one value at a time and hold the interpreter lock."""
    mechanisms = diffprivlib().mechanisms
    spent = best_seconds(partial(rounded_normals, open_source(), count, 2**28, 1), repeats)
    ours = count / spent
    kinds = {
        "GaussianAnalytic": (mechanisms.GaussianAnalytic, 0.0, "no: floating point, whose low bits leak"),
        "GaussianDiscrete": (mechanisms.GaussianDiscrete, 0, "the same need, the discrete Gaussian; exact"),
    }
    for name, (kind, value, same) in kinds.items():
        mechanism = kind(epsilon=1.0, delta=DELTA, sensitivity=1)

        def draw(mechanism: Any = mechanism, value: float = value) -> None:
            for _ in range(peer_count):
                mechanism.randomise(value)

        rate = peer_count / best_seconds(draw, repeats)
        title = f"diffprivlib {name}, one value at a time, 1 thread"
        yield [title, f"{rate / 1e6:.3g}", f"dpmd_fast {ours / rate:,.0f} x", same]


# Accounting


class Answer(NamedTuple):
    question: str
    side: str
    call: Callable[[], float]
    same: str


def accounting_answers(sigmas: list[float], epsilon: float) -> Iterator[Answer]:
    """Epsilon of composed Gaussian mechanisms of sensitivity 1, and the noise that (epsilon, delta) needs."""
    mu = math.sqrt(math.fsum(sigma**-2 for sigma in sigmas))
    composed = f"epsilon of {len(sigmas)} Gaussians"
    exact = "yes: the exact curve"
    yield Answer(composed, "dpmd_fast gdp_epsilon", partial(gdp_epsilon, mu, DELTA), "")
    if installed("dp_accounting"):
        import dp_accounting as dp
        from dp_accounting.pld import PLDAccountant
        from dp_accounting.rdp import RdpAccountant

        def accountant(kind: Any) -> float:
            count = {sigma: sigmas.count(sigma) for sigma in sigmas}
            parts = [dp.SelfComposedDpEvent(dp.GaussianDpEvent(s), times) for s, times in count.items()]
            event = dp.ComposedDpEvent(parts)
            return float(kind().compose(event).get_epsilon(DELTA))

        yield Answer(
            composed,
            "dp-accounting get_epsilon_gaussian",
            partial(dp.get_epsilon_gaussian, 1.0 / mu, DELTA),
            exact,
        )
        yield Answer(
            composed,
            "dp-accounting PLDAccountant",
            partial(accountant, PLDAccountant),
            "yes, on a grid of losses, for any mechanism: an upper bound",
        )
    renyi = f"{composed}, by Rényi divergence"
    yield Answer(renyi, "dpmd_fast zcdp_epsilon", partial(zcdp_epsilon, 0.5 * mu * mu, DELTA), "")
    if installed("dp_accounting"):
        yield Answer(
            renyi,
            "dp-accounting RdpAccountant",
            partial(accountant, RdpAccountant),
            "yes, the best of a list of orders, for any mechanism",
        )
    if installed("opendp"):
        import opendp.prelude as odp

        odp.enable_features("contrib")
        space = odp.atom_domain(T=float, nan=False), odp.absolute_distance(T=float)
        gaussian = odp.m.make_gaussian(*space, scale=1.0 / mu)

        def converted() -> float:
            return float(odp.c.make_zCDP_to_approxDP(gaussian).map(1.0).epsilon(DELTA))

        yield Answer(renyi, "OpenDP make_zCDP_to_approxDP", converted, "yes, rounded upward")
    needed = f"sigma for epsilon = {epsilon:g}, delta = {DELTA:g}"
    yield Answer(needed, "dpmd_fast 1 / gdp_mu", lambda: 1.0 / gdp_mu(epsilon, DELTA), "")
    if installed("dp_accounting"):
        sigma = partial(dp.get_sigma_gaussian, epsilon, DELTA)
        yield Answer(needed, "dp-accounting get_sigma_gaussian", sigma, exact)
    if installed("diffprivlib"):
        kind = diffprivlib().mechanisms.GaussianAnalytic

        def calibrated() -> float:
            return float(kind(epsilon=epsilon, delta=DELTA, sensitivity=1.0)._scale)

        yield Answer(needed, "diffprivlib GaussianAnalytic", calibrated, exact)


def exact_epsilon(mu: float, delta: float) -> float:
    """Root of the GDP curve in arithmetic of 60 digits."""
    start = gdp_epsilon(mu, delta)
    return _exact_root(lambda epsilon: (mu, epsilon), delta, start)


def exact_sigma(epsilon: float, delta: float) -> float:
    """1 / mu for the root mu of the GDP curve, in arithmetic of 60 digits."""
    return 1.0 / _exact_root(lambda mu: (mu, epsilon), delta, gdp_mu(epsilon, delta))


def _exact_root(arguments: Callable[[Any], tuple[Any, Any]], delta: float, start: float) -> float:
    import mpmath

    def excess(x: Any) -> Any:
        m, e = map(mpmath.mpf, arguments(x))
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m) - mpmath.mpf(delta)

    with mpmath.workdps(60):
        return float(mpmath.findroot(excess, (start * (1 - mpmath.mpf(10) ** -9), start)))


def show_accounting(repeats: int) -> str:
    rows = []
    epsilon, compositions = 1.0, ([2.0, 3.0, 7.0], [100.0] * 1000)
    for sigmas in compositions:
        mu = math.sqrt(math.fsum(sigma**-2 for sigma in sigmas))
        ours = math.nan
        for answer in accounting_answers(sigmas, epsilon):
            calibration = answer.question.startswith("sigma")
            if calibration and sigmas is not compositions[0]:
                continue
            first, found = clock(answer.call)
            spent = first if first > 1.0 else best_seconds(answer.call, repeats)
            if not answer.same:
                ours = spent
            truth = exact_sigma(epsilon, DELTA) if calibration else exact_epsilon(mu, DELTA)
            rows.append(
                [
                    answer.question,
                    answer.side,
                    f"{found:.15g}",
                    f"{found / truth - 1.0:+.1e}",
                    f"{1e6 * spent:,.0f}",
                    "" if not answer.same else f"{spent / ours:.3g} x",
                    answer.same,
                ]
            )
    columns = ["question", "side", "answer", "relative to exact", "µs", "ratio", "the same thing?"]
    return (
        f"## Accounting of Gaussian noise, delta = {DELTA:g}\n\n"
        "Exact: the curve of Gaussian differential privacy in arithmetic of 60 digits; bounds by Rényi "
        "divergence lie above it. Three Gaussians: deviations 2, 3, 7; a thousand: 100 each, told to "
        "dp-accounting as one composition; sensitivity 1.\n\n" + table(columns, rows)
    )


# A private covariance and its leading directions


def make_spread(n: int, D: int) -> np.ndarray:
    """Rows of norm at most 10 around the plane of the first two axes."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, D)) * np.r_[3.0, 2.0, np.full(D - 2, 0.1)]
    return X / np.maximum(1.0, np.linalg.norm(X, axis=1, keepdims=True) / 10.0)


def our_plane(X: np.ndarray) -> np.ndarray:
    """Leading directions of one certified release around the origin."""
    origin = np.zeros((1, X.shape[1]))
    release = release_moments(X, origin, bandwidth=12.0, budget=Budget(1.0, DELTA), n_threads=THREADS)
    return release.tangents(dim=2)[0]


def their_plane(X: np.ndarray) -> np.ndarray:
    warnings.simplefilter("ignore")
    model = diffprivlib().models.PCA(n_components=2, epsilon=1.0, data_norm=10.0, centered=True)
    return model.fit(X).components_.T


def _measure(kind: str, n: int, D: int, answer: Connection) -> None:
    X = make_spread(n, D)
    side = our_plane if kind == "ours" else their_plane
    side(make_spread(500, 3))  # imports, compiled kernels
    answer.send("ready")
    spent, plane = clock(partial(side, X))
    answer.send((spent, float(np.linalg.norm(plane[2:], 2))))


def measured_plane(kind: str, n: int, D: int, limit: float | None = None) -> tuple[float, float] | None:
    """Seconds and the sine of the angle to the true plane, in a fresh process; None beyond the limit."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(kind, n, D, sender))
    process.start()
    sender.close()
    try:
        receiver.recv()
        return receiver.recv() if receiver.poll(limit) else None
    except EOFError:
        raise RuntimeError(f"the process for {kind}, D = {D}, ended without an answer") from None
    finally:
        process.kill()
        process.join()


def show_covariance(n: int, dimensions: Sequence[int], limit: float) -> str:
    if not installed("diffprivlib"):
        return "## Private leading directions\n\ndiffprivlib is not installed."
    rows = []
    for D in dimensions:
        ours, theirs = measured_plane("ours", n, D), measured_plane("theirs", n, D, limit)
        if ours is None:
            raise RuntimeError("no answer")
        late = f"no answer after {limit:g} s"
        rows.append(
            [
                f"n={n:,}, D={D}",
                seconds(ours[0]),
                f"{ours[1]:.4f}",
                late if theirs is None else seconds(theirs[0]),
                "" if theirs is None else f"{theirs[1]:.4f}",
                f"> {limit / ours[0]:.0f} x" if theirs is None else f"{theirs[0] / ours[0]:.1f} x",
            ]
        )
    columns = ["case", "ours s", "sine of the angle", "diffprivlib PCA s", "sine of the angle", "ratio"]
    return (
        "## Private leading directions, epsilon = 1\n\n"
        "Two directions of centred rows within a ball of radius 10. Not the same thing: ours is "
        f"`release_moments` at the origin with a bandwidth of 12, (1, {DELTA:g})-private with exact noise, "
        "the rows weighted by the kernel; `diffprivlib.models.PCA` is (1, 0)-private, a stronger promise, in "
        "floating point, and samples one direction after the other by rejection. Sine of the largest angle "
        "to the true plane. Each in a process of its own, warmed up.\n\n" + table(columns, rows)
    )
