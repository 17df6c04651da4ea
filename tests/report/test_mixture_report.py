"""The report of a mixture: released and public numbers, column by column."""

import dataclasses
import os
import re

import numpy as np
import pytest
from report_page import Page, digits, without_time
from samples import make_atlas, make_mixture

from dpmd_fast import Ledger, Preprocessor, Verdict, write_report
from dpmd_fast.models.verdict import risk_noted
from dpmd_fast.privacy.guarantee import with_conditions
from dpmd_fast.privacy.ledger.charge import Receipt
from dpmd_fast.report.page import Section

NAMES = ("crp", "ldl", "hba1c")
SCALES = Preprocessor((0.5, 110.0, 5.5), (0.7, 30.0, 0.4), (True, False, False), column_names=NAMES)
HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(2)> & '{{ 7*7 }} \x00\n{% raw %}"


def make_queries(mixture, m=80, share=0.1, noise=0.5, seed=1):
    """Clean points of the mixture itself, and the same with noise and gaps, in original units."""
    rng = np.random.default_rng(seed)
    clean = mixture.sample(m, seed=seed)
    inside = clean if mixture.preprocess is None else mixture.preprocess.forward_block(clean)
    noisy = inside + noise * rng.normal(size=inside.shape)
    raw = noisy if mixture.preprocess is None else mixture.preprocess.inverse(noisy)
    raw[rng.random(raw.shape) < share] = np.nan
    return raw, clean


def written(tmp_path, **arguments):
    path = tmp_path / "report.html"
    write_report(path, **arguments)
    return Page(path.read_bytes().decode("utf-8"))


def framed(page):
    return any(a.get("id") == "verdict" and a.get("class") == "framed" for _, a in page.attributes)


def words(bars, inside, column, rows, spread):
    """An error bar, and how well the values of a column are known, as the page says it."""
    left = (np.median(inside[rows]) / spread) ** 2
    word = "well known" if left <= 0.25 else "partly known" if left <= 0.75 else "mostly guessed"
    return f"\u00b1 {digits(np.median(bars[rows, column]), 3)}, {word}"


def percent(value):
    return f"{digits(100.0 * value, 3)} %"


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("preprocess", [None, SCALES])
def test_known_and_guessed(tmp_path, preprocess):
    mixture = make_mixture(NAMES, preprocess=preprocess)
    raw, _ = make_queries(mixture)
    noise = 0.5
    page = written(tmp_path, mixture=mixture, queries=raw, noise=noise)
    rows = page.rows("bars")
    told = page.rows("known")
    _, bars = mixture.posterior(raw, noise)
    clean = mixture.transform(raw, noise)
    mean = mixture.weights @ mixture.means
    second = np.einsum("k,kij->ij", mixture.weights, mixture.covariances) + sum(
        w * np.outer(m - mean, m - mean) for w, m in zip(mixture.weights, mixture.means, strict=True)
    )
    ratios, groups = [], {}
    for j, name in enumerate(NAMES):
        logged = preprocess is not None and preprocess.log[j]
        scale = 1.0 if preprocess is None else preprocess.scale[j]
        gone = np.isnan(raw[:, j])
        inside = bars[:, j] / scale / (clean[:, j] if logged else 1.0)
        spread = np.sqrt(second[j, j])
        found = rows[name + " (logged)" * logged]
        assert found == [
            percent(gone.mean()),
            percent(noise * scale) if logged else digits(noise * scale, 3),
            digits(np.median(bars[~gone, j]), 3),
            percent(np.median(inside[~gone]) / noise),
            percent(np.median(inside[~gone]) / spread),
            digits(np.median(bars[gone, j]), 3),
            percent(np.median(inside[gone]) / spread),
        ]
        ratios += [*(inside[~gone] / noise) ** 2]
        assert told[name] == [
            percent(gone.mean()),
            *(words(bars, inside, j, rows, spread) for rows in (~gone, gone)),
        ]
        groups.setdefault(told[name][2].split(", ")[1], []).append(name)
    missing = int(np.isnan(raw).sum())
    assert f"mean squared error of {digits(np.mean(ratios), 3)} " in page.sections["bars"]
    assert page.text.index("Details") < page.text.index("mean squared error of")
    for word, names in groups.items():
        assert f"{word}: {', '.join(names)}" in page.sections["known"]
    assert f"{missing} values ({digits(100 * missing / raw.size, 3)}\u00a0%) were missing" in page.text
    assert page.text.index("It helps") < page.text.index("Privacy")
    left = noise * np.sqrt(np.mean(ratios))  # the noise is the same everywhere
    unit = "" if preprocess is None else " MADs"
    share = f"{digits(100.0 * left / noise, 3)}\u00a0%"
    if preprocess is None:
        assert page.facts["error of a value before"] == digits(noise, 3)
    else:  # columns have units of their own: one number for all of them is relative
        assert page.facts["error left"] == share
    fall = f"{digits(100.0 * (1.0 - left / noise), 3)}\u00a0%"
    assert f"falls by {fall}, from {digits(noise, 3)} to {digits(left, 3)}{unit}," in page.sections["verdict"]
    assert ("median absolute deviation" in page.sections["verdict"]) == (preprocess is not None)
    first = page.rows("verdict")
    assert first["column"] == ["measured: error before", "after", "missing: error of the mean", "filled in"]
    for j, name in enumerate(NAMES):
        logged = preprocess is not None and preprocess.log[j]
        scale = 1.0 if preprocess is None else preprocess.scale[j]
        gone = np.isnan(raw[:, j])
        inside = bars[:, j] / (clean[:, j] if logged else 1.0)
        sizes = (
            noise * scale,
            np.sqrt((inside[~gone] ** 2).mean()),
            np.sqrt(second[j, j]) * scale,
            np.sqrt((inside[gone] ** 2).mean()),
        )
        shown = [percent(size) if logged else digits(size, 3) for size in sizes]
        assert first[name] == shown
    assert page.facts["components of the mixture"] == "4"
    filled = int(np.isnan(raw).any(axis=1).sum())
    assert page.rows("statuses")["filled: cleaned, and missing values filled in"][0] == str(filled)
    assert len([tag for tag in page.tags if tag == "img"]) == 5  # four rows, and the components
    for section in ("map", "moved", "outside", "geometry", "signal"):
        assert section not in page.sections


