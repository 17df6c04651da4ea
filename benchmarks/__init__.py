"""Benchmarks of dpmd_fast: asv suites (`bench_*.py`) and scripts that compare, scale and look for limits.

======================  =====================================================================
room                    suites
======================  =====================================================================
kernels/vector, eigen   bench_inner
kernels/search          bench_balls
kernels/sums            bench_moments (sums), bench_features, bench_charts (residual rounds)
kernels                 bench_tangents, bench_projectors, bench_descent, bench_charts
privacy                 bench_privacy (budgets, ledger), bench_mechanism (noise)
mechanisms              bench_moments, bench_paper, bench_preprocess, bench_atlas (release)
models                  bench_atlas (transform, file)
the whole package       bench_import, bench_warmup
======================  =====================================================================

asv keeps its history by the names of suites, so they do not follow when a module moves.
"""
