"""
A served model
==============

A model is released once and put into a folder. A server process hands it out over Arrow Flight, to
clients in any language; here the client is Python again. The answer has the same bits as a
transform in this process, and serving costs no budget.

    python examples/served_model.py [OUTPUT_FOLDER] [--records 10000]
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa

from dpmd_fast import Budget, release_atlas
from dpmd_fast.serve import connect

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("output", nargs="?", type=Path, default=Path("example-output"))
parser.add_argument("--records", type=int, default=10_000, help="number of private records")
given = parser.parse_args()
given.output.mkdir(parents=True, exist_ok=True)
rng = np.random.default_rng(2)


def near_curve(count, noise):
    """Return points near a closed curve in three columns, and the points of the curve itself."""
    t = rng.uniform(0.0, 2.0 * np.pi, count)
    curve = np.column_stack([np.cos(t), np.sin(t), 0.3 * np.cos(2.0 * t)])
    return curve + noise * rng.normal(size=curve.shape), curve


def as_table(points, **others):
    return pa.table({**others, **dict(zip("xyz", points.T.copy(), strict=True))})


# %%
# Release a model from private records and save it: its name without ".dpmd" is the name under which
# it is served.
folder = Path(tempfile.mkdtemp(prefix="served-", dir=given.output))
models = folder / "models"
models.mkdir()
points, clean = near_curve(2_000, 0.12)
records, _ = near_curve(given.records, 0.05)
private, public = as_table(records), as_table(points)
atlas = release_atlas(private, public, dim=1, budget=Budget(epsilon=1.0, delta=1e-6))
atlas.save(models / "curve.dpmd")
print(f"Released models/curve.dpmd from {given.records:,} private records.\n{atlas.guarantee}\n")

# %%
# Start a server in a process of its own. Port 0 takes a free port, which is written to a file as
# soon as calls are taken. The default address is that of this machine alone; other machines need
# tokens and TLS.
port_file = folder / "port"
command = [sys.executable, "-m", "dpmd_fast", "serve", "--models", models]
command += ["--port", "0", "--port-file", port_file]
log = (folder / "server.log").open("w")
server = subprocess.Popen(command, stderr=log)
try:
    deadline = time.monotonic() + 120.0
    while not port_file.exists():
        if server.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the server did not start: see {log.name}")
        time.sleep(0.05)
    address = f"grpc://127.0.0.1:{port_file.read_text().strip()}"
    print("The server takes calls.")

    # The client sends a table. Columns that the model does not know, such as "sample", pass through.

    table = as_table(points, sample=np.arange(len(points)))
    with connect(address) as client:
        facts = client.models()["curve"]
        print(f"It serves 'curve': {facts['guarantee']['statement']}")
        start = time.perf_counter()
        answer = client.transform(table, model="curve", status_column="status")
        seconds = time.perf_counter() - start
        try:
            client.transform(table.drop_columns(["z"]), model="curve")
            raise SystemExit("a table without one of the columns should have been refused")
        except ValueError as refusal:
            print(f"A table without a column is refused: {refusal}")
finally:
    server.terminate()
    code = server.wait(timeout=60)
    log.close()
print(f"The server has ended with code {code}.\n")

# %%
# The same bits as in this process, and closer to the truth.
served = np.column_stack([answer[name].to_numpy() for name in "xyz"])
here = atlas.transform(points)
print(f"{len(served):,} rows came back in {1000 * seconds:.0f} ms.")
print(f"The same bits as a transform in this process: {np.array_equal(served, here)}.")
errors = [float(np.linalg.norm(found - clean, axis=1).mean()) for found in (points, served)]
print(f"Mean distance to the clean points: {errors[0]:.4f} -> {errors[1]:.4f}.")

figure, panels = plt.subplots(1, 2, figsize=(7.0, 3.4), sharex=True, sharey=True, layout="constrained")
for panel, name, found in zip(panels, ("sent", "received"), (points, served), strict=True):
    panel.scatter(found[:, 0], found[:, 2], s=5, color="#1f6fb2", linewidths=0)
    panel.set(title=name, xlabel="x")
panels[0].set_ylabel("z")
figure.savefig(given.output / "served.png", dpi=100)
print(f"Picture: {given.output / 'served.png'}")
