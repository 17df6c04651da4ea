"""Hostile input for every public entry point: `docs/fuzzing.md` says what is checked, and how to try more."""
