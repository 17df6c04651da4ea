"""Releases of preprocessed records: what the preprocessor has cost counts as part of the release."""

from __future__ import annotations

from collections.abc import Sequence

from dpmd_fast.errors import UserValueError
from dpmd_fast.mechanisms.spend import Terms
from dpmd_fast.models.preprocessor import Preprocessor
from dpmd_fast.privacy.guarantee import Guarantee, joint_guarantee

Spends = Sequence[tuple[str, float]]


def check_paid(preprocess: Preprocessor, terms: Terms) -> None:
    """Refuse a private preprocessor whose cost cannot be added to that of the release."""
    paid = preprocess.guarantee
    if paid is None:
        return
    if paid.adjacency != terms.adjacency:
        raise UserValueError(
            f"adjacency = {terms.adjacency!r}: the preprocessing was released under {paid.adjacency!r}, and "
            "spends under different adjacencies do not add up",
            argument="adjacency",
        )
    if terms.account is not None and paid.holds == "not private":
        raise UserValueError(
            "preprocess was made with a seed: must be private if a ledger pays for the release"
        )


def preprocessing_cost(preprocess: Preprocessor | None) -> dict[str, float]:
    """Return, for the ledger, the cost of the preprocessor, which may have been charged elsewhere."""
    if preprocess is None or preprocess.guarantee is None:
        return {}
    return {"preprocessing_mu2": preprocess.guarantee.mu**2}


def with_preprocessing(
    guarantee: Guarantee, spends: Spends, preprocess: Preprocessor | None
) -> tuple[Guarantee, tuple[tuple[str, float], ...]]:
    """Return the guarantee and the spends of a release together with those of its preprocessor."""
    if preprocess is None or preprocess.guarantee is None:
        return guarantee, tuple(spends)
    paid = preprocess.guarantee
    return joint_guarantee(guarantee, paid), (("preprocessing", paid.mu**2), *spends)
