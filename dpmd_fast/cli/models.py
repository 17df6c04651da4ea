"""Options about a model: its kind, its file, and those that belong to one kind only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from dpmd_fast.cli.checks import kind_of
from dpmd_fast.cli.noise import WHAT
from dpmd_fast.cli.options import INTEGER_OR_AUTO, NUMBER_OR_AUTO, joined

if TYPE_CHECKING:
    from dpmd_fast.models.atlas import Atlas
    from dpmd_fast.models.mixture import Mixture
    from dpmd_fast.models.preprocessor import Preprocessor

COVER = 0.3
model_options = joined(
    click.option("--model", "model_path", metavar="FILE.dpmd", help="What fit has written."),
    click.option("--atlas", "atlas_path", metavar="FILE.dpmd", help="The same, for an atlas only."),
    click.option(
        "--trusted",
        multiple=True,
        metavar="KEY",
        help="A public key, its file or ed25519:...; a model that no such key has signed is refused. May be "
        "given several times.",
    ),
)
key_option = click.option(
    "--key", metavar="FILE", help="A private key that signs the model (dpmd-fast keys create)."
)
kind_option = click.option(
    "--model",
    "kind",
    type=click.Choice(["auto", "atlas", "mixture"]),
    default="auto",
    show_default=True,
    help="An atlas for records near a curve or surface, a mixture of Gaussians for all others; auto decides "
    "from public numbers, before the spend, and says why.",
)
shape_options = joined(
    click.option(
        "--dim",
        type=INTEGER_OR_AUTO,
        help="Atlas: intrinsic dimension of the manifold; 'auto' reads it off public points.",
    ),
    click.option("--bandwidth", type=NUMBER_OR_AUTO, help="Atlas: radius of the charts.  [default: auto]"),
    click.option("--cover", type=float, help=f"Atlas: distance of charts in bandwidths.  [default: {COVER}]"),
    click.option("--components", type=INTEGER_OR_AUTO, help="Mixture: number of Gaussians.  [default: auto]"),
    click.option(
        "--preprocess", "preprocess_path", metavar="FILE.json", help="Preprocessor: log, scale and clip."
    ),
)


def path_of(model_path: str | None, atlas_path: str | None) -> str:
    """Return the file of the model, which must be given once."""
    if (model_path is None) == (atlas_path is None):
        raise click.UsageError("--model FILE or --atlas FILE: one of them must be given")
    return str(model_path if atlas_path is None else atlas_path)


def load_given(
    model_path: str | None, atlas_path: str | None, trusted: Sequence[str] = ()
) -> Atlas | Mixture:
    """Read an atlas or a mixture, which a trusted key must have signed if there are any.

    Of --atlas nothing but an atlas is read.
    """
    if atlas_path is not None:
        from dpmd_fast.models.atlas import Atlas

        return Atlas.load(atlas_path, trusted=list(trusted) or None)
    from dpmd_fast.models.load import load_model

    return load_model(path_of(model_path, atlas_path), trusted=list(trusted) or None)


def check_settings(model: Atlas | Mixture, noise: Any, **others: Any) -> None:
    """Refuse a mixture without noise, and an atlas with settings that only a mixture has."""
    if kind_of(model) == "mixture":
        if noise is None:
            raise click.UsageError(f"--noise: must be given with a mixture: {WHAT}")
        return
    _refuse("a mixture", "an atlas", {"--noise": noise, **others})


def check_kind(kind: str, *, atlas: Mapping[str, Any], mixture: Mapping[str, Any]) -> None:
    """Refuse options that belong to the other kind of model than the chosen one."""
    if kind == "mixture":
        _refuse("an atlas", "--model mixture", atlas)
    elif kind == "atlas":
        _refuse("a mixture", "--model atlas", mixture)


def _refuse(owner: str, chosen: str, given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if value is not None:
            raise click.UsageError(f"{name} is for {owner}: must not be given with {chosen}")


def require(given: Mapping[str, Any]) -> None:
    """Refuse a command without these options, in the words of click."""
    for name, value in given.items():
        if value is None:
            raise click.UsageError(f"Missing option '{name}'.")


def or_auto(value: Any) -> Any:
    return "auto" if value is None else value


def columns_for(columns: Sequence[str] | None, preprocess: Preprocessor | None) -> Sequence[str] | None:
    """Return the columns that were asked for, by default those of the preprocessor."""
    return columns if columns is not None or preprocess is None else preprocess.column_names