@pytest.mark.usefixtures("undrawn")
def test_components(tmp_path):
    mixture = make_mixture(NAMES, preprocess=SCALES)
    page = written(tmp_path, mixture=mixture)
    rows = page.rows("components")
    order = np.argsort(-mixture.weights)
    assert list(rows)[1:] == [str(k + 1) for k in order]
    for k in order:
        assert rows[str(k + 1)][:2] == [percent(mixture.weights[k]), "50"]
    columns = page.rows("components", 1)
    assert set(columns) == {"column", "crp (logged)", "ldl", "hba1c"}
    mean = mixture.weights @ mixture.means
    assert columns["ldl"][0] == digits(110.0 + 30.0 * mean[1], 4)
    assert columns["crp (logged)"][0] == digits(np.exp(0.5 + 0.7 * mean[0]), 4)
    draws = SCALES.forward_block(mixture.sample(200_000, seed=0))
    told = 1.0 - 1.0 / np.diagonal(np.linalg.inv(np.corrcoef(draws.T)))
    for name, expected in zip(("crp (logged)", "ldl", "hba1c"), told, strict=True):
        assert float(columns[name][2].split()[0]) == pytest.approx(100.0 * expected, abs=1.5)
    assert "A mixture of 4 components in 3 columns." in page.text
    assert "Released numbers only" in page.sections["components"]
    assert {"known", "examples", "statuses"}.isdisjoint(page.sections)
    assert "queries" not in page.facts
    assert page.shares["budget"][0] == "start"


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("noise", [0.5, [0.5, 0.1, 0.3], {"crp": 0.2, "ldl": 10.0, "hba1c": 0.1}, 0.0])
def test_truth_and_kinds_of_noise(tmp_path, noise):
    mixture = make_mixture(NAMES, preprocess=SCALES)
    raw, clean = make_queries(mixture, m=2000)
    page = written(tmp_path, mixture=mixture, queries=raw, noise=noise, truth=clean)
    rows = page.rows("truth")
    before, after, within = (rows["measured"][j] for j in (1, 2, 3))
    if noise == 0.5:
        assert float(after) < float(before)
        assert 93.0 < float(within.split()[0]) < 97.5
    if noise == 0.0:
        assert after == before
        assert "only missing ones are filled in" in page.sections["bars"]
        assert page.rows("known")["ldl"][1] == "as measured"
        assert "The noise is 0: measured values stay as they are." in page.sections["verdict"]
        assert page.rows("verdict")["column"] == ["missing: error of the mean", "filled in"]
    assert float(rows["filled in"][2]) < float(rows["filled in"][1])


