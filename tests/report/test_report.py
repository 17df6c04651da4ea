"""The report: what it says, that it fetches nothing, that hostile texts stay texts, that it is whole."""

import base64
import dataclasses
import errno
import io
import os
import re
import time
from importlib.resources import files
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from report_page import Page, digits, without_time

from dpmd_fast import Atlas, Budget, Ledger, Verdict
from dpmd_fast.models import verdict
from dpmd_fast.models.gaussians.tuning import LEAST_MASS
from dpmd_fast.models.geometry import tuning
from dpmd_fast.models.geometry.layers import Layer, Subspace
from dpmd_fast.models.preprocessor import Preprocessor
from dpmd_fast.models.verdict import risk_noted
from dpmd_fast.privacy.guarantee import certified_guarantee, with_conditions
from dpmd_fast.privacy.ledger.charge import Receipt
from dpmd_fast.privacy.paper_guarantee import paper_guarantee
from dpmd_fast.report import headline
from dpmd_fast.report.facts import meaning_of
from dpmd_fast.report.page import Section, write_report
from dpmd_fast.report.plots import Picture, plane_of
from dpmd_fast.report.queries import sample_rows

BUDGET = Budget(1.0, 1e-6)
GUARANTEE = certified_guarantee(BUDGET, mu=BUDGET.mu, adjacency="replace-one", seeded=False, validated=True)
SEEDED = certified_guarantee(BUDGET, mu=BUDGET.mu, adjacency="add-remove", seeded=True, validated=False)
PAPER = paper_guarantee(
    BUDGET, mu=BUDGET.mu, n=1000, dim=1, bandwidth=0.5, sensitivity_constant=9.0, seeded=False, lemma=2
)
HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(2)> & '{{ 7*7 }} \ud800\x00\n{% raw %}"


def make_atlas(charts=(40, 30), columns=3, dim=2, wide=None, seed=0, **changes):
    rng = np.random.default_rng(seed)

    def frames(*shape):
        return np.ascontiguousarray(np.linalg.qr(rng.normal(size=shape))[0])

    layers = []
    for number, K in enumerate(charts):
        correction = {
            "offsets": 0.01 * rng.normal(size=(K, columns)),
            "slopes": 0.01 * rng.normal(size=(K, dim, columns)),
        }
        layers.append(
            Layer(
                centers=rng.uniform(-1.0, 1.0, size=(K, columns)),
                tangents=frames(K, columns, dim),
                masses=rng.uniform(100.0, 900.0, size=K),
                bandwidth=0.8 - 0.3 * number,
                passes=3 - 2 * (number > 0),
                strength=1.0,
                **(correction if number else {}),
            )
        )
    shares = (0.35, 0.65)[: len(charts)]
    settings = {
        "guarantee": GUARANTEE,
        "layers": tuple(layers),
        "subspace": None if wide is None else Subspace(rng.normal(size=wide), frames(wide, columns)),
        "dim": dim,
        "bandwidth": layers[0].bandwidth,
        "signal_to_noise": (123.4, 56.7)[: len(charts)],
        "spends": tuple((f"round {j}", share / sum(shares) * BUDGET.mu**2) for j, share in enumerate(shares)),
    }
    return Atlas(**{**settings, **changes})


def make_run(m=300, D=3, outside=0.1, seed=1):
    rng = np.random.default_rng(seed)
    queries = rng.normal(size=(m, D)) + 5.0
    status = np.where(rng.random(m) < outside, "outside", "ok")
    moves = np.where((status == "ok")[:, None], 0.2 * rng.normal(size=(m, D)), 0.0)
    return {"queries": queries, "denoised": queries + moves, "status": status}


def written(tmp_path, name="report.html", **arguments):
    path = tmp_path / name
    write_report(path, **arguments)
    return Page(path.read_bytes().decode("utf-8"))


# What it says


@pytest.mark.usefixtures("undrawn")
def test_numbers_are_those_of_the_run(tmp_path):
    atlas, run = make_atlas(), make_run()
    page = written(tmp_path, atlas=atlas, **run, title="A run", parameters={"dim": 2, "tau": 1 / 3})
    moved = run["status"] == "ok"
    count, m = int(moved.sum()), len(moved)
    distances = [
        sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) ** 0.5
        for x, y, ok in zip(run["queries"], run["denoised"], moved, strict=True)
        if ok
    ]
    figures = [np.mean(distances), *np.quantile(distances, [0.5, 0.9, 0.99]), max(distances)]
    rows = page.rows("moved")
    assert rows["distance"] == [digits(value, 3) for value in figures]
    assert rows["in bandwidths"] == [digits(value / 0.8, 3) for value in figures]
    assert f"{count} of {m} queries ({digits(100 * count / m, 3)}\u00a0%) moved" in page.sections["moved"]
    assert page.facts["moved"] == f"{digits(100 * count / m, 3)}\u00a0%"
    assert page.facts["unchanged"] == str(m - count)
    assert page.facts["privacy spent, epsilon"] == "1"
    assert (page.facts["dim"], page.facts["tau"]) == ("2", "0.333333")
    assert (page.facts["rounds"], page.facts["charts"]) == ("2", "40")

    out = np.flatnonzero(~moved)
    listed = ", ".join(map(str, out[:20])) + f" and {len(out) - 20} more"
    assert len(out) > 20
    assert page.rows("outside")["outside: too far from all that was released about the records"] == [
        str(len(out)),
        f"{digits(100 * len(out) / m, 3)} %",
        listed,
    ]
    assert page.text.split("\n300 public queries of 3 columns")[0].split() == ["A", "run", "A", "run"]


