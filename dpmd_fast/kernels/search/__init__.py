"""Exact search for all points within one fixed radius."""
