"""Blood markers and death: local geometry and risk models before and after denoising (Figure 2, Table S3).

NHANES replaces the UK Biobank, which is not public: 48,100 adults, 20 markers, deaths by cause until the
end of 2015. The protocol is that of the appendix: 1,000 people are public queries, the others the
reference; log of skewed markers, then median, MAD and clip to [-8, 8], with medians and MADs of the
queries; h and d by local geometry (see `real_data`); one step; epsilon = 1. One Cox model per endpoint is
fitted on the raw reference and held fixed; it ranks the raw queries and the queries that each method moved.
Its covariates are the markers with age, sex and ethnicity, as in the paper; a second model has the markers
alone. Deaths from other causes are censored. The Cox models are not private: they measure, nothing of them
is released.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmd_fast import Budget
from dpmd_fast.errors import UserValueError
from dpmd_fast.lab.datasets import Floats
from dpmd_fast.lab.experiments import biomarkers_report
from dpmd_fast.lab.experiments.cox import fit_cox
from dpmd_fast.lab.experiments.framework import Experiment, Profile, Row, Tables, Value
from dpmd_fast.lab.experiments.methods import PAPER_DELTA, SMALL_DELTA, Moved
from dpmd_fast.lab.experiments.real_data import PaperRoute, Run, atlas, data_file, direct
from dpmd_fast.metrics import compare_concordance, distortion, jaccard, nearest_neighbors
from dpmd_fast.models.preprocessor import Preprocessor
from dpmd_fast.report.plots import plane_of

FILE = "nhanes.parquet"
MARKERS = (
    "albumin",
    "alp",
    "bun",
    "creat",
    "glucose",
    "hba1c",
    "hdl",
    "totchol",
    "uap",
    "ttbl",
    "wbc",
    "rbc",
    "lymph",
    "monopa",
    "mcv",
    "rdw",
    "sbp",
    "dbp",
    "bmi",
    "waist",
)
COVARIATES = ("age", "gender", "ethnicity")
ENDPOINTS: Mapping[str, int | None] = {
    "any cause": None,
    "heart": 1,
    "cancer": 2,
    "chronic lung": 3,
    "stroke": 5,
    "Alzheimer": 6,
    "diabetes": 7,
    "influenza, pneumonia": 8,
    "kidney": 9,
}
MODELS = ("with age, sex, ethnicity", "markers alone")
QUERIES, QUICK_QUERIES, QUICK_PEOPLE = 1_000, 300, 6_000
REPLICATES, QUICK_REPLICATES = 1_000, 200


@dataclass(frozen=True, eq=False)
class People:
    """Complete records: markers, covariates, months of follow-up, cause of death (0: alive)."""

    markers: Floats
    covariates: Floats
    months: Floats
    cause: NDArray[np.int64]


def items(profile: Profile) -> list[Row]:
    data_file(profile, FILE)
    return [{"seed": seed} for seed in range(profile.seeds)]


def measure(item: Row, profile: Profile) -> Tables:
    seed = int(item["seed"])  # type: ignore[arg-type]
    people = load(data_file(profile, FILE))
    order = np.random.default_rng(seed).permutation(len(people.months))
    if profile.quick:
        order = order[:QUICK_PEOPLE]
    m = min(QUICK_QUERIES if profile.quick else QUERIES, len(order) // 4)
    queries, references = np.sort(order[:m]), np.sort(order[m:])
    preprocess = Preprocessor.from_public(people.markers[queries], column_names=MARKERS)
    Z, Y = (preprocess.forward(people.markers[rows]).astype(np.float64) for rows in (queries, references))
    settings: list[dict[str, Value]] = []
    moved: dict[str, Floats] = {}
    for run in _runs(Z, Y):
        result, about = run()
        moved[run.method] = result.points
        settings.append({**about, "references": len(Y), "queries": len(Z)})
    geometry = local_metrics(Z, Y, moved)
    for row in settings:
        own = geometry[str(row["method"])]
        row.update({name: float(np.nanmean(values)) for name, values in own.items()})
    tables: dict[str, list[dict[str, Value]]] = {
        "results": settings,
        "risk": _risk(people, queries, references, Y, moved, profile, seed),
    }
    if seed == 0:
        plane = plane_of(Z)
        tables["points"] = [
            {
                "method": method,
                "query": i,
                "x": x,
                "y": y,
                **{k: float(v[i]) for k, v in geometry[method].items()},
            }
            for method, points in moved.items()
            for i, (x, y) in enumerate(plane(points).tolist())
        ]
    return tables


def _runs(Z: Floats, Y: Floats) -> Iterator[Run]:
    route = PaperRoute.fit(Y, Z)
    yield Run("Raw", None, None, lambda: Moved(Z, 0.0, "nothing released"))
    yield Run("Nonprivate-MD", None, None, route.nonprivate)
    constant = route.needed_constant()
    for delta in (PAPER_DELTA, SMALL_DELTA):
        for label, C in (("C = 1", 1.0), ("C found", constant)):
            move = functools.partial(route.private, 1.0, delta, None, C)
            yield Run(f"paper's route, {label}, delta = {delta:g}", 1.0, delta, move)
    for delta in (PAPER_DELTA, SMALL_DELTA):
        for label, method in (("certified direct", direct), ("atlas", atlas)):
            move = functools.partial(method, Y, Z, Budget(1.0, delta))
            yield Run(f"{label}, delta = {delta:g}", 1.0, delta, move)


def local_metrics(Z: Floats, Y: Floats, moved: Mapping[str, Floats]) -> dict[str, dict[str, Floats]]:
    """Return the paper's three metrics and the displacement, for each method and query."""
    before, rows = nearest_neighbors(Z, Y)
    found = {}
    for method, points in moved.items():
        after, near = nearest_neighbors(points, Y)
        found[method] = {
            "knn_distance": after.mean(axis=1),
            "jaccard": jaccard(rows, near),
            "distortion": distortion(before, points, Y, rows),
            "displacement": np.linalg.norm(points - Z, axis=1),
        }
    return found


