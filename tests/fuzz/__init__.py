"""Hostile input for every public entry point: `docs/privacy/audit.md` says what is checked."""