@pytest.mark.usefixtures("undrawn")
def test_spends_and_shares(tmp_path):
    atlas = make_atlas()
    page = written(tmp_path, atlas=atlas, **make_run())
    total = BUDGET.mu**2
    assert page.shares["budget"] == [
        "round 0", f"mu² = {digits(0.35 * total, 4)}, 35\u00a0%",
        "round 1", f"mu² = {digits(0.65 * total, 4)}, 65\u00a0%",
    ]  # fmt: skip
    assert f"mu² = {digits(total, 4)} (mu = {digits(BUDGET.mu, 4)}) in 2 releases" in page.sections["budget"]
    widths = [a["style"] for tag, a in page.attributes if tag == "i"]
    assert widths[-2:] == ["width:35.00%", "width:65.00%"]
    assert "No ledger was given" in page.sections["budget"]
    # what the guarantee covers beyond the listed spends is not forgotten
    partly = dataclasses.replace(atlas, spends=atlas.spends[:1])
    page = written(tmp_path, atlas=partly, **make_run())
    assert page.shares["budget"][2:] == [
        "other releases of this run", f"mu² = {digits(0.65 * total, 4)}, 65\u00a0%"
    ]  # fmt: skip


@pytest.mark.usefixtures("undrawn")
def test_signal_of_every_chart(tmp_path):
    atlas = make_atlas()
    page = written(tmp_path, atlas=atlas, **make_run())
    rows = page.rows("signal")
    for name, layer, signal in zip(
        ("1: charts", "2: corrections"), atlas.layers, atlas.signal_to_noise, strict=True
    ):
        noise = float(np.median(layer.masses)) / signal  # s, from the definition of the signal
        found = sorted(mass / noise for mass in layer.masses)
        assert rows[name] == [
            str(len(found)),
            digits(layer.bandwidth, 4),
            digits(found[0], 4),
            digits(signal, 4),
            digits(found[-1], 4),
            f"{digits(100 * 10 / signal, 3)} %",  # the mass has noise s/c, c = 0.1
            f"{digits(100 * 10 / found[0], 3)} %",
        ]
    weakest = int(np.argmin(atlas.layers[0].masses))
    first = page.tables["signal"][1][1]
    assert first[:2] == [f"chart {weakest}", digits(atlas.layers[0].masses[weakest], 4)]


def naive_neighbors(x, points, k, skip=None):
    gaps = [(float(np.sqrt(((x - p) ** 2).sum())), j) for j, p in enumerate(points) if j != skip]
    return sorted(gaps)[:k]


def naive_geometry(run, points, k, own):
    values = {"distance, before": [], "distance, after": [], "Jaccard overlap": [], "distortion": []}
    for row in np.flatnonzero(run["status"] == "ok"):
        x, y = run["queries"][row], run["denoised"][row]
        before = naive_neighbors(x, points, k, row if own else None)
        after = naive_neighbors(y, points, k, row if own else None)
        first, second = {j for _, j in before}, {j for _, j in after}
        values["distance, before"].append(sum(g for g, _ in before) / k)
        values["distance, after"].append(sum(g for g, _ in after) / k)
        values["Jaccard overlap"].append(len(first & second) / len(first | second))
        changes = [abs(np.linalg.norm(y - points[j]) / g - 1.0) for g, j in before]
        values["distortion"].append(sum(changes) / k)
    return {
        name: [digits(v, 3) for v in (np.mean(found), *np.quantile(found, [0.05, 0.5, 0.95]))]
        for name, found in values.items()
    }


@pytest.mark.usefixtures("undrawn")
def test_geometry(tmp_path):
    run, atlas = make_run(m=90), make_atlas()
    rng = np.random.default_rng(5)
    page = written(tmp_path, atlas=atlas, **run)
    centers = atlas.layers[0].centers
    for table, expected in enumerate(
        (naive_geometry(run, run["queries"], 15, own=True), naive_geometry(run, centers, 10, own=False))
    ):
        rows = page.rows("geometry", table)
        assert {name: rows[name] for name in expected} == expected
    assert "Against the raw queries" in page.text
    assert "k\u00a0=\u00a010" in page.text

    public = rng.normal(size=(200, 3)) + 5.0
    page = written(tmp_path, guarantee=GUARANTEE, **run, public_points=public)
    expected = naive_geometry(run, public, 15, own=False)
    rows = page.rows("geometry")
    assert {name: rows[name] for name in expected} == expected
    assert "among 200 of 200 public points" in page.sections["geometry"]
    assert len(page.tables["geometry"]) == 1