@pytest.mark.usefixtures("undrawn")
@pytest.mark.slow
def test_queries_that_the_mixture_harms(tmp_path):
    mixture = make_mixture(NAMES)
    rng = np.random.default_rng(3)
    far = 3.0 + 0.3 * rng.normal(size=(200, 3))  # a group that no component describes, near some
    page = written(tmp_path, mixture=mixture, queries=far, noise=0.5)
    moved = mixture.transform(far, 0.5)
    _, bars = mixture.posterior(far, 0.5)
    risk = np.sqrt(((moved - far) ** 2 - 0.25 + 2.0 * bars**2).mean())  # Stein's estimate
    assert risk > 1.02 * 0.5
    assert "It does harm" in page.sections["verdict"]
    assert f"from 0.5 to {digits(risk, 3)}, where" in page.sections["verdict"]
    assert "the error grows by" in page.sections["verdict"]
    assert "They are not like the records, or their noise is not what was given." in page.sections["verdict"]
    assert not page.tables["verdict"]  # what the mixture expects is not so
    assert framed(page)
    # queries like the records, with twice the noise that was given
    wrong, _ = make_queries(mixture, m=2000, share=0.0, noise=1.0)
    page = written(tmp_path, mixture=mixture, queries=wrong, noise=0.5)
    moved, bars = mixture.posterior(wrong, 0.5)
    risk = np.sqrt(((moved - wrong) ** 2 - 0.25 + 2.0 * bars**2).mean())
    expected = np.sqrt((bars**2).mean())
    assert expected < 0.5 < risk < 1.5 * expected  # the factor alone would not tell
    assert f"from 0.5 to {digits(risk, 3)}, where it expects {digits(expected, 3)}" in page.text
    assert not page.tables["verdict"]
    assert framed(page)
    # queries like the records are not taken for others: of 20 samples none
    for seed in range(20):
        raw, _ = make_queries(mixture, m=30, share=0.0, seed=seed)
        assert not framed(written(tmp_path, mixture=mixture, queries=raw, noise=0.5))


@pytest.mark.usefixtures("undrawn")
def test_first_lines_without_queries(tmp_path):
    mixture = make_mixture(NAMES)
    page = written(tmp_path, mixture=mixture)
    assert "Whether it helps is not known" in page.sections["verdict"]
    assert "noise of the queries was not given" in page.sections["verdict"]
    assert "error of a value before" not in page.facts
    told = Verdict("helps", "The error falls.", 0.5, 0.3, 0.25)
    page = written(tmp_path, mixture=dataclasses.replace(mixture, verdict=told))
    assert "It helps" in page.sections["verdict"]
    assert "The error falls." in page.sections["verdict"]
    assert page.facts["error of a value before"] == "0.5"
    assert not framed(page)


@pytest.mark.usefixtures("undrawn")
def test_too_few_records_are_not_trusted(tmp_path):
    """A mixture that is mostly noise expects small errors: neither it nor the page may say that it helps."""
    mixture = make_mixture(NAMES)
    raw, _ = make_queries(mixture)
    told = Verdict("helps", "The expected error falls.", 0.5, 0.6, 0.25)
    for word, trusted in (("not enough records", False), ("no gain", True)):
        noted = with_conditions(mixture.guarantee, risk_noted(Verdict(word, "It said so."), True))
        risky = dataclasses.replace(mixture, guarantee=noted, verdict=told)
        for run in ({}, {"queries": raw, "noise": 0.5}):
            page = written(tmp_path, mixture=risky, **run)
            assert framed(page) == (not trusted)
            assert ("It helps" in page.sections["verdict"]) == trusted
            assert (told.sentence in page.sections["verdict"]) == trusted
            assert ("Do not rely on it" in page.sections["verdict"]) == (not trusted)
            assert f"the prediction was '{word}'" in page.sections["verdict"]
            assert bool(page.tables["verdict"]) == (trusted and bool(run))


def test_nothing_to_clean(tmp_path):
    page = written(tmp_path, mixture=make_mixture(NAMES), queries=np.zeros((5, 3)), noise=0.0)
    assert "There is nothing to clean" in page.sections["verdict"]


def test_odd_queries(tmp_path):
    mixture = make_mixture(NAMES)
    empty = np.full((1, 3), np.nan)
    page = written(tmp_path, mixture=mixture, queries=empty, noise=0.5)
    assert page.facts["values missing"] == "100\u00a0%"
    assert "-" in page.rows("known")["crp"]
    page = written(tmp_path, mixture=mixture, queries=np.zeros((1, 3), np.float32), noise=0.5)
    assert page.facts["values missing"] == "0\u00a0%"
    one = make_mixture(("a",), components=1)
    page = written(tmp_path, mixture=one, queries=np.zeros((5, 1)), noise=0.5)
    assert "cleaning is a linear filter" in page.text
    assert len([tag for tag in page.tags if tag == "img"]) == 2  # no map of one column
    wide = make_mixture(tuple(f"c{j}" for j in range(70)), components=50)
    raw, _ = make_queries(wide, m=30)
    page = written(tmp_path, mixture=wide, queries=raw, noise=0.5)
    assert "The first 60 of 70 columns." in page.sections["known"]
    assert "The 16 columns that changed most." in page.sections["examples"]
    assert len(page.tables["components"][0]) == 41
    assert "nan" not in page.text.lower()
    assert len(page.html) < 2_000_000


