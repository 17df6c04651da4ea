"""Differentially private manifold denoising on compiled CPU kernels.

Names are imported when they are first used, so that ``import dpmd_fast`` stays cheap; nothing is
compiled before a kernel is called (see `warmup`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dpmd_fast.privacy.ledger import fingerprinting

if TYPE_CHECKING:
    from dpmd_fast.baselines.gradient_descent import DescentResult, gradient_descent
    from dpmd_fast.baselines.manifold_denoiser import ManifoldDenoiser, paper_bandwidth
    from dpmd_fast.baselines.sensitivity_search import EmpiricalSensitivity, empirical_sensitivity
    from dpmd_fast.compilation import warmup
    from dpmd_fast.mechanisms.atlas.release import release_atlas
    from dpmd_fast.mechanisms.denoiser import DPManifoldDenoiser
    from dpmd_fast.mechanisms.mixture import release_mixture
    from dpmd_fast.mechanisms.moments import release_moments
    from dpmd_fast.mechanisms.preprocessor import PreprocessWarning, private_preprocessor
    from dpmd_fast.mechanisms.projector import ProjectorRelease, dp_projector
    from dpmd_fast.models.atlas import Atlas
    from dpmd_fast.models.load import load_model
    from dpmd_fast.models.mixture import Mixture
    from dpmd_fast.models.moments import Release
    from dpmd_fast.models.plan import Plan, plan
    from dpmd_fast.models.preprocessor import Preprocessor
    from dpmd_fast.models.verdict import Verdict
    from dpmd_fast.privacy.budget import Budget, BudgetExceeded
    from dpmd_fast.privacy.guarantee import Guarantee, LargeDeltaWarning
    from dpmd_fast.privacy.ledger.ledger import Ledger
    from dpmd_fast.report.page import write_report

__version__ = "0.1.0"

__all__ = [
    "Atlas",
    "Budget",
    "BudgetExceeded",
    "DPManifoldDenoiser",
    "DescentResult",
    "EmpiricalSensitivity",
    "Guarantee",
    "LargeDeltaWarning",
    "Ledger",
    "ManifoldDenoiser",
    "Mixture",
    "Plan",
    "PreprocessWarning",
    "Preprocessor",
    "ProjectorRelease",
    "Release",
    "Verdict",
    "dp_projector",
    "empirical_sensitivity",
    "gradient_descent",
    "load_model",
    "paper_bandwidth",
    "plan",
    "private_preprocessor",
    "release_atlas",
    "release_mixture",
    "release_moments",
    "warmup",
    "write_report",
]

_HOMES = {
    "models.atlas": ("Atlas",),
    "mechanisms.atlas.release": ("release_atlas",),
    "baselines.gradient_descent": ("DescentResult", "gradient_descent"),
    "mechanisms.denoiser": ("DPManifoldDenoiser",),
    "mechanisms.mixture": ("release_mixture",),
    "mechanisms.moments": ("release_moments",),
    "baselines.manifold_denoiser": ("ManifoldDenoiser", "paper_bandwidth"),
    "models.load": ("load_model",),
    "models.mixture": ("Mixture",),
    "models.plan": ("Plan", "plan"),
    "models.verdict": ("Verdict",),
    "models.preprocessor": ("Preprocessor",),
    "mechanisms.preprocessor": ("PreprocessWarning", "private_preprocessor"),
    "privacy.budget": ("Budget", "BudgetExceeded"),
    "privacy.guarantee": ("Guarantee", "LargeDeltaWarning"),
    "privacy.ledger.ledger": ("Ledger",),
    "baselines.sensitivity_search": ("EmpiricalSensitivity", "empirical_sensitivity"),
    "mechanisms.projector": ("ProjectorRelease", "dp_projector"),
    "models.moments": ("Release",),
    "report.page": ("write_report",),
    "compilation": ("warmup",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def _fingerprint(reference: Any, columns: list[str] | None = None) -> str:
    from dpmd_fast.reference.sources.fingerprint import fingerprint_of

    return fingerprint_of(reference, columns)


fingerprinting.compute = _fingerprint  # privacy/ may not import reference/


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'dpmd_fast' has no attribute {name!r}")
    from dpmd_fast.kernels import late

    late.begin()
    value = getattr(importlib.import_module(f"dpmd_fast.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