@pytest.mark.usefixtures("undrawn")
def test_columns_that_moved_most(tmp_path):
    run = make_run(m=50, D=20)
    moved = run["status"] == "ok"
    page = written(tmp_path, guarantee=GUARANTEE, **run, column_names=[f"c{j}" for j in range(20)])
    sizes = np.abs(run["denoised"] - run["queries"])[moved].mean(axis=0)
    spread = run["queries"].std(axis=0)
    expected = []
    for j in np.argsort(-sizes / spread)[:15]:
        part = f"{digits(100 * sizes[j] / spread[j], 3)}\u00a0% of the spread"
        expected += [f"c{j}", f"{digits(sizes[j], 3)} ({part})"]
    assert page.shares["columns"] == expected
    assert "The 15 of 20 columns that moved most" in page.text


@pytest.mark.usefixtures("undrawn")
def test_truth(tmp_path):
    run = make_run()
    truth = run["queries"] + 0.1
    page = written(tmp_path, guarantee=GUARANTEE, **run, truth=truth)
    for name, points in (("before", run["queries"]), ("after", run["denoised"])):
        gaps = np.sqrt(((points - truth) ** 2).sum(axis=1))
        figures = [gaps.mean(), *np.quantile(gaps, [0.5, 0.9, 0.99]), gaps.max()]
        assert page.rows("truth")[name] == [digits(value, 3) for value in figures]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("guarantee", [GUARANTEE, SEEDED, PAPER])
def test_guarantee_in_one_sentence(tmp_path, guarantee):
    page = written(tmp_path, guarantee=guarantee, **make_run())
    assert guarantee.statement in page.sections["guarantee"]
    badges = [a["class"] for tag, a in page.attributes if a.get("class", "").startswith("badge")]
    assert badges == [f"badge {guarantee.holds.replace(' ', '-')}"]
    for condition in guarantee.conditions:
        assert condition in page.sections["conditions"]
    for entry in guarantee.scope:
        assert page.rows("conditions")[entry.topic] == ["yes" if entry.covered else "no", entry.why]
    assert ("it protects nobody" in page.text) == (guarantee.holds == "not private")
    assert ("If all that it rests on is true" in page.text) == (guarantee.holds == "conditional")
    assert "signal" not in page.sections


# For a reader who has never heard of mu


@pytest.mark.parametrize(
    ("mu", "right"), [(1e-6, 51), (0.2, 54), (BUDGET.mu, 55), (1.0, 70), (4.0, 98), (20.0, 100)]
)
def test_meaning_in_plain_words(mu, right):
    """The best guess between N(0, 1) and N(mu, 1) is right with probability Phi(mu / 2), never more."""
    second = np.arange(200_000) % 2 == 1
    draws = np.random.default_rng(0).normal(size=len(second)) + mu * second
    found = 100.0 * np.mean((draws > mu / 2) == second)
    assert right - 1.3 < found < right + 0.3
    for guarantee in (GUARANTEE, SEEDED, PAPER):
        said = f"at most {right} times in 100" in meaning_of(
            dataclasses.replace(guarantee, mu=mu, epsilon=1e4)
        )
        assert said == (guarantee.holds != "not private")


@pytest.mark.usefixtures("undrawn")
def test_mathematics_is_under_details(tmp_path):
    told = Verdict("helps", "The error falls.", 0.1, 0.07, 0.05)
    page = written(tmp_path, atlas=make_atlas(verdict=told), **make_run())
    first, last = page.text.split("Details", 1)
    for term in ("mu²", "N(0, 1)", "S/s", "bandwidth", "Jaccard", "mass S"):
        assert term not in first, term
        assert term in last, term
    names = list(page.sections)
    assert names[:2] == ["verdict", "guarantee"]
    assert names.index("outside") < names.index("conditions")


# The first lines


def framed(page):
    return any(a.get("id") == "verdict" and a.get("class") == "framed" for _, a in page.attributes)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("word", "after", "heading"),
    [
        ("helps", 0.05, "It helps"),
        ("no gain", 0.1, "It does not help"),
        ("harm likely", 0.3, "It does harm"),
        ("not enough records", 0.099, "Too few records"),
    ],
)
def test_verdict_in_the_first_lines(tmp_path, word, after, heading):
    told = Verdict(word, f"A sentence about {word}.", 0.1, 0.07, after)
    page = written(tmp_path, atlas=make_atlas(verdict=told), **make_run())
    assert list(page.sections)[:2] == ["verdict", "guarantee"]
    assert heading in page.sections["verdict"]
    assert told.sentence in page.sections["verdict"]
    assert page.facts["error of a value before"] == "0.1"
    assert f"\n{after:g}{digits(100 * after / 0.1, 3)}\u00a0% of that before" in page.text.replace(
        "error of a value after", "\n"
    )
    assert framed(page) == (word != "helps")
    assert "in the units of the data" in page.sections["verdict"]


