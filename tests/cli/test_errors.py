"""Bad input on the command line: exit 2, one line, no traceback, no spend, and no file."""

import json
import shlex

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from samples import frames, make_atlas, make_mixture

from dpmd_fast import Atlas, Ledger, Preprocessor
from dpmd_fast.cli import main
from dpmd_fast.lab.datasets import circle, simulate
from dpmd_fast.models.atlas_file import _arrays, _metadata, _sealed

SECRET = 8.765432109  # in the reference, and nowhere else
PAID = "--ledger budget.db --dataset clinic"
FIT = (
    "fit --model atlas --reference reference.parquet --anchors queries.parquet --dim 1 --epsilon 1 "
    "--delta 1e-6 "
    f"{PAID} -o new.dpmd"
)
DENOISE = (
    "denoise --reference reference.parquet queries.parquet --dim 1 --bandwidth 0.6 --epsilon 1 --delta 1e-6 "
    f"--accept-risk {PAID} -o new.parquet"
)
TRANSFORM = "transform --atlas atlas.dpmd queries.parquet -o new.parquet"
FIT_MIXTURE = (
    "fit --model mixture --reference reference.parquet --queries queries.parquet --components 1 "
    f"--epsilon 8 --delta 1e-6 {PAID} -o new.dpmd"
)
CLEAN = "transform --model mixture.dpmd --noise 0.5 queries.parquet -o new.parquet"
PLAN_MIXTURE = (
    "plan --model mixture --reference-rows 2000 --queries queries.parquet --noise 0.5 --epsilon 1 "
    "--delta 1e-6"
)
PLAN = "plan --reference-rows 2000 --queries queries.parquet --dim 1 --epsilon 1 --delta 1e-6"


def instead(command, *changes):
    """A command with some of its words replaced."""
    for old, new in changes:
        assert old in command
        command = command.replace(old, new, 1)
    return command


