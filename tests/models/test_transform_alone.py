"""A machine that only transforms loads nothing that reads records, draws noise or draws pictures."""

import dataclasses
import os
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from samples import make_atlas

from dpmd_fast import Preprocessor

FORBIDDEN = (
    "cryptography",
    "dpmd_fast.lab",
    "dpmd_fast.mechanisms",
    "dpmd_fast.privacy.entropy",
    "dpmd_fast.privacy.exact_noise",
    "dpmd_fast.privacy.ledger.charge",
    "dpmd_fast.privacy.ledger.store",
    "dpmd_fast.privacy.noise",
    "dpmd_fast.reference",
    "dpmd_fast.report",
    "matplotlib",
    "pandas",
    "pynndescent",
    "scipy.optimize",
    "sqlite3",
)
# Numba imports coverage where it is installed, and coverage imports sqlite3: neither is our doing
WITHOUT_COVERAGE = "import sys; sys.modules['coverage'] = None"
PROGRAM = """
    import sys
    import numpy as np
    from dpmd_fast import Atlas
    atlas = Atlas.load("map.dpmd")
    moved, status = atlas.transform(np.load("points.npy"), return_status=True)
    assert set(status) <= {"ok", "outside", "clipped"}, set(status)
    import pyarrow.parquet as pq
    atlas.transform(next(pq.ParquetFile("points.parquet").iter_batches()))
    print(*sorted(sys.modules))
"""
COMMAND = """
    import sys
    from dpmd_fast.cli import main
    assert main(["transform", "--atlas", "map.dpmd", "points.parquet", "-o", "clean.parquet"]) == 0
    print(*sorted(sys.modules))
"""


@pytest.mark.parametrize("program", [PROGRAM, COMMAND], ids=["Python", "command line"])
@pytest.mark.parametrize("preprocessed", [pytest.param(False, marks=pytest.mark.slow), True])
def test_what_a_transform_loads(tmp_path, program, preprocessed):
    points = np.random.default_rng(1).uniform(-1.0, 1.0, size=(50, 3))
    preprocess = Preprocessor((0.0,) * 3, (1.0,) * 3, column_names=("a", "b", "c")) if preprocessed else None
    dataclasses.replace(make_atlas(), preprocess=preprocess).save(tmp_path / "map.dpmd")
    np.save(tmp_path / "points.npy", points)
    pq.write_table(pa.table(dict(zip("abc", points.T, strict=True))), tmp_path / "points.parquet")
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    done = subprocess.run(
        [sys.executable, "-c", f"{WITHOUT_COVERAGE}\n{textwrap.dedent(program)}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split("\n")[-2].split()
    assert "dpmd_fast.models.atlas" in loaded
    assert [name for name in loaded if name.startswith(FORBIDDEN)] == []