@pytest.mark.usefixtures("undrawn")
def test_verdict_without_noise(tmp_path):
    sentence = "The atlas reaches 100% of the public points; their noise was not given."
    for word, heading in (("helps", "Whether it helps is not known"), ("harm likely", "Harm was predicted")):
        atlas = make_atlas(verdict=Verdict(word, sentence, predicted_error=0.1))
        page = written(tmp_path, atlas=atlas, **make_run())
        assert heading in page.sections["verdict"]
        assert sentence in page.sections["verdict"]
        assert f"Before the spend the prediction was: {word}." in page.sections["verdict"]
        assert "error of a value before" not in page.facts
        assert framed(page) == (word != "helps")
    for run in ({"atlas": make_atlas()}, {"guarantee": GUARANTEE}):
        page = written(tmp_path, **run, **make_run())
        assert "The noise of the queries was not given" in page.sections["verdict"]
        assert not framed(page)


@pytest.mark.usefixtures("undrawn")
def test_queries_out_of_reach_show(tmp_path):
    told = Verdict("helps", "It fell.", 0.1, 0.07, 0.05)
    for atlas in (make_atlas(), make_atlas(verdict=told)):
        page = written(tmp_path, atlas=atlas, **make_run(outside=0.9))
        assert "Most queries are out of reach" in page.sections["verdict"]
        assert framed(page)


@pytest.mark.usefixtures("undrawn")
def test_accepted_risk_shows(tmp_path):
    told = Verdict("harm likely", "It will harm.", 0.1, 0.2)
    noted = with_conditions(GUARANTEE, risk_noted(told, True))
    page = written(tmp_path, atlas=make_atlas(guarantee=noted, verdict=told), **make_run())
    assert "A risk to the result, not to privacy, was accepted" in page.sections["verdict"]


@pytest.mark.usefixtures("undrawn")
def test_truth_in_the_first_lines(tmp_path):
    run = make_run(outside=0.0)
    for truth, heading in ((run["denoised"], "It helps"), (run["queries"], "It does harm")):
        page = written(tmp_path, guarantee=GUARANTEE, **run, truth=truth + 1e-9)
        assert heading in page.sections["verdict"]
        before = np.sqrt(((run["queries"] - truth - 1e-9) ** 2).mean())
        assert page.facts["error of a value before"] == digits(before, 3)
        assert framed(page) == (heading != "It helps")


@pytest.mark.usefixtures("undrawn")
def test_no_green_and_no_thresholds_of_its_own(tmp_path):
    """Colour is no verdict: what is unconditional is written in ink."""
    page = written(tmp_path, atlas=make_atlas(), **make_run())
    style = page.html.split("<style>")[1].split("</style>")[0]
    assert ".unconditional { color: var(--ink)" in style
    for red, green, blue in re.findall(r"#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})\b", style):
        assert int(green, 16) <= max(int(red, 16), int(blue, 16)), (red, green, blue)
    source = (Path(headline.__file__)).read_text("utf-8")
    assert not re.search(r"1\.02|0\.99|0\.5\b|1\.5\b", source)


def test_thresholds_of_the_docs_are_those_of_the_code():
    docs = Path(__file__).parents[2] / "docs"
    names = ("concepts/atlas.md", "will-it-help.md", "glossary.md", "concepts/mixture.md")
    atlas, help_page, glossary, mixture = (
        " ".join((docs / name).read_text("utf-8").split()) for name in names
    )
    assert f"at most {verdict.GAIN:g} of the better of raw" in help_page
    assert f"above {verdict.HARM:g} of the raw" in help_page
    assert verdict.LEAST_REACH == 0.5
    assert "fewer than half of the" in help_page
    for word in verdict.WORDS:
        assert word in help_page
    assert f"fewer than {verdict.LEAST_PUBLIC} different public points" in help_page
    assert f"a factor above {verdict.EQUAL_NOISE:g}," in help_page
    assert f"scatter at most {verdict.SURFACE:g} of" in help_page
    assert f"factor {verdict.AS_PREDICTED:g}," in help_page
    sure = f"below {verdict.SURE_SIGNAL:g}, its prediction is not sure, and it must be at most"
    assert f"{sure} {verdict.SURE_GAIN:g} of the better of raw and alone" in help_page
    few = f"fewer than {verdict.SHAPE_POINTS} public points for each column"
    assert f"{few} (of at most {verdict.SHAPE_COLUMNS})" in help_page
    assert f"fall to {verdict.GAIN:g} of raw or less" in help_page
    assert f"distance to less than {verdict.NEARER:g} of what the queries reach alone" in help_page
    assert f"over noise below {verdict.LEAST_SIGNAL:g}, or below {LEAST_MASS:g} for a component" in mixture
    least = tuning.OCCUPIED / tuning.HOMOGENEOUS
    assert f"S/s of {least:g}. Three rounds pay" in atlas
    assert f"median S/s of {tuning.THREE_ROUNDS:g} on, two from {tuning.TWO_ROUNDS:g} on" in atlas
    needs = (
        f"needs {least:g}; three rounds need a median of {tuning.THREE_ROUNDS:g}, two {tuning.TWO_ROUNDS:g}"
    )
    assert needs in glossary


