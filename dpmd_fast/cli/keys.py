"""The verb keys: make the keys that sign models."""

from __future__ import annotations

import os

import click

from dpmd_fast.cli.console import answer
from dpmd_fast.cli.options import json_option


@click.group(short_help="Make keys that sign models.", no_args_is_help=False)
def keys() -> None:
    """Make keys that sign models: whoever trusts the public key knows who vouches for a guarantee.

    The private key signs what fit writes (--key); transform, report and ledger verify take the public one
    (--trusted).

    \b
    Example:
      dpmd-fast keys create -o clinic.key
    """


@keys.command(
    epilog="""\b
Example:
  dpmd-fast keys create -o clinic.key
"""
)
@click.option("-o", "--output", required=True, metavar="FILE", help="The private key; FILE.pub is public.")
@json_option
def create(output: str, as_json: bool) -> None:
    """Write a new private key, readable by you alone, and beside it the public one for everybody else."""
    from dpmd_fast.privacy.keys import PUBLIC, create_keys

    made = create_keys(output)
    private, public = os.path.abspath(output), os.path.abspath(output) + PUBLIC
    answer(
        as_json,
        {"private": private, "public": public, "name": made.name},
        [
            f"{output}: the private key; whoever has it signs in your name",
            f"{output}{PUBLIC}: the public key, {made.name}",
        ],
    )
