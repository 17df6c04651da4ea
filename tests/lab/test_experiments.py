"""Experiments: the runner on small ones of our own, and the paper's simulations in their quick form."""

import dataclasses
import io
import json
import math
import os
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

from dpmd_fast.cli import main
from dpmd_fast.lab.datasets import make_shape
from dpmd_fast.lab.experiments import methods, privacy_curves, registry, synthetic
from dpmd_fast.lab.experiments.figures import canvas
from dpmd_fast.lab.experiments.framework import (
    JOURNAL,
    Experiment,
    Interval,
    Journal,
    interval,
    intervals,
    markdown,
)

RUN = {"experiment": "squares", "quick": False, "version": "1"}
SIMULATED = ["circle", "torus", "swiss-roll", "sphere", "privacy"]


def squares(stop_at=None, needs_data=False):
    """An experiment that squares numbers, keeps a list of what it was asked, and may be interrupted."""
    asked = []

    def items(profile):
        return [
            {"x": x, "seed": seed}
            for seed in range(profile.seeds)
            for x in ((2,) if profile.quick else (2, 3))
        ]

    def measure(item, profile):
        if len(asked) == stop_at:
            raise KeyboardInterrupt
        asked.append(dict(item))
        return {"results": [{"y": np.float64(item["x"] ** 2 + item["seed"])}], "more": [{"none": None}]}

    def table(tables, profile):
        found = intervals(tables["results"], ("x",), "y")
        return markdown(["x", "y"], [[x, one] for (x,), one in found.items()])

    def figures(tables, profile):
        figure = canvas(2.0, 2.0)
        figure.subplots().plot([row["y"] for row in tables["results"]])
        return {"squares": figure}

    return Experiment("squares", items, measure, table, figures, (3, 1), needs_data), asked


def rows_of(folder, table="results"):
    return pq.read_table(folder / f"{table}.parquet").to_pylist()


# --- the runner


def test_a_run_writes_tables_and_figures(tmp_path):
    experiment, asked = squares()
    paths = experiment.run(tmp_path / "out")
    assert [os.path.basename(path) for path in paths] == [
        "results.parquet",
        "more.parquet",
        "table.md",
        "squares.png",
    ]
    assert len(asked) == 6
    assert rows_of(tmp_path / "out")[3] == {"x": 3, "seed": 1, "y": 10.0}
    assert (tmp_path / "out" / "table.md").read_text() == (
        "| x | y |\n| --- | --- |\n| 2 | 5.0 ± 2.5 |\n| 3 | 10.0 ± 2.5 |\n"
    )
    assert (tmp_path / "out" / "squares.png").read_bytes().startswith(b"\x89PNG")
    assert pq.read_schema(paths[0]).metadata[b"seeds"] == b"3"
    assert sorted(os.listdir(tmp_path / "out")) == sorted([JOURNAL, *map(os.path.basename, paths)])


def test_quick_and_seeds(tmp_path):
    experiment, asked = squares()
    experiment.run(tmp_path / "a", quick=True)
    assert asked == [{"x": 2, "seed": 0}]
    experiment.run(tmp_path / "b", seeds=1)
    assert len(asked) == 3
    with pytest.raises(ValueError, match=r"seeds = 0: must be an integer >= 1"):
        experiment.run(tmp_path / "c", seeds=0)
    assert not (tmp_path / "c").exists()


def test_an_interrupted_run_goes_on(tmp_path, capsys):
    experiment, _ = squares(stop_at=4)
    with pytest.raises(KeyboardInterrupt):
        experiment.run(tmp_path)
    printed = capsys.readouterr().err
    assert "squares: stopped after 4 of 6 items; run the same command again to resume" in printed
    assert os.listdir(tmp_path) == [JOURNAL]
    with open(tmp_path / JOURNAL, "a") as file:
        file.write('[{"x": 2, "seed": 2}, {"resu')  # a line that was cut short
    after, rest = squares()
    after.run(tmp_path)
    assert rest == [{"x": 2, "seed": 2}, {"x": 3, "seed": 2}]
    squares()[0].run(tmp_path / "whole")
    assert rows_of(tmp_path) == rows_of(tmp_path / "whole")
    again, nothing = squares()
    again.run(tmp_path)
    assert nothing == []