# The ledger


@pytest.mark.usefixtures("undrawn")
def test_what_is_left(tmp_path):
    ledger = Ledger(tmp_path / "l.db")
    fingerprint = "f1n6e4p417"
    ledger.create("cohort", 2.0, 1e-6, fingerprint=fingerprint)
    for number in range(12):
        ledger.spend("cohort", 0.001 * (number + 1), f"look {number}", fingerprint=fingerprint)
    own = ledger.spend("cohort", BUDGET.mu**2, "the atlas", mechanism="atlas", fingerprint=fingerprint)
    ledger.record_file(own.id, tmp_path / "secret_place.dpmd")
    atlas = make_atlas(receipt=Receipt(ledger, own))
    total, spent = Budget(2.0, 1e-6).mu ** 2, BUDGET.mu**2
    left = total - spent - 0.078

    page = written(tmp_path, atlas=atlas, **make_run())
    shares = page.shares["budget"][4:]
    assert shares == [
        "this run", f"mu² = {digits(spent, 4)}, {digits(100 * spent / total, 3)}\u00a0%",
        "other runs", f"mu² = 0.078, {digits(7.8 / total, 3)}\u00a0%",
        "left", f"mu² = {digits(left, 4)}, {digits(100 * left / total, 3)}\u00a0%",
    ]  # fmt: skip
    assert page.facts["budget left"] == f"{digits(100 * left / total, 3)}\u00a0%"
    rows = page.rows("budget")
    assert list(rows) == ["spend", "the atlas (this run)", *(f"look {j}" for j in range(11, 2, -1))]
    assert rows["look 7"][1:] == ["gaussian", "0.008", f"{digits(0.8 / total, 3)} %", "unconditional"]
    assert "3 earlier spends, mu² = 0.006 together" in page.text
    assert ledger.guarantee("cohort").statement in page.text
    for private in (fingerprint, own.host, "secret_place", str(tmp_path)):
        assert private not in page.html

    page = written(tmp_path, guarantee=GUARANTEE, **make_run(), ledger=ledger, dataset="cohort")
    assert page.shares["budget"][2] == "all runs"
    assert "(this run)" not in page.text
    page = written(tmp_path, guarantee=GUARANTEE, **make_run(), receipt=Receipt(ledger, own))
    assert page.shares["budget"][2] == "this run"


@pytest.mark.usefixtures("undrawn")
def test_one_conditional_spend_shows(tmp_path):
    ledger = Ledger(tmp_path / "l.db")
    ledger.create("a", 1.0, 1e-6)
    ledger.spend("a", 0.01, "the paper's route", holds="conditional")
    page = written(tmp_path, guarantee=GUARANTEE, **make_run(), ledger=ledger, dataset="a")
    badges = [a["class"] for _, a in page.attributes if a.get("class", "").startswith("badge")]
    assert badges == ["badge unconditional", "badge conditional"]


# Kinds of runs


def test_everything_outside(tmp_path):
    run = make_run(outside=2.0)
    page = written(tmp_path, atlas=make_atlas(), **run)
    assert "No query moved." in page.sections["moved"]
    assert not page.tables["moved"]
    assert page.facts["moved"] == "0\u00a0%"
    assert "columns" not in page.sections
    assert page.rows("outside")["outside: too far from all that was released about the records"][:2] == [
        "300",
        "100 %",
    ]


@pytest.mark.usefixtures("undrawn")
def test_all_kinds_of_status(tmp_path):
    run = make_run(m=6)
    run["status"] = np.array(["ok", "no_neighbor", "failed", "outside", "clipped", "ok"])
    page = written(tmp_path, guarantee=GUARANTEE, **run)
    assert page.facts["moved"] == "50\u00a0%"
    found = {name.split(":")[0]: row[-1] for name, row in page.rows("outside").items() if ":" in name}
    assert found == {"outside": "3", "no_neighbor": "1", "failed": "2"}


@pytest.mark.parametrize("m", [1, 2, 5])
def test_few_queries(tmp_path, m):
    run = make_run(m=m, outside=0.0)
    page = written(tmp_path, guarantee=GUARANTEE, **run)
    assert page.facts["queries"] == str(m)
    assert ("too few points" in page.sections["geometry"]) == (m < 5)


