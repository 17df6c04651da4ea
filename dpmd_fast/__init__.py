"""Differentially private manifold denoising on compiled CPU kernels.

Names are imported when they are first used, so that ``import dpmd_fast`` stays cheap; nothing is
compiled before a kernel is called (see `warmup`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dpmd_fast import cache_folder

if TYPE_CHECKING:
    from dpmd_fast.atlas import Atlas
    from dpmd_fast.atlas_release import release_atlas
    from dpmd_fast.denoiser import DPManifoldDenoiser
    from dpmd_fast.descent import DescentResult, gradient_descent
    from dpmd_fast.moments import release_moments
    from dpmd_fast.paper import ManifoldDenoiser, paper_bandwidth
    from dpmd_fast.planning import Plan, plan
    from dpmd_fast.preprocess import Preprocessor
    from dpmd_fast.preprocess_release import PreprocessWarning, private_preprocessor
    from dpmd_fast.privacy.budget import Budget, BudgetExceeded
    from dpmd_fast.privacy.guarantee import Guarantee, LargeDeltaWarning
    from dpmd_fast.privacy.ledger import Ledger
    from dpmd_fast.privacy.search import EmpiricalSensitivity, empirical_sensitivity
    from dpmd_fast.projector import ProjectorRelease, dp_projector
    from dpmd_fast.release import Release
    from dpmd_fast.report import write_report
    from dpmd_fast.warm import warmup

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
    "Plan",
    "PreprocessWarning",
    "Preprocessor",
    "ProjectorRelease",
    "Release",
    "dp_projector",
    "empirical_sensitivity",
    "gradient_descent",
    "paper_bandwidth",
    "plan",
    "private_preprocessor",
    "release_atlas",
    "release_moments",
    "warmup",
    "write_report",
]

_HOMES = {
    "atlas": ("Atlas",),
    "atlas_release": ("release_atlas",),
    "descent": ("DescentResult", "gradient_descent"),
    "denoiser": ("DPManifoldDenoiser",),
    "moments": ("release_moments",),
    "paper": ("ManifoldDenoiser", "paper_bandwidth"),
    "planning": ("Plan", "plan"),
    "preprocess": ("Preprocessor",),
    "preprocess_release": ("PreprocessWarning", "private_preprocessor"),
    "privacy.budget": ("Budget", "BudgetExceeded"),
    "privacy.guarantee": ("Guarantee", "LargeDeltaWarning"),
    "privacy.ledger": ("Ledger",),
    "privacy.search": ("EmpiricalSensitivity", "empirical_sensitivity"),
    "projector": ("ProjectorRelease", "dp_projector"),
    "release": ("Release",),
    "report": ("write_report",),
    "warm": ("warmup",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

cache_folder.settle()


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'dpmd_fast' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"dpmd_fast.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