def _risk(
    people: People,
    queries: NDArray[np.int64],
    references: NDArray[np.int64],
    Y: Floats,
    moved: Mapping[str, Floats],
    profile: Profile,
    seed: int,
) -> list[dict[str, Value]]:
    """Return the C-index of each endpoint, model and method, and its difference to Raw, with intervals."""
    replicates = QUICK_REPLICATES if profile.quick else REPLICATES
    rows: list[dict[str, Value]] = []
    for endpoint, cause in ENDPOINTS.items():
        event = people.cause > 0 if cause is None else people.cause == cause
        if event[references].sum() < 5 or event[queries].sum() < 2:
            continue
        for model in MODELS:
            known = people.covariates if model == MODELS[0] else people.covariates[:, :0]
            cox = fit_cox(np.hstack([Y, known[references]]), people.months[references], event[references])
            risks = {name: cox.risk(np.hstack([X, known[queries]])) for name, X in moved.items()}
            found = compare_concordance(
                people.months[queries], event[queries], risks, replicates=replicates, seed=seed
            )
            for name, score in found.scores.items():
                change = found.differences.get(name)
                rows.append(
                    {
                        "endpoint": endpoint,
                        "model": model,
                        "method": name,
                        "events_references": int(event[references].sum()),
                        "events_queries": int(event[queries].sum()),
                        "c": score.value,
                        "c_low": score.low,
                        "c_high": score.high,
                        "change": change.value if change else 0.0,
                        "change_low": change.low if change else 0.0,
                        "change_high": change.high if change else 0.0,
                    }
                )
    return rows


@functools.lru_cache(maxsize=1)
def load(path: Path) -> People:
    """Read people with follow-up and complete, positive markers (20 have bilirubin 0, below detection)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = [*MARKERS, *COVARIATES, "eligible", "time_all", "event_all", "cause"]
    try:
        table = pq.read_table(path, columns=wanted)
    except (pa.ArrowInvalid, OSError):
        raise UserValueError(
            f"{path.name}: must be a Parquet file with the columns {', '.join(wanted)}"
        ) from None
    column: dict[str, Any] = {
        name: np.asarray(table.column(name).to_numpy(), dtype=np.float64) for name in wanted
    }
    markers = np.column_stack([column[name] for name in MARKERS])
    others = np.column_stack([column[name] for name in (*COVARIATES, "time_all", "event_all")])
    kept = (markers > 0.0).all(axis=1) & np.isfinite(markers).all(axis=1) & np.isfinite(others).all(axis=1)
    kept &= (column["eligible"] == 1.0) & (column["time_all"] > 0.0)
    group = column["ethnicity"]
    levels = np.unique(group[kept])[1:]
    covariates = np.column_stack(
        [column["age"], column["gender"] == 2.0, *(group == level for level in levels)]
    ).astype(np.float64)
    cause = np.where(column["event_all"] == 1.0, np.nan_to_num(column["cause"], nan=10.0), 0.0)
    return People(markers[kept], covariates[kept], column["time_all"][kept], cause[kept].astype(np.int64))


BIOMARKERS = Experiment(
    "biomarkers",
    items,
    measure,
    biomarkers_report.table,
    biomarkers_report.figures,
    seeds=(3, 1),
    needs_data=True,
)