@pytest.mark.parametrize("kind", ["all the same", "huge", "tiny", "float32"])
def test_odd_queries(tmp_path, kind):
    run = make_run(m=40, D=4)
    if kind == "all the same":
        run["queries"] = run["denoised"] = np.full((40, 4), 3.0)
    else:
        factor = {"huge": 1e99, "tiny": 1e-99, "float32": 1.0}[kind]
        for name in ("queries", "denoised"):
            run[name] = (factor * run[name]).astype(np.float32 if kind == "float32" else np.float64)
    page = written(tmp_path, guarantee=GUARANTEE, **run)
    assert "nan" not in page.text.lower()
    assert len([tag for tag in page.tags if tag == "img"]) == 3


def test_many_columns_in_a_subspace(tmp_path):
    names = tuple(f"biomarker {j}" for j in range(60))
    atlas = make_atlas(columns=5, wide=60, column_names=names)
    page = written(tmp_path, atlas=atlas, **make_run(D=60))
    assert page.facts["subspace"] == "5 of 60 dimensions"
    assert page.shares["columns"][0] in names
    assert "first two principal axes of the raw queries" in page.text


def test_many_queries_are_sampled(tmp_path):
    run = make_run(m=200_000, D=3)
    start = time.process_time()
    page = written(tmp_path, guarantee=GUARANTEE, **run)
    assert time.process_time() - start < 60.0
    assert "A fixed random sample of 4,000 of 200,000 queries is drawn." in page.sections["map"]
    assert "Of 5,000 moved queries" in page.sections["geometry"]
    assert len(page.html) < 2_000_000
    moved = run["status"] == "ok"
    distances = np.linalg.norm(run["denoised"] - run["queries"], axis=1)[moved]
    assert page.rows("moved")["distance"][-1] == digits(distances.max(), 3)  # of all, not of a sample


def test_sampled_rows():
    np.testing.assert_array_equal(sample_rows(5, 10), np.arange(5))
    rows = sample_rows(100_000, 1000)
    np.testing.assert_array_equal(rows, sample_rows(100_000, 1000))
    assert len(np.unique(rows)) == 1000
    assert (np.diff(rows) > 0).all()
    assert 40_000 < rows.mean() < 60_000


@pytest.mark.usefixtures("undrawn")
def test_preprocessed_units(tmp_path):
    scale = np.array([2.0, 10.0, 0.5])
    preprocess = Preprocessor(center=(5.0, 5.0, 5.0), scale=tuple(scale), clip=100.0)
    run = make_run()
    truth = run["queries"] + 1.0
    page = written(tmp_path, atlas=make_atlas(preprocess=preprocess), **run, truth=truth)
    moves = ((run["denoised"] - run["queries"]) / scale)[run["status"] == "ok"]
    distances = np.sqrt((moves**2).sum(axis=1))
    assert page.rows("moved")["distance"][0] == digits(distances.mean(), 3)
    assert page.rows("truth")["before"][0] == digits(np.sqrt((1.0 / scale**2).sum()), 3)
    own = np.abs(run["denoised"] - run["queries"])[run["status"] == "ok"].mean(axis=0)
    values = {value.split(" (")[0] for value in page.shares["columns"][1::2]}
    assert values == {digits(size, 3) for size in own}  # of columns in their own units
    assert "in preprocessed units" in page.sections["about"]


def test_principal_plane():
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    points = rng.normal(size=(4000, 6)) * [9.0, 5.0, 1.0, 0.1, 0.1, 0.1] @ axes.T + 7.0
    plane = plane_of(points)
    values, vectors = np.linalg.eigh(np.cov(points.T))
    np.testing.assert_allclose(np.abs(plane.axes.T @ vectors[:, [-1, -2]]), np.eye(2), atol=1e-9)
    np.testing.assert_allclose(plane(points).mean(axis=0), 0.0, atol=1e-9)
    shares = [digits(100 * value / values.sum(), 3) for value in (values[-1], values[-2])]
    assert plane.names == tuple(
        f"principal axis {j + 1} ({share} % of variance)" for j, share in enumerate(shares)
    )
    flat = plane_of(points[:, :2], ["a", "b" * 50])
    np.testing.assert_array_equal(flat(points[:, :2]), points[:, :2])
    assert flat.names == ("a", "b" * 27 + "…")


def test_the_plane_of_points_that_vary_equally_in_all_directions_does_not_depend_on_their_order():
    """Any plane is a principal one: a fixed rule takes one of them, not the library."""
    corners = np.concatenate([np.eye(5), -np.eye(5)])
    for points in (corners, corners[:, :4], np.concatenate([corners, np.zeros((10, 5))], axis=1)):
        planes = [
            plane_of(points[order]).axes for order in (np.arange(10), np.arange(10)[::-1], np.r_[3:10, :3])
        ]
        for axes in planes:
            np.testing.assert_array_equal(axes, planes[0])
            np.testing.assert_allclose(axes.T @ axes, np.eye(2), atol=1e-15)


