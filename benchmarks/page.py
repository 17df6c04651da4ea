"""Put the tables in benchmarks/results together into docs/performance.md.

python benchmarks/page.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run as a script

from benchmarks.markdown import write

ROOT = Path(__file__).resolve().parents[1]
# in the order of the page
PARTS = (
    "limits",
    "compare",
    "latency",
    "transform",
    "transform_file",
    "cold-start",
    "scaling",
    "suites-quick",
)
INTRO = """# Performance

Every table names its machine, and all but the last say how idle it was. `python benchmarks/page.py` assembles
this page from what these commands write to `benchmarks/results` (minutes: when idle):

| command | what it writes | minutes |
| --- | --- | --- |
| `make bench` | the asv suites at small sizes: kernels, start, fit, release, transform, noise, ledger | 4 |
| `make bench-full` | the same at the sizes of `make compare`, and compilation from nothing | 60 |
| `make compare` | ratios to seven other packages, in one run; `transform`; cold starts | 25 |
| `make scaling` | time and peak memory against n, D, m, K and threads, with fitted exponents | 10 |
| `make limits` | stages beside the rates of DGEMM, memory and the stream cipher | 2 |

`DPMD_BENCH_PROFILE` chooses the sizes of the suites: `quick`, `full`, or `tiny`, at which the tests run each
benchmark once. `benchmarks/__init__.py` lists which suite covers which room of the package. The scripts
`moments.py`, `engines.py` and `accuracy.py` in `benchmarks` make the other tables of the README
and of [distributed.md](distributed.md)."""


def page(results: Path) -> str:
    """Return the intro and each existing file, with headings one level down."""
    found = [results / f"{name}.md" for name in PARTS]
    texts = [demoted(path.read_text("utf-8")) for path in found if path.exists()]
    return "\n\n".join([INTRO, *texts]) + "\n"


def demoted(text: str) -> str:
    return "\n".join(f"#{line}" if line.startswith("#") else line for line in text.strip().splitlines())


def main() -> None:
    write(ROOT / "docs" / "performance.md", page(ROOT / "benchmarks" / "results"))


if __name__ == "__main__":
    main()
