"""What `write_report` was given: checked, and put into words."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpmd_fast.arguments import LARGEST, Points, checked_points, shown
from dpmd_fast.errors import UserValueError
from dpmd_fast.models.atlas import Atlas
from dpmd_fast.models.mixture import Mixture
from dpmd_fast.privacy.budget import Budget
from dpmd_fast.privacy.guarantee import Guarantee
from dpmd_fast.privacy.ledger.charge import Receipt
from dpmd_fast.privacy.ledger.ledger import Ledger
from dpmd_fast.report.plots import Picture
from dpmd_fast.report.queries import STATUSES

_LONGEST_LIST = 50  # values of one parameter


@dataclass(frozen=True)
class Section:
    """A further section of a report: paragraphs, a table, pictures, and a guarantee with its conditions."""

    title: str
    paragraphs: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    pictures: tuple[Picture, ...] = ()
    guarantee: Guarantee | None = None


def one_line(text: str) -> str:
    """Return one line of printable text."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def model_of(atlas: Atlas | None, mixture: Mixture | None) -> Atlas | Mixture | None:
    """Return the model that the page is about, if there is one."""
    if atlas is not None and not isinstance(atlas, Atlas):
        raise UserValueError(f"atlas is a {type(atlas).__name__}: must be an Atlas or None")
    if mixture is not None and not isinstance(mixture, Mixture):
        raise UserValueError(f"mixture is a {type(mixture).__name__}: must be a Mixture or None")
    if atlas is not None and mixture is not None:
        raise UserValueError("atlas and mixture: must not both be given")
    return mixture if atlas is None else atlas


def guarantee_of(guarantee: Guarantee | None, model: Atlas | Mixture | None) -> Guarantee:
    if guarantee is None and model is not None:
        return model.guarantee
    if not isinstance(guarantee, Guarantee):
        raise UserValueError("guarantee: must be the Guarantee of the run, unless an atlas is given")
    if model is not None and guarantee != model.guarantee:
        kind = "atlas" if isinstance(model, Atlas) else "mixture"
        raise UserValueError(f"guarantee: is not that of the {kind}; leave it out")
    return guarantee


def check_mixture_run(queries: object, noise: object, truth: object, made: Mapping[str, object]) -> None:
    """Refuse what does not belong to the page of a mixture, which cleans the queries itself."""
    for name, value in made.items():
        if value is not None:
            raise UserValueError(f"{name}: must be left out with a mixture, which cleans the queries itself")
    if queries is None:
        for name, value in (("noise", noise), ("truth", truth)):
            if value is not None:
                raise UserValueError(f"{name}: must be left out without queries")
    elif noise is None:
        raise UserValueError("noise = None: must be that of the queries, as for Mixture.transform")


def checked_like(name: str, values: ArrayLike, raw: Points) -> Points:
    points = checked_points(name, values)
    if points.shape != raw.shape:
        raise UserValueError(f"{name} has shape {points.shape}: must have that of queries, {raw.shape}")
    return points


def checked_status(status: ArrayLike, m: int) -> NDArray[np.str_]:
    try:
        states = np.asarray(status)
    except Exception:
        states = np.empty(0)
    if states.shape != (m,):
        raise UserValueError(
            f"status has shape {states.shape}: must have one of its words for each of {m} queries"
        )
    states = states.astype(str)
    unknown = sorted(set(np.unique(states).tolist()) - set(STATUSES))
    if unknown:
        raise UserValueError(f"status holds {unknown[0]!r}: must be one of {', '.join(map(repr, STATUSES))}")
    return states


def checked_names(
    column_names: Sequence[str] | None, model: Atlas | Mixture | None, D: int
) -> list[str] | None:
    names = column_names if column_names is not None or model is None else model.column_names
    if names is None:
        return None
    if (
        not isinstance(names, (list, tuple))
        or len(names) != D
        or not all(isinstance(name, str) for name in names)
    ):
        raise UserValueError(f"column_names: must be {D} texts")
    return [one_line(name) or f"column {j}" for j, name in enumerate(names)]


def texts_of(parameters: Mapping[str, Any] | None) -> dict[str, str]:
    """Return parameters as texts, and refuse what could be data."""
    if parameters is not None and not isinstance(parameters, Mapping):
        raise UserValueError(f"parameters is a {type(parameters).__name__}: must map names to values")
    return {one_line(str(name)): _value(str(name), value) for name, value in (parameters or {}).items()}


def _value(name: str, value: Any) -> str:
    if isinstance(value, Budget):
        return f"epsilon {value.epsilon:g}, delta {value.delta:g}, conversion {value.conversion}"
    if value is None or isinstance(value, (bool, np.bool_)):
        return {None: "none", True: "yes", False: "no"}[value if value is None else bool(value)]
    if isinstance(value, Ledger):
        return "given"
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, numbers.Integral):
        return shown(int(value))
    if isinstance(value, numbers.Real):
        try:
            return f"{float(value):.6g}"
        except OverflowError:  # a fraction beyond the range of floats
            return shown(value)
    flat = isinstance(value, (list, tuple)) and len(value) <= _LONGEST_LIST
    if flat and all(isinstance(one, (str, numbers.Real)) for one in value):
        return ", ".join(_value(name, one) for one in value)
    raise UserValueError(
        f"parameters[{name!r}] is a {type(value).__name__}: must be a number, a text, a Budget, None or a "
        f"list of at most {_LONGEST_LIST} numbers or texts"
    )


def bandwidth_of(atlas: Atlas | None, parameters: Mapping[str, Any] | None) -> float | None:
    value = atlas.bandwidth if atlas is not None else (parameters or {}).get("bandwidth")
    usable = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return float(value) if usable and 0.0 < value < LARGEST else None  # type: ignore[arg-type, operator]


def ledger_of(
    ledger: Ledger | None, dataset: str | None, receipt: Receipt | None, model: Atlas | Mixture | None
) -> tuple[Ledger | None, str | None, int | None]:
    for name, value, kind in (("receipt", receipt, Receipt), ("ledger", ledger, Ledger)):
        if value is not None and not isinstance(value, kind):
            raise UserValueError(f"{name} is a {type(value).__name__}: must be a {kind.__name__} or None")
    if receipt is None and model is not None:
        receipt = model.receipt
    if (ledger is None) != (dataset is None):
        raise UserValueError("ledger and dataset: give both, or neither")
    if receipt is None:
        return ledger, dataset, None
    if ledger is None:
        return receipt.ledger, receipt.spend.dataset, receipt.spend.id
    same = dataset == receipt.spend.dataset and ledger == receipt.ledger
    return ledger, dataset, receipt.spend.id if same else None


def check_sections(sections: object) -> None:
    if not isinstance(sections, (list, tuple)):
        raise UserValueError(f"sections is a {type(sections).__name__}: must be a list of Section")
    for section in sections:
        _check_section(section)


def _check_section(section: object) -> None:
    if not isinstance(section, Section):
        raise UserValueError(f"sections holds a {type(section).__name__}: must hold Section only")
    for picture in section.pictures:
        if not picture.source.startswith("data:image/"):
            raise UserValueError("sections: pictures must be data URIs, so that the page needs no other file")
