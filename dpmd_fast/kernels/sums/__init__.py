"""Exact integer sums over records, with a bound on what one record adds."""