# Nothing gets through, nothing is fetched


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("hostile")
    ledger = Ledger(tmp_path / "l.db")
    name = "<script>alert('dataset')</script>"
    ledger.create(name, 1.0, 1e-6)
    ledger.spend(name, 0.01, "<b onclick=x>what</b>", mechanism="<i>")
    atlas = make_atlas(
        columns=2,
        dim=1,
        column_names=(HOSTILE, "$\\frac{x}$<svg onload=y>\u6c34"),
        spends=((HOSTILE, 0.01), ("rest", 0.01)),
        guarantee=dataclasses.replace(GUARANTEE, statement="<u>sure</u>", conditions=(HOSTILE,)),
    )
    section = Section(
        HOSTILE, (HOSTILE,), (HOSTILE, "<td>"), (("</table>", HOSTILE),), (), dataclasses.replace(PAPER)
    )
    return written(
        tmp_path,
        title=HOSTILE,
        atlas=atlas,
        **make_run(D=2),
        ledger=ledger,
        dataset=name,
        parameters={HOSTILE: HOSTILE, "<a href='http://x'>": ["<p>", 1.5]},
        sections=[section],
    )


def test_hostile_texts_are_texts(hostile_page):
    page = hostile_page
    assert not {"script", "svg", "b", "u", "a", "p>", "link", "iframe", "object"} & set(page.tags)
    assert page.text.count("<script>alert(1)</script>") >= 8
    assert "49" not in page.sections["conditions"]
    assert "{{ 7*7 }}" in page.text
    for tag, attributes in page.attributes:
        assert not [name for name in attributes if name.startswith("on") or name in ("href", "srcset")], tag
        for name in ("src", "style"):
            value = attributes.get(name, "width:1%" if name == "style" else "data:image/")
            assert re.match(r"width:\d+\.?\d*%$" if name == "style" else "data:image/", value)


def test_nothing_is_fetched(hostile_page):
    html = hostile_page.html.replace("http://x", "")  # the text of a parameter
    pictures = re.findall(r'src="data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)"', html)
    assert len(pictures) == html.count("<img ") == 5
    rest = re.sub(r'src="data:[^"]*"', "", html)
    assert not re.search(r"https?:|//[a-z]|url\(|@import|<link|<script", rest)
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'" in rest
    for picture in pictures:
        svg = base64.b64decode(picture).decode("utf-8")
        targets = re.findall(r'(?:href|src)="([^"]{0,30})', svg) + re.findall(r"url\(([^)]{0,10})", svg)
        assert targets
        assert all(target.startswith(("#", "data:image/png;base64,")) for target in targets)
        assert "<script" not in svg


@pytest.mark.usefixtures("undrawn")
def test_section(tmp_path):
    picture = Picture("data:image/png;base64,AAAA", "what it shows", "a caption")
    section = Section("More", ("One.", "Two."), ("", "a"), (("x", "1"), ("y", "2")), (picture,), PAPER)
    page = written(tmp_path, guarantee=GUARANTEE, **make_run(), sections=[section])
    (name,) = [name for name in page.sections if name.startswith("extra")]
    assert page.rows(name) == {"": ["a"], "x": ["1"], "y": ["2"]}
    for text in ("More", "One.", "Two.", "a caption", PAPER.statement, *PAPER.conditions):
        assert text in page.sections[name]
    assert ("img", {"src": picture.source, "alt": "what it shows"}) in page.attributes


# The file


def test_same_bytes_but_for_the_time(tmp_path):
    pages = [written(tmp_path, atlas=make_atlas(), **make_run())]
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.hashsalt": "x", "savefig.dpi": 9}):
        pages.append(written(tmp_path, atlas=make_atlas(), **make_run()))
    first, second = (without_time(page.html) for page in pages)
    assert first == second
    assert len(first) < len(pages[0].html)


@pytest.mark.usefixtures("undrawn")
def test_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("before")

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    for function in ("fsync", "replace"):
        with monkeypatch.context() as broken:
            broken.setattr(os, function, full)
            with pytest.raises(OSError, match="No space left"):
                write_report(path, guarantee=GUARANTEE, **make_run())
        assert path.read_text() == "before"
        assert os.listdir(tmp_path) == ["report.html"]
    write_report(path, guarantee=GUARANTEE, **make_run())
    assert path.read_text("utf-8").startswith("<!doctype html>")
    assert os.listdir(tmp_path) == ["report.html"]