@pytest.mark.usefixtures("undrawn")
def test_clipped_and_failed(tmp_path):
    mixture = make_mixture(NAMES, preprocess=SCALES)
    raw, _ = make_queries(mixture, m=20, share=0.0)
    raw[3, 1] = 1e6
    page = written(tmp_path, mixture=mixture, queries=raw, noise=0.5)
    (found,) = [row for name, row in page.rows("statuses").items() if name.startswith("clipped")]
    assert found == ["1", "5 %", "3"]


@pytest.mark.usefixtures("undrawn")
def test_the_ledger_of_a_mixture(tmp_path):
    ledger = Ledger(tmp_path / "l.db")
    ledger.create("cohort", 2.0, 1e-6)
    mixture = make_mixture(NAMES)
    own = ledger.spend("cohort", mixture.guarantee.mu**2, "mixture", mechanism="mixture")
    page = written(tmp_path, mixture=dataclasses.replace(mixture, receipt=Receipt(ledger, own)))
    assert "mixture (this run)" in page.text
    total = ledger.total("cohort").mu2
    assert page.facts["budget left"] == f"{digits(100.0 * ledger.remaining('cohort') / total, 3)}\u00a0%"


def test_hostile_texts_are_texts(tmp_path):
    names = (HOSTILE, "$\\frac{x}$<svg onload=y>\u6c34", "c")
    mixture = dataclasses.replace(make_mixture(NAMES), column_names=names, spends=((HOSTILE, 0.01),))
    raw, _ = make_queries(mixture)
    page = written(
        tmp_path,
        mixture=mixture,
        queries=raw,
        noise=0.5,
        title=HOSTILE,
        parameters={HOSTILE: HOSTILE},
        sections=[Section(HOSTILE, (HOSTILE,))],
    )
    assert not {"script", "svg", "b", "u", "a", "link", "iframe", "object"} & set(page.tags)
    assert page.text.count("<script>alert(1)</script>") >= 6
    for tag, attributes in page.attributes:
        assert not [name for name in attributes if name.startswith("on") or name in ("href", "srcset")], tag
    rest = re.sub(r'src="data:[^"]*"', "", page.html)
    assert not re.search(r"https?:|//[a-z]|url\(|@import|<link|<script", rest)


def test_same_bytes_but_for_the_time(tmp_path):
    mixture = make_mixture(NAMES)
    raw, _ = make_queries(mixture)
    pages = [written(tmp_path, mixture=mixture, queries=raw, noise=0.5) for _ in range(2)]
    assert without_time(pages[0].html) == without_time(pages[1].html)


MIXTURE = make_mixture(NAMES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mixture": "mixture.dpmd"}, "mixture is a str"),
        ({"mixture": MIXTURE, "atlas": make_atlas()}, "atlas and mixture: must not both be given"),
        ({"mixture": MIXTURE, "queries": np.zeros((5, 3))}, "noise = None: must be that of the queries"),
        ({"mixture": MIXTURE, "noise": 0.5}, "noise: must be left out without queries"),
        ({"mixture": MIXTURE, "truth": np.zeros((5, 3))}, "truth: must be left out without queries"),
        (
            {"mixture": MIXTURE, "queries": np.zeros((5, 2)), "noise": 1.0},
            "queries has 2 features: must have 3",
        ),
        ({"mixture": MIXTURE, "queries": np.full((5, 3), np.inf), "noise": 1.0}, "queries contains infinity"),
        ({"mixture": MIXTURE, "queries": np.zeros((5, 3)), "noise": -1.0}, "noise = -1.0: must be"),
        (
            {"mixture": MIXTURE, "queries": np.zeros((5, 3)), "noise": 1.0, "denoised": np.zeros((5, 3))},
            "denoised: must be left out with a mixture",
        ),
        ({"mixture": MIXTURE, "status": ["ok"]}, "status: must be left out with a mixture"),
        ({"mixture": MIXTURE, "public_points": np.zeros((5, 3))}, "public_points: must be left out"),
        (
            {"mixture": MIXTURE, "queries": np.zeros((5, 3)), "noise": 1.0, "truth": np.zeros((4, 3))},
            r"truth has shape \(4, 3\)",
        ),
        ({"mixture": MIXTURE, "column_names": ["a"]}, "column_names: must be 3 texts"),
        ({"atlas": make_atlas(), "noise": 0.5}, "noise: must be left out without a mixture"),
        ({"atlas": make_atlas()}, "queries = None: must be given, unless the page is about a mixture"),
        (
            {"mixture": MIXTURE, "guarantee": dataclasses.replace(MIXTURE.guarantee, statement="x")},
            "guarantee: is not that of the mixture",
        ),
    ],
)
def test_refused(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        write_report(tmp_path / "r.html", **arguments)
    assert os.listdir(tmp_path) == []