def test_an_interruption_at_the_command_line_says_what_is_kept(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(synthetic, "CIRCLE", squares(stop_at=2)[0])
    assert main(["experiment", "circle", "-o", str(tmp_path), "--seeds", "1", "--seeds", "2"]) == 130
    told = capsys.readouterr().err
    assert told == "squares: stopped after 2 of 4 items; run the same command again to resume\n"


def test_an_interruption_inside_a_kernel_is_an_interruption(tmp_path, capsys):
    experiment, _ = squares()

    def kernel(item, profile):
        raise SystemError("a dispatcher returned a result with an exception set") from KeyboardInterrupt()

    with pytest.raises(KeyboardInterrupt):
        dataclasses.replace(experiment, measure=kernel).run(tmp_path)
    assert "stopped after 0 of 6 items" in capsys.readouterr().err


def test_more_seeds_add_and_fewer_leave_out(tmp_path):
    squares()[0].run(tmp_path, seeds=1)
    experiment, asked = squares()
    experiment.run(tmp_path, seeds=2)
    assert asked == [{"x": 2, "seed": 1}, {"x": 3, "seed": 1}]
    assert len(rows_of(tmp_path)) == 4
    experiment.run(tmp_path, seeds=1)
    assert len(rows_of(tmp_path)) == 2


def test_a_folder_of_another_run_is_refused(tmp_path):
    squares()[0].run(tmp_path)
    with pytest.raises(ValueError, match=r"belongs to another run: squares, full, .* this is squares, quick"):
        squares()[0].run(tmp_path, quick=True)
    (tmp_path / JOURNAL).write_text("[1, 2\n3]\n")
    with pytest.raises(ValueError, match=r"journal\.jsonl is damaged: delete it to start over"):
        squares()[0].run(tmp_path)


@pytest.mark.parametrize("text", ["", '{"experiment": "squa'])
def test_a_journal_cut_short_in_its_first_line_begins_again(tmp_path, text):
    (tmp_path / JOURNAL).write_text(text)
    journal = Journal(tmp_path / JOURNAL, RUN)
    assert {"x": 1} not in journal
    assert json.loads((tmp_path / JOURNAL).read_text()) == RUN


def test_a_journal_keeps_every_bit(tmp_path):
    value = float(np.nextafter(0.1, 1.0))
    Journal(tmp_path / JOURNAL, RUN).append(
        {"x": np.int64(1)}, {"results": [{"y": value}, {"y": math.inf}, {"y": None}]}
    )
    read = Journal(tmp_path / JOURNAL, RUN)
    assert {"x": 1} in read
    assert [row["y"] for row in read.tables([{"x": 1}])["results"]] == [value, math.inf, None]


def test_data_that_an_experiment_needs(tmp_path):
    experiment, asked = squares(needs_data=True)
    with pytest.raises(ValueError, match="squares needs the folder of its data sets"):
        experiment.run(tmp_path)
    with pytest.raises(ValueError, match="must be an existing folder"):
        experiment.run(tmp_path, data=tmp_path / "nowhere")
    assert asked == []
    experiment.run(tmp_path, data=tmp_path)
    assert len(asked) == 6


def test_progress_only_on_a_terminal(tmp_path, capsys, monkeypatch):
    squares()[0].run(tmp_path / "quiet")
    assert capsys.readouterr().err == ""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    squares()[0].run(tmp_path / "shown")
    assert "squares:" in sys.stderr.getvalue()
    assert "5/6" in sys.stderr.getvalue()


def test_intervals():
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half == pytest.approx(4.302652729911275 / math.sqrt(3.0))  # t of 2 degrees of freedom
    assert str(found) == "2.0 ± 2.5"
    assert str(interval([0.0312, 0.0314])) == "0.0313 ± 0.0013"
    assert str(interval([0.25])) == "0.25"
    assert str(interval([2.0, 2.0])) == "2.0 ± 0.0"
    rows = [
        {"a": 1, "v": 1.0},
        {"a": 2, "v": 5.0},
        {"a": 1, "v": 3.0},
        {"a": 1, "v": math.nan},
        {"a": 3, "v": None},
    ]
    assert {key: one.mean for key, one in intervals(rows, ("a",), "v").items()} == {(1,): 2.0, (2,): 5.0}
    assert isinstance(intervals(rows, ("a",), "v")[2,], Interval)


# --- the simulations


def test_data_depend_on_the_seed_alone():
    shape = make_shape("torus")
    first, second, other = (methods.Case.draw(shape, 500, 20, 0.1, "bounded", seed) for seed in (1, 1, 2))
    assert np.array_equal(first.sample.references, second.sample.references)
    assert not np.array_equal(first.sample.references, other.sample.references)


def test_an_atlas_that_finds_nothing_leaves_the_queries(monkeypatch):
    monkeypatch.setattr("dpmd_fast.models.geometry.charts.OCCUPIED", 9.0)  # noise alone is above 3 at times
    case = methods.Case.draw(make_shape("swiss-roll"), 200, 20, 0.1, "bounded", 0)
    (row,), points = methods.compare(case, [("atlas", methods.atlas(0.01, 1e-6))])
    assert np.array_equal(points["atlas"], case.sample.queries)
    assert (row["moved"], row["holds"]) == (0.0, "unconditional")


def test_the_grids_are_the_papers():
    assert synthetic.SIZES == (10_000, 20_000, 30_000, 40_000, 50_000)
    assert synthetic.FULL["circle"].sigmas == (0.05, 0.1, 0.2, 0.3, 0.4)
    assert (
        synthetic.FULL["torus"].sigmas == synthetic.FULL["swiss-roll"].sigmas == (0.05, 0.1, 0.15, 0.25, 0.35)
    )
    assert privacy_curves.EPSILONS == (0.05, 0.1, 0.3, 0.5, 0.7, 1.0, 2.0, 3.0)
    assert len(synthetic.FULL["circle"].cells()) == 9


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The quick form of each simulation, through the command line; made once."""
    made = {}

    def run(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            assert main(["experiment", name, "--quick", "-o", str(folder)]) == 0
            made[name] = folder
        return made[name]

    return run


LONG = ("sphere", "torus", "swiss-roll", "privacy")  # like the others, and longer


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in SIMULATED]
)
def test_quick_runs_make_tables_and_figures(quick, capsys, name):
    folder = quick(name)
    listed = capsys.readouterr().out.split()
    assert {"results.parquet", "table.md"} <= {os.path.basename(path) for path in listed}
    assert any(path.endswith(".png") for path in listed)
    for row in rows_of(folder):
        assert math.isfinite(row["to_manifold"])
        assert math.isfinite(row["to_clean"])
        expected = "not private" if row["method"] in ("GD", "Nonprivate-MD") else "unconditional"
        expected = "conditional" if row["method"].startswith("paper") else expected
        assert row["holds"] == ("nothing released" if row["method"] == "raw" else expected)
    text = (folder / "table.md").read_text()
    assert "95 % interval over" in text
    assert all(word in text for word in ("raw", "Nonprivate-MD", "atlas", "unconditional", "conditional"))
    assert name in registry.EXPERIMENTS


def test_methods_denoise_a_circle(quick):
    rows = rows_of(quick("circle"))
    assert {row["method"] for row in rows} == set(methods.GRID)
    assert {row["noise"] for row in rows} == {"bounded", "gaussian"}
    assert len(rows) == 2 * 2 * 3 * len(methods.GRID)  # seeds, noises, settings, methods
    found = intervals([row for row in rows if row["n"] == 4_000], ("method",), "to_manifold")
    raw = found["raw",].mean
    for method in ("GD", "Nonprivate-MD", "certified direct, delta = 0.1", "atlas, delta = 1e-6"):
        assert found[method,].mean < 0.5 * raw, method
    points = pq.read_table(quick("circle") / "points.parquet").to_pandas()
    (row,) = [
        row
        for row in rows
        if (row["n"], row["sigma"], row["noise"], row["seed"], row["method"])
        == (4_000, 0.1, "bounded", 0, "atlas, delta = 1e-6")
    ]
    drawn = points[points["method"] == "atlas, delta = 1e-6"][["x", "y"]].to_numpy()
    assert make_shape("circle").distance(drawn).mean() == pytest.approx(row["to_manifold"], rel=1e-12)


@pytest.mark.slow
def test_what_the_paper_s_constant_hides(quick):
    rows = rows_of(quick("privacy"))
    (needed,) = {
        row["C"] for row in rows if row["method"] == "paper's route, C found" and row["shape"] == "torus"
    }
    assert needed > 20.0
    found = intervals(rows, ("shape", "delta", "epsilon", "method"), "to_manifold")
    for epsilon in privacy_curves.QUICK_EPSILONS:
        for delta in privacy_curves.DELTAS:
            one = found["torus", delta, epsilon, "paper's route, C = 1"].mean
            honest = found["torus", delta, epsilon, "paper's route, C found"].mean
            assert honest > 2.0 * one


@pytest.mark.slow
def test_the_sphere_measures_balls_and_times(quick):
    rows = rows_of(quick("sphere"))
    assert {row["D"] for row in rows} == {5, 20}
    assert all(row["ball"] > 100.0 for row in rows)
    assert all(row["seconds"] > 0.0 for row in rows if row["method"] != "raw")
