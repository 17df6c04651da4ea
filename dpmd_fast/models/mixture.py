"""The mixture: normal distributions that clean and fill in points, made from a few certified releases."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmd_fast.arguments import Points, checked_choice, checked_integer, checked_points, checked_threads
from dpmd_fast.columns import is_of
from dpmd_fast.compilation import ensure
from dpmd_fast.errors import UserValueError
from dpmd_fast.kernels.linear import cholesky, product
from dpmd_fast.kernels.posterior import make_components
from dpmd_fast.models.gaussians.background import with_background
from dpmd_fast.models.gaussians.components import Gaussians
from dpmd_fast.models.mixture_cleaner import MixtureCleaner, MixtureScorer, checked_noise
from dpmd_fast.models.preprocessor import Floats
from dpmd_fast.privacy.guarantee import Guarantee
from dpmd_fast.status import words_of

if TYPE_CHECKING:
    from dpmd_fast.models.preprocessor import Preprocessor
    from dpmd_fast.models.signature import Signature
    from dpmd_fast.models.verdict import Verdict
    from dpmd_fast.privacy.ledger.charge import Receipt

__all__ = ["Mixture", "MixtureCleaner"]

ON_MISSING = ("fill", "keep", "refuse")
_CLEANERS_KEPT = 8  # of the last noises: to prepare one takes K Cholesky factors


@dataclass(frozen=True, eq=False)
class Mixture:
    """A released mixture of normal distributions that stands for a private reference.

    Everything in it was released under `guarantee` or is public: using it costs no budget, needs no reference
    and can be done anywhere, any number of times, by any number of threads. Points are cleaned and scored
    with a wide background behind the components (`models/gaussians/background.py`), so that points unlike
    all records are hardly moved.

    Attributes
    ----------
    guarantee : Guarantee
    weights : array (K,)
    means : array (K, D)
    covariances : array (K, D, D)
        Of the components, in preprocessed units if there is a preprocessor.
    signal_to_noise : tuple of float
        Released mass of each component over the deviation of its noise.
    spends : tuple of (str, float)
        What each release was for and its mu^2, in the order of the releases.
    column_names : tuple of str or None
        Columns of the reference, where it was a table.
    preprocess : Preprocessor or None
        Then points are given and returned in original units.
    verdict : Verdict or None
        Whether it helps points with the noise that was given to `release_mixture`, judged after the spend by
        the error that the mixture expects. None without that noise, and in files of older versions.
    receipt : Receipt or None
        The debit that paid for it, if there was a ledger. Not in the file: a loaded mixture has none.
    signature : Signature or None
        Of a loaded mixture: who vouches for it, None if it is not signed.
    """

    kind = "mixture"

    guarantee: Guarantee
    weights: Floats = field(repr=False)
    means: Floats = field(repr=False)
    covariances: Floats = field(repr=False)
    signal_to_noise: tuple[float, ...] = field(repr=False)
    spends: tuple[tuple[str, float], ...] = field(repr=False)
    column_names: tuple[str, ...] | None = None
    preprocess: Preprocessor | None = field(default=None, repr=False)
    verdict: Verdict | None = None
    receipt: Receipt | None = field(default=None, repr=False)
    signature: Signature | None = None

    @property
    def n_columns(self) -> int:
        return int(self.means.shape[1])

    def transform(
        self,
        X: Any,
        noise: Any,
        n_threads: int | None = None,
        *,
        on_missing: str = "fill",
        return_status: bool = False,
    ) -> Any:
        """Return the expected clean points, given noisy and incomplete ones: array in, array out; table in,
        the same kind of table out.

        Parameters
        ----------
        X : array or table
            Public points; NaN and nulls are missing values. Of a table (pandas, polars, Arrow) the columns of
            the mixture are cleaned and all others pass through. An Arrow RecordBatchReader, a Dask array or
            dataframe and a Spark DataFrame give one that is cleaned when it is read or computed.
        noise : number, array (D,) or mapping
            Deviation of the measurement error of `X`: one for all columns or one for each, in preprocessed
            units; or by column name in the unit of the column, for a logged column the relative deviation.
            Where it is 0, values that are there come back as they are.
        n_threads : int, optional
        on_missing : "fill", "keep" or "refuse"
            Replace missing values by their expectation, leave them missing, or refuse them.
        return_status : bool
            Whether to return the status of each row as well; not for what is computed later, except a Dask
            array.

        Returns
        -------
        result : as X
        status : array of str
            Only with `return_status`. "ok"; "filled": missing values were filled in; "missing": they stay
            missing, and the other values are clean; "clipped": a value beyond the limit of the preprocessor
            was moved as the limit would be; "failed": unchanged, since the result is beyond the range of its
            type.
        """
        return self._applied(self.cleaner(noise, on_missing), X, n_threads, return_status)

    def posterior(self, X: Any, noise: Any, n_threads: int | None = None) -> tuple[Any, Any]:
        """Return the expected clean points and their standard deviations, each as `X`, with all values there.

        In original units; the deviation of a logged column is that of the logarithm times the value. In a row
        whose expectation is beyond the range of its type, values stay and deviations are NaN.
        """
        cleaner = self.cleaner(noise)
        if is_of(X, "pyarrow", "RecordBatchReader"):
            raise UserValueError(
                "X is a RecordBatchReader, which can be read only once: must be a table; call posterior for "
                "each of its batches"
            )
        if _is_frame(X):
            spread = replace(cleaner, result="deviations")
            return self._applied(cleaner, X, n_threads), self._applied(spread, X, n_threads)
        return cleaner.move_with_deviations(self._points(X), checked_threads(n_threads))[:2]

    def score_samples(self, X: Any, noise: Any = 0.0, n_threads: int | None = None) -> Floats:
        """Return the log density (m,) of each row's values that are there, 0 for a row without any.

        It is the density in preprocessed units of points with this `noise`.
        """
        scorer = MixtureScorer(self.cleaner(noise))
        if _is_lazy(X):
            raise UserValueError("X is computed later: must be an array or a table in memory; compute it")
        result = self._applied(scorer, X, n_threads)
        if is_of(X, "pyarrow", "RecordBatchReader"):
            for _ in result:  # its batches are scored as they are read
                pass
        return np.concatenate([np.empty(0), *scorer.scores])

    def sample(self, n: int, seed: int | None = None) -> Floats:
        """Return `n` synthetic points (n, D) in original units.

        They are drawn from the released mixture and cost no budget, however many. `seed` is for repetition
        only.
        """
        count = checked_integer("n", n, minimum=1, most_bits=48)
        rng = np.random.default_rng(None if seed is None else checked_integer("seed", seed))
        which = rng.choice(len(self.weights), size=count, p=self.weights / self.weights.sum())
        points = rng.standard_normal((count, self.n_columns))
        for k in range(len(self.weights)):
            rows = which == k
            points[rows] = self.means[k] + product(points[rows], cholesky(self.covariances[k]).T)
        return points if self.preprocess is None else np.asarray(self.preprocess.inverse(points))

    def prepare(self) -> None:
        """Compile the kernels of `transform`, or load them from the cache, as its first call does."""
        ensure("posterior", *(() if self.preprocess is None else ("units",)))

    def cleaner(self, noise: Any, on_missing: str = "fill") -> MixtureCleaner:
        """Return the mixture made ready for one noise: what is sent to where the points are."""
        missing = checked_choice("on_missing", on_missing, ON_MISSING)
        deviations = checked_noise(noise, self.n_columns, self.column_names, self.preprocess)
        key = (deviations.tobytes(), missing)
        made = self._cleaners.get(key)
        if made is None:
            self.prepare()
            model = with_background(Gaussians(self.weights, self.means, self.covariances))
            components = make_components(*model, deviations)
            made = MixtureCleaner(components, missing, self.column_names, self.preprocess)
            for old in list(self._cleaners)[: max(0, len(self._cleaners) - _CLEANERS_KEPT + 1)]:
                self._cleaners.pop(old, None)  # a copy of the keys: other threads add and remove some
            self._cleaners[key] = made
        return made

    @cached_property
    def _cleaners(self) -> dict[tuple[bytes, str], MixtureCleaner]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_cleaners"}

    def _points(self, X: Any) -> Points:
        return checked_points("X", X, columns=self.n_columns, missing=True)

    def _applied(self, cleaner: Any, X: Any, n_threads: int | None, return_status: bool = False) -> Any:
        n_threads = checked_threads(n_threads)
        if type(X) is not np.ndarray:
            from dpmd_fast.tables.frames import is_table, transform_table
            from dpmd_fast.tables.lazy import is_lazy, transform_lazy

            if is_table(X):
                return transform_table(cleaner, X, n_threads, return_status)
            if is_lazy(X):
                return transform_lazy(cleaner, X, return_status)
        moved, codes = cleaner.move(self._points(X), n_threads)
        return (moved, words_of(codes)) if return_status else moved

    def save(self, path: str | os.PathLike[str], key: Any = None) -> None:
        """Write one file; it appears under its name only when it is complete.

        If a ledger paid for the mixture, the name of the file is noted there. With `key`, the path of a
        private key that ``dpmd-fast keys create`` has made, the file is signed: the guarantee, all numbers
        and the place of the debit in the ledger.
        """
        from dpmd_fast.models.mixture_file import write_mixture

        write_mixture(self, path, key)
        if self.receipt is not None:
            self.receipt.record_file(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, trusted: Any = None) -> Mixture:
        """Read what `save` wrote; a truncated or edited file is refused.

        With `trusted`, one public key or several, what none of them has signed is refused, too.
        """
        from dpmd_fast.models.mixture_file import read_mixture

        return read_mixture(path, trusted)


def _is_lazy(X: Any) -> bool:
    if type(X) is np.ndarray:
        return False
    from dpmd_fast.tables.lazy import is_lazy

    return is_lazy(X)


def _is_frame(X: Any) -> bool:
    """Return True for all but arrays."""
    if type(X) is np.ndarray:
        return False
    from dpmd_fast.tables.frames import is_table

    return is_table(X) or _is_lazy(X)
