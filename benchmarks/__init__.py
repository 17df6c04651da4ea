"""Benchmarks of dpmd_fast: asv suites (`bench_*.py`) and a side-by-side comparison (`compare.py`)."""