@pytest.mark.usefixtures("undrawn")
def test_a_write_that_fails_halfway(tmp_path, monkeypatch):
    from dpmd_fast.report import page as report

    class Full(io.FileIO):
        def write(self, data):
            super().write(data[:100])
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(report, "open", lambda path, mode: Full(path, mode), raising=False)
    with pytest.raises(OSError, match="No space left"):
        write_report(tmp_path / "r.html", guarantee=GUARANTEE, **make_run())
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("undrawn")
def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    before = sorted(os.listdir(tmp_path))
    for name in ("folder", "missing/report.html", "file/report.html"):
        with pytest.raises(OSError, match=name.split("/")[0]):
            write_report(tmp_path / name, guarantee=GUARANTEE, **make_run())
    assert sorted(os.listdir(tmp_path)) == before


def change(**changes):
    return {"guarantee": GUARANTEE, **make_run(m=20), **changes}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (change(guarantee=None), "guarantee: must be the Guarantee of the run"),
        (change(atlas="atlas.dpmd"), "atlas is a str"),
        (change(atlas=make_atlas(columns=4)), "queries has 3 features: must have 4, as the atlas"),
        (change(atlas=make_atlas(), guarantee=PAPER), "guarantee: is not that of the atlas"),
        (change(atlas=make_atlas(signal_to_noise=(1.0,))), "atlas: must have a signal_to_noise for each"),
        (
            change(atlas=make_atlas(signal_to_noise=(0.0, 1.0))),
            "atlas: its masses and signal_to_noise must be",
        ),
        (change(denoised=np.zeros((19, 3))), r"denoised has shape \(19, 3\): must have that of queries"),
        (change(truth=np.zeros((20, 2))), r"truth has shape \(20, 2\): must have that of queries"),
        (change(denoised=np.full((20, 3), np.nan)), "denoised contains NaN"),
        (change(queries=np.zeros((20, 1))), "queries has 1 feature"),
        (change(public_points=np.zeros((5, 2))), "public_points has 2 features: must have 3"),
        (change(status=["ok"] * 19), r"status has shape \(19,\): must have one of its words"),
        (change(status=["OK"] * 20), "status holds 'OK': must be one of 'ok'"),
        (change(column_names=["a", "b"]), "column_names: must be 3 texts"),
        (change(column_names="abc"), "column_names: must be 3 texts"),
        (change(title=3), "title is a int"),
        (change(dataset="a"), "ledger and dataset: give both, or neither"),
        (change(parameters=[1]), "parameters is a list: must map names to values"),
        (change(sections=["text"]), "sections holds a str"),
        (change(sections=[Section("t", pictures=(Picture("http://x/y.png", "", ""),))]), "must be data URIs"),
    ],
)
def test_refused(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        write_report(tmp_path / "r.html", **arguments)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "secret",
    [np.full((30, 2), 41.25), [[41.25, 41.25]], [41.25] * 51, {"x": 41.25}, np.array([41.25])],
    ids=["array", "nested", "long", "mapping", "short array"],
)
def test_data_are_not_parameters(tmp_path, secret):
    with pytest.raises(ValueError, match=r"parameters\['Y'\] is a \w+: must be a number, a text") as refused:
        write_report(tmp_path / "r.html", **change(parameters={"Y": secret}))
    assert "41" not in str(refused.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("undrawn")
def test_parameters_of_an_estimator(tmp_path):
    from dpmd_fast import DPManifoldDenoiser

    ledger = Ledger(tmp_path / "l.db")
    model = DPManifoldDenoiser(0.5, 1, BUDGET, ledger=ledger, dataset="a")
    page = written(tmp_path, **change(parameters=model.get_params()))
    assert page.facts["budget"] == "epsilon 1, delta 1e-06, conversion gdp"
    assert (page.facts["bandwidth"], page.facts["seed"], page.facts["ledger"]) == ("0.5", "none", "given")
    assert page.rows("moved")["in bandwidths"]
    assert str(tmp_path) not in page.html


def test_the_template_is_part_of_the_package():
    assert files("dpmd_fast.report").joinpath("templates", "report.html.j2").is_file()
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")
    declared = project.split("[tool.setuptools.package-data]")[1].split("[")[1]
    assert '"report/templates/*.j2"' in declared


def test_demo(tmp_path, capsys):
    from dpmd_fast.lab.demo import main

    main(["--output", str(tmp_path)])
    assert sorted(os.listdir(tmp_path)) == ["circle.dpmd", "circle.png", "report.html"]
    page = Page((tmp_path / "report.html").read_text("utf-8"))
    (name,) = [name for name, text in page.sections.items() if "All routes on the same queries" in text]
    rows = page.rows(name)
    printed = capsys.readouterr().out
    for route, (to_manifold, to_clean) in list(rows.items())[1:]:
        line = next(line for line in printed.splitlines() if line.startswith(route))
        assert [to_manifold, to_clean] == line.removeprefix(route).split()[:2]
    assert len(rows) == 6
    assert float(rows["atlas, delta = 1e-06"][0]) < 0.01 < float(rows["queries as they came"][0])