def xy(points, **others):
    return pa.table({**others, "x": points[:, 0], "y": points[:, 1]})


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Files that are right, and many that are wrong."""
    folder = tmp_path_factory.mktemp("base")
    data = simulate(circle(), 2000, 200, 0.1, np.random.default_rng(0))
    reference, queries = data.references, data.queries
    reference[7, 0] = SECRET

    def write(name, table):
        pq.write_table(table, folder / name)

    def spoiled(points, value):
        out = points.copy()
        out[5, 1] = value
        return out

    write("reference.parquet", xy(reference))
    write("queries.parquet", xy(queries))
    write("twice.parquet", xy(queries, x_sd=queries[:, 0]))
    write("other.parquet", pa.table({"u": queries[:, 0], "v": queries[:, 1]}))
    write("words.parquet", xy(queries, name=["?"] * 200))
    write("nested.parquet", xy(queries, list=[[1, 2]] * 200))
    write("text.parquet", pa.table({"x": ["?"] * 200, "y": ["!"] * 200}))
    for name, value in (("nan", np.nan), ("inf", np.inf), ("huge", 1e101)):
        write(f"{name}.parquet", xy(spoiled(queries, value)))
        write(f"reference-{name}.parquet", xy(spoiled(reference, value)))
    write("reference-text.parquet", pa.table({"x": ["?"] * 200, "y": reference[:200, 1]}))
    write("none.parquet", xy(queries[:0]))
    write("few.parquet", xy(queries[:2]))
    whole = (folder / "queries.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    (folder / "reference-cut.parquet").write_bytes((folder / "reference.parquet").read_bytes()[:-50])
    (folder / "empty.parquet").write_bytes(b"")
    (folder / "bytes.parquet").write_bytes(np.random.default_rng(0).bytes(4096))
    (folder / "bytes.dpmd").write_bytes(np.random.default_rng(0).bytes(4096))
    (folder / "bytes.db").write_bytes(np.random.default_rng(0).bytes(4096))
    (folder / "bytes.json").write_bytes(np.random.default_rng(0).bytes(4096))
    (folder / "list.json").write_text("[1, 2]")
    (folder / "deep.json").write_text(200_000 * "[")
    (folder / "large.json").write_text('{"x": 1' + 20_000_000 * " " + "}")
    (folder / "bounds.json").write_text('{"x": [-9, 9], "y": [-9, 9]}')
    (folder / "words.csv").write_text(f"x,y\n{SECRET},2\n{SECRET},private words\n")
    np.save(folder / "queries.npy", queries)
    (folder / "folder").mkdir()
    atlas = make_atlas(("x", "y", "z"))
    atlas.save(folder / "other.dpmd")
    flat = Atlas(
        guarantee=atlas.guarantee,
        layers=tuple(
            type(layer)(
                layer.centers[:, :2].copy(),
                frames(np.random.default_rng(1), len(layer.masses), 2, 1),
                layer.masses,
                layer.bandwidth,
                layer.passes,
                layer.strength,
            )
            for layer in atlas.layers
        ),
        subspace=None,
        dim=1,
        bandwidth=0.8,
        signal_to_noise=(100.0,),
        spends=atlas.spends,
        column_names=("x", "y"),
    )
    flat.save(folder / "atlas.dpmd")
    make_mixture(("x", "y")).save(folder / "mixture.dpmd")
    make_mixture(None).save(folder / "nameless.dpmd")
    make_mixture(("x", "y_y")).save(folder / "under.dpmd")
    (folder / "noise.json").write_text('{"x": 0.5, "y": 0.2}')
    (folder / "words.json").write_text('{"x": "much", "y": 0.2}')
    (folder / "half.json").write_text('{"x": 0.5}')
    (folder / "nan.json").write_text('{"x": NaN, "y": 0.2}')
    (folder / "scales.json").write_text(json.dumps(Preprocessor((0.0, 0.0), (1.0, 1.0)).to_dict()))
    sealed = (folder / "atlas.dpmd").read_bytes()
    (folder / "newer.dpmd").write_bytes(_sealed(_metadata(flat), _arrays(flat), version=99))
    (folder / "edited.dpmd").write_bytes(sealed.replace(b'"dim":1', b'"dim":2'))
    (folder / "cut.dpmd").write_bytes(sealed[:-200])
    Ledger(folder / "budget.db").create("clinic", 50.0, 1e-6)
    Ledger(folder / "budget.db").create("poor", 0.5, 1e-6)
    return folder


BAD = {
    # transform
    "NaN in queries": (instead(TRANSFORM, ("queries", "nan")), "nan.parquet contains NaN or infinity"),
    "infinity in queries": (instead(TRANSFORM, ("queries", "inf")), "all values must be finite"),
    "huge values": (instead(TRANSFORM, ("queries", "huge")), "contains values beyond 1e+100"),
    "text in queries": (instead(TRANSFORM, ("queries", "text")), "not numeric: 'x'"),
    "missing columns": (instead(TRANSFORM, ("queries", "other")), "lacks 2 column(s) of the atlas: 'x', 'y'"),
    "atlas of other columns": (instead(TRANSFORM, ("atlas.dpmd", "other.dpmd")), "lacks 1 column(s)"),
    "empty queries": (instead(TRANSFORM, ("queries", "empty")), "empty.parquet is empty"),
    "random bytes": (instead(TRANSFORM, ("queries", "bytes")), "bytes.parquet could not be read as Parquet"),
    "truncated Parquet": (instead(TRANSFORM, ("queries", "cut")), "cut.parquet could not be read as Parquet"),
    "no queries": (instead(TRANSFORM, ("queries", "nothing")), "nothing.parquet does not exist"),
    "queries are a folder": (instead(TRANSFORM, ("queries.parquet", "folder")), "folder"),
    "atlas of another version": (
        instead(TRANSFORM, ("atlas.dpmd", "newer.dpmd")),
        "written by a newer version",
    ),
    "edited atlas": (
        instead(TRANSFORM, ("atlas.dpmd", "edited.dpmd")),
        "was edited or damaged: its checksum does not match; get a fresh copy",
    ),
    "truncated atlas": (instead(TRANSFORM, ("atlas.dpmd", "cut.dpmd")), "is truncated"),
    "not an atlas": (instead(TRANSFORM, ("atlas.dpmd", "bytes.dpmd")), "is not an atlas"),
    "no atlas": (instead(TRANSFORM, ("atlas.dpmd", "nothing.dpmd")), "nothing.dpmd does not exist"),
    "no folder for the output": (instead(TRANSFORM, ("new", "nowhere/new")), "there is no folder nowhere"),
    "output is a folder": (instead(TRANSFORM, ("new.parquet", "folder")), "folder is a directory"),
    "output is a device": (
        instead(TRANSFORM, ("new.parquet", "/dev/full")) + " --force",
        "not a regular file",
    ),
    "output is there": (instead(TRANSFORM, ("new", "other")), "exists: choose another name, or pass --force"),
    "output is the input": (
        instead(TRANSFORM, ("new", "queries")) + " --force",
        "the output must be another file",
    ),
    "output of no format": (instead(TRANSFORM, ("new.parquet", "new.xlsx")), "cannot tell the file format"),
    "status column is there": (f"{TRANSFORM} --status-column x", "has a column of that name already"),
    "no threads": (f"{TRANSFORM} --threads 0", "--threads = 0"),
    "report cannot be written": (f"{TRANSFORM} --report nowhere/r.html", "there is no folder nowhere"),
    # fit
    "NaN in the reference": (
        instead(FIT, ("reference.", "reference-nan.")),
        "non-finite or too large values",
    ),
    "infinity in the reference": (instead(FIT, ("reference.", "reference-inf.")), "pass --on-invalid drop"),
    "huge values in the reference": (instead(FIT, ("reference.", "reference-huge.")), "too large values"),
    "text in the reference": (
        instead(FIT, ("reference.", "reference-text.")),
        "columns that are not numeric: 'x'",
    ),
    "truncated reference": (instead(FIT, ("reference.", "reference-cut.")), "could not be read"),
    "reference of random bytes": (instead(FIT, ("reference.", "bytes.")), "could not be read"),
    "empty reference": (instead(FIT, ("reference.", "empty.")), "could not be read"),
    "reference without rows": (instead(FIT, ("reference.", "none.")), "reference has no rows"),
    "no reference": (
        instead(FIT, ("reference.parquet", "nothing.parquet")),
        "nothing.parquet does not exist",
    ),
    "reference twice": (f"{FIT} --reference reference.parquet", "more than once"),
    "reference of words": (instead(FIT, ("reference.parquet", "words.csv")), "words.csv could not be read"),
    "other columns in the reference": (instead(FIT, ("queries", "other")), "lacks column(s) 'u', 'v'"),
    "anchors are the reference": (instead(FIT, ("queries", "reference")), "must be public points"),
    "anchors are a link to it": (
        instead(FIT, ("queries.parquet", "./folder/../reference.parquet")),
        "public points",
    ),
    "anchors with words": (instead(FIT, ("queries", "words")), "choose among 'x', 'y', with --columns"),
    "anchors with NaN": (instead(FIT, ("queries", "nan")), "nan.parquet contains NaN or infinity"),
    "anchors without rows": (instead(FIT, ("queries", "none")), "none.parquet has no rows"),
    "too few anchors": (instead(FIT, ("queries", "few")), "an atlas of 2 columns needs at least 4"),
    "anchors without names": (instead(FIT, ("queries.parquet", "queries.npy")), "give --columns"),
    "unknown column": (f"{FIT} --columns x,z", "columns holds 'z'"),
    "column twice": (f"{FIT} --columns x,x", "more than once"),
    "no column": (f"{FIT} --columns ,", "must be names of columns"),
    "negative epsilon": (instead(FIT, ("--epsilon 1", "--epsilon -1")), "epsilon = -1.0"),
    "NaN epsilon": (instead(FIT, ("--epsilon 1", "--epsilon nan")), "epsilon = nan"),
    "infinite epsilon": (instead(FIT, ("--epsilon 1", "--epsilon inf")), "epsilon = inf"),
    "epsilon in words": (instead(FIT, ("--epsilon 1", "--epsilon one")), "'one' is not a valid float"),
    "delta of 1": (instead(FIT, ("--delta 1e-6", "--delta 1")), "delta = 1.0"),
    "NaN delta": (instead(FIT, ("--delta 1e-6", "--delta nan")), "delta = nan"),
    "negative bandwidth": (f"{FIT} --bandwidth -1", "bandwidth = -1.0"),
    "NaN bandwidth": (f"{FIT} --bandwidth nan", "bandwidth = nan"),
    "dim too large": (instead(FIT, ("--dim 1", "--dim 2")), "dim = 2: must be below the number of columns"),
    "dim of 0": (instead(FIT, ("--dim 1", "--dim 0")), "dim = 0"),
    "dim in words": (instead(FIT, ("--dim 1", "--dim some")), "'some': must be an integer or 'auto'"),
    "negative cover": (f"{FIT} --cover -0.3", "cover = -0.3"),
    "no rounds": (f"{FIT} --rounds 0", "rounds = 0"),
    "no batch": (f"{FIT} --batch-rows 0", "--batch-rows = 0"),
    "overspend": (instead(FIT, ("clinic", "poor")), "at most --epsilon 0.5 can be paid"),
    "unknown data set": (instead(FIT, ("clinic", "nobody")), "nobody"),
    "no ledger file": (
        instead(FIT, ("budget.db", "nothing.db")),
        "nothing.db does not exist: must be a ledger; dpmd-fast ledger create makes one",
    ),
    "ledger of random bytes": (instead(FIT, ("budget.db", "bytes.db")), "bytes.db"),
    "no ledger option": (instead(FIT, (PAID, "")), "or --no-ledger"),
    "data set without ledger": (instead(FIT, ("--ledger budget.db", "")), "must both be given"),
    "ledger and none": (f"{FIT} --no-ledger", "must not be given with --ledger"),
    "seed with a ledger": (FIT + " --seed 1", "--seed = 1: must not be given with a ledger"),
    "atlas cannot be written": (instead(FIT, ("new.", "nowhere/new.")), "no folder nowhere"),
    "atlas over the reference": (
        instead(FIT, ("-o new.dpmd", "-o reference.parquet --force")),
        "the output must be another file",
    ),
    "atlas over the ledger": (
        instead(FIT, ("new.dpmd", "budget.db")) + " --force",
        "the output must be another",
    ),
    "add-remove of another account": (
        f"{FIT} --adjacency add-remove --n-public 2000",
        "spends under different adjacencies do not add up",
    ),
    "preprocessor of bytes": (f"{FIT} --preprocess bytes.json", "bytes.json is not a preprocessor"),
    "preprocessor of a list": (f"{FIT} --preprocess list.json", "list.json is not a preprocessor"),
    "no preprocessor": (f"{FIT} --preprocess nothing.json", "nothing.json does not exist"),
    # mixtures
    "mixture with a dim": (
        f"{FIT_MIXTURE} --dim 1",
        "--dim is for an atlas: must not be given with --model m",
    ),
    "mixture with a bandwidth": (f"{FIT_MIXTURE} --bandwidth 0.5", "--bandwidth is for an atlas"),
    "mixture with a cover": (f"{FIT_MIXTURE} --cover 0.3", "--cover is for an atlas"),
    "atlas with components": (
        f"{FIT} --components 3",
        "--components is for a mixture: must not be given with",
    ),
    "atlas that fills in": (f"{FIT} --on-missing fill", "--on-missing is for a mixture"),
    "atlas without queries": (instead(FIT, ("--anchors queries.parquet", "")), "Missing option '--queries'"),
    "model of another kind": (
        instead(FIT_MIXTURE, ("mixture", "forest")),
        "'forest' is not one of 'auto', 'atlas'",
    ),
    "no components": (instead(FIT_MIXTURE, ("components 1", "components 0")), "--components = 0"),
    "too many components": (instead(FIT_MIXTURE, ("components 1", "components 999")), "must be at most 256"),
    "components in the noise": (
        instead(FIT_MIXTURE, ("components 1", "components 256")),
        "use fewer components or rounds",
    ),
    "components in words": (instead(FIT_MIXTURE, ("components 1", "components some")), "must be an integer"),
    "mixture: no rounds": (f"{FIT_MIXTURE} --rounds 0", "--rounds = 0"),
    "mixture: too few records": (
        instead(FIT_MIXTURE, ("--epsilon 8", "--epsilon 0.05")),
        "for a small gain. Nothing was spent; --accept-risk spends all the same",
    ),
    "mixture: overspend": (instead(FIT_MIXTURE, ("clinic", "poor")), "at most --epsilon 0.5 can be paid"),
    "mixture: units of the reference": (
        instead(FIT_MIXTURE, ("--queries queries", "--queries reference")),
        "--queries: reference.parquet is the reference; must be public points",
    ),
    "mixture: other columns": (instead(FIT_MIXTURE, ("--queries queries", "--queries other")), "'u', 'v'"),
    "mixture: infinity in the reference": (
        instead(FIT_MIXTURE, ("reference.", "reference-inf.")),
        "pass --on-invalid drop",
    ),
    "mixture: missing values are not wanted": (
        instead(FIT_MIXTURE, ("reference.", "reference-nan.")) + " --on-missing raise",
        "non-finite or too large values",
    ),
    "mixture: contradiction": (
        f"{FIT_MIXTURE} --on-missing raise --on-invalid drop",
        "--on-missing = 'raise'",
    ),
    "mixture: seed with a ledger": (f"{FIT_MIXTURE} --seed 1", "must not be given with a ledger"),
    "mixture: no folder": (instead(FIT_MIXTURE, ("new.", "nowhere/new.")), "no folder nowhere"),
    "clean without noise": (
        instead(CLEAN, ("--noise 0.5", "")),
        "--noise: must be given with a mixture: the deviation of the measurement error of the queries, as a "
        "number in preprocessed units (without a preprocessor in median absolute deviations of the queries) "
        "or as column=value in the unit of each column; 0 only fills in missing",
    ),
    "noise for an atlas": (
        f"{TRANSFORM} --noise 0.5",
        "--noise is for a mixture: must not be given with an a",
    ),
    "deviations of an atlas": (f"{TRANSFORM} --deviations _sd", "--deviations is for a mixture"),
    "missing values of an atlas": (f"{TRANSFORM} --on-missing fill", "--on-missing fill is for a mixture"),
    "two models": (f"{TRANSFORM} --model mixture.dpmd", "one of them must be given"),
    "no model": (instead(TRANSFORM, ("--atlas atlas.dpmd", "")), "--model FILE or --atlas FILE: one of them"),
    "a mixture as an atlas": (instead(TRANSFORM, ("atlas.dpmd", "mixture.dpmd")), "is a mixture"),
    "negative noise": (instead(CLEAN, ("0.5", "-1")), "--noise = -1.0: must be a finite number >= 0"),
    "NaN noise": (instead(CLEAN, ("0.5", "nan")), "--noise = nan: must be"),
    "endless noise": (instead(CLEAN, ("0.5", "inf")), "--noise = inf: must be"),
    "noise in words": (
        instead(CLEAN, ("0.5", "much")),
        "--noise 'much': must be a number, column=number or a",
    ),
    "noise twice": (f"{CLEAN} --noise 0.5", "--noise '0.5': must be given once"),
    "noise of a column twice": (
        instead(CLEAN, ("--noise 0.5", "--noise x=1 --noise x=2")),
        "column 'x' is given more than once",
    ),
    "noise of one column only": (instead(CLEAN, ("0.5", "x=0.5")), "--noise lacks 'y'"),
    "noise of an unknown column": (
        instead(CLEAN, ("--noise 0.5", "--noise x=1 --noise y=1 --noise z=1")),
        "--noise holds 'z'",
    ),
    "noise without a column": (instead(CLEAN, ("0.5", "=1")), "--noise '=1': must be"),
    "noise of a column in words": (instead(CLEAN, ("0.5", "x=some")), "--noise 'x=some': must be"),
    "noise of a column, negative": (
        instead(CLEAN, ("mixture.dpmd --noise 0.5", "under.dpmd --noise x=1 --noise y_y=-1")),
        "--noise['y_y'] = -1.0: must be",
    ),
    "noise by column without names": (
        instead(CLEAN, ("mixture.dpmd --noise 0.5", "nameless.dpmd --noise x=1")),
        "has no column names",
    ),
    "noise of no file": (instead(CLEAN, ("0.5", "nothing.json")), "nothing.json does not exist"),
    "preprocessor of brackets": (f"{FIT} --preprocess deep.json", "deep.json is not a preprocessor"),
    "noise that is too large": (
        instead(CLEAN, ("0.5", "large.json")),
        "large.json: must be a JSON object of numbers",
    ),
    "noise of bytes": (instead(CLEAN, ("0.5", "bytes.json")), "bytes.json: must be a JSON object of numbers"),
    "noise of a list": (instead(CLEAN, ("0.5", "list.json")), "list.json: must be a JSON object of numbers"),
    "noise of words": (instead(CLEAN, ("0.5", "words.json")), "words.json: must be a JSON object of numbers"),
    "noise of half the columns": (instead(CLEAN, ("0.5", "half.json")), "--noise lacks 'y'"),
    "noise file with NaN": (instead(CLEAN, ("0.5", "nan.json")), "--noise['x'] = nan"),
    "noise file and number": (f"{CLEAN} --noise noise.json", "--noise '0.5': must be given once"),
    "output over the noise": (
        instead(CLEAN, ("0.5", "noise.json"), ("new.parquet", "noise.json")) + " --force",
        "the output must be another file",
    ),
    "missing values are refused": (
        instead(CLEAN, ("queries", "nan")) + " --on-missing refuse",
        "missing values in column 'y': must have none with --on-missing refuse",
    ),
    "missing values are dropped": (
        f"{CLEAN} --on-missing drop",
        "'drop' is not one of 'fill', 'keep', 'refuse'",
    ),
    "infinity to be cleaned": (instead(CLEAN, ("queries", "inf")), "contains infinity"),
    "deviations onto a column": (
        instead(CLEAN, ("queries.parquet", "twice.parquet")) + " --deviations _sd",
        "has columns with these names already: 'x_sd'",
    ),
    "no suffix": (f"{CLEAN} --deviations ''", "--deviations = ''"),
    "plan: mixture without noise": (
        instead(PLAN_MIXTURE, ("--noise 0.5", "")),
        "--noise: must be given with",
    ),
    "plan: mixture with a dim": (f"{PLAN_MIXTURE} --dim 1", "--dim is for an atlas"),
    "plan: atlas with rounds": (f"{PLAN} --model atlas --rounds 2", "--rounds is for a mixture"),
    "plan: mixture of nobody": (instead(PLAN_MIXTURE, ("2000", "0")), "--reference-rows = 0"),
    "plan: noise in words": (instead(PLAN_MIXTURE, ("0.5", "much")), "--noise 'much'"),
    "report: mixture without noise": (
        "report --model mixture.dpmd queries.parquet -o r.html",
        "--noise: must be",
    ),
    "report: noise without queries": ("report --model mixture.dpmd --noise 1 -o r.html", "without them"),
    "report: atlas without queries": ("report --model atlas.dpmd -o r.html", "Missing argument 'QUERIES'"),
    "report: no model": ("report queries.parquet -o r.html", "one of them must be given"),
    # the others
    "plan without rows": (instead(PLAN, ("2000", "0")), "--reference-rows = 0"),
    "plan with NaN": (
        instead(PLAN, ("queries.", "nan.")),
        "--noise = None: must be given for anchors with missing values or one column",
    ),
    "plan of an atlas with NaN": (
        instead(PLAN, ("queries.", "nan.")) + " --model atlas",
        "contains NaN or inf",
    ),
    "plan of nothing": (instead(PLAN, ("--queries queries.parquet", "")), "Missing option '--queries'"),
    "denoise: overspend": (instead(DENOISE, ("clinic", "poor")), "at most --epsilon 0.5 can be paid"),
    "denoise: NaN": (instead(DENOISE, ("reference.", "reference-nan.")), "non-finite or too large values"),
    "denoise: NaN, projector": (
        instead(DENOISE, ("reference.", "reference-nan.")) + " --mechanism projector",
        "non-finite or too large values",
    ),
    "denoise: no queries": (instead(DENOISE, (" queries.parquet", "")), "QUERIES: must be given once"),
    "denoise: steps": (f"{DENOISE} --steps 0", "steps = 0"),
    "denoise: NaN constant": (f"{DENOISE} --mechanism projector --sensitivity-constant nan", "nan"),
    "denoise: unwritable": (instead(DENOISE, ("new.", "nowhere/new.")), "no folder nowhere"),
    "denoise: to an array": (instead(DENOISE, ("new.parquet", "new.npy")), "must end in .npy"),
    "denoise: status column": (f"{DENOISE} --status-column y", "has a column of that name already"),
    "denoise: to CSV": (
        instead(DENOISE, ("queries", "nested"), ("new.parquet", "new.csv")) + " --columns x,y",
        "new.csv could not be written as CSV",
    ),
    "ledger: twice": ("ledger create --ledger budget.db --dataset clinic --epsilon 1 --delta 1e-6", "clinic"),
    "ledger: NaN": (
        "ledger create --ledger budget.db --dataset new --epsilon nan --delta 1e-6",
        "epsilon = nan",
    ),
    "ledger: unknown": ("ledger show --ledger budget.db --dataset nobody", "nobody"),
    "ledger: none": ("ledger show --ledger nothing.db", "nothing.db"),
    "ledger: nothing": ("ledger", "Missing command"),
    "experiment: unknown": ("experiment nonsense -o out", "experiment 'nonsense'"),
    "report: half an account": (
        "report --atlas atlas.dpmd queries.parquet --ledger budget.db -o r.html",
        "together",
    ),
    "report: no data set": (
        "report --atlas atlas.dpmd queries.parquet --ledger budget.db --dataset nobody -o r.html",
        "nobody",
    ),
    "preprocess: nothing": ("preprocess -o new.json", "one of them must be given"),
    "preprocess: no bounds": ("preprocess --reference reference.parquet -o new.json", "--bounds"),
    "preprocess: bad bounds": (
        "preprocess --reference reference.parquet --bounds list.json --epsilon 1 --delta 1e-6 "
        f"{PAID} -o new.json",
        "list.json: must be a JSON object",
    ),
    "preprocess: bounds of brackets": (
        "preprocess --reference reference.parquet --bounds deep.json --epsilon 1 --delta 1e-6 "
        f"{PAID} -o new.json",
        "deep.json: must be a JSON object",
    ),
    "preprocess: public with a budget": (
        "preprocess --public queries.parquet --epsilon 1 -o new.json",
        "costs nothing",
    ),
    "empty output": (
        instead(FIT, ("-o new.dpmd", "-o ''")),
        "'' cannot be written: must be the name of a file",
    ),
    "output of a folder": (instead(FIT, ("-o new.dpmd", "-o folder/")), "must be the name of a file"),
    "empty report": (f"{FIT} --report ''", "must be the name of a file"),
    "preprocess: empty output": (
        "preprocess --reference reference.parquet --bounds bounds.json --epsilon 1 --delta 1e-6 "
        f"{PAID} -o ''",
        "must be the name of a file",
    ),
    "preprocess: NaN": (
        "preprocess --reference reference-nan.parquet --bounds bounds.json --epsilon 1 --delta 1e-6 "
        f"{PAID} -o new.json",
        "pass --on-invalid drop",
    ),
    "endless epsilon": (instead(FIT, ("--epsilon 1", "--epsilon 1e308")), "must be positive and finite"),
    "endless total": (
        "ledger create --ledger budget.db --dataset new --epsilon 1e308 --delta 1e-300",
        "must be positive and finite",
    ),
    "unknown verb": ("nonsense", "No such command 'nonsense'"),
    "unknown option": (f"{TRANSFORM} --fast", "No such option"),
}


GOOD = (PLAN, TRANSFORM, FIT, DENOISE, PLAN_MIXTURE, CLEAN, FIT_MIXTURE)


def state_of(folder):
    """Everything on disk, and what the ledger says."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != "budget.db"]
    files = {path: path.read_bytes() for path in paths}
    book = Ledger(folder / "budget.db")
    return files, {name: (book.remaining(name), book.history(name)) for name in book.datasets()}


@pytest.mark.parametrize("what", BAD)
def test_bad_input(base, monkeypatch, capsys, what):
    command, told = BAD[what]
    monkeypatch.chdir(base)
    before = state_of(base)
    assert main(shlex.split(command)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dpmd-fast: error: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert told in err
    assert "Traceback" not in err
    assert str(SECRET) not in err
    assert "private words" not in err
    after = state_of(base)
    assert after[0].keys() == before[0].keys()
    assert after == before


def test_there_are_at_least_twenty():
    assert len(BAD) >= 20


@pytest.mark.parametrize("what", ["NaN in queries", "overspend"])
def test_machines_get_nothing_on_standard_output_either(base, monkeypatch, capsys, what):
    monkeypatch.chdir(base)
    assert main([*BAD[what][0].split(), "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1


def test_the_commands_that_the_bad_ones_are_made_of_are_good(base, monkeypatch, capsys):
    monkeypatch.chdir(base)
    for number, command in enumerate(GOOD):
        words = [f"good{number}-{word}" if word.startswith("new.") else word for word in command.split()]
        assert main(words) == 0, command
        assert capsys.readouterr().out
