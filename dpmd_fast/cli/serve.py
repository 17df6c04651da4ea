"""The verb serve: models behind Arrow Flight."""

from __future__ import annotations

import click


@click.command(
    short_help="Serve models over the network (Arrow Flight).",
    epilog="""\b
Example:
  dpmd-fast serve --models models --port 8815
  dpmd-fast serve --models models --host 0.0.0.0 --port 8815 --tokens tokens.txt \\
      --tls-cert server.crt --tls-key server.key --workers 4
""",
)
@click.option(
    "--models", required=True, metavar="DIR", help="Folder of .dpmd files; knot.dpmd is served as knot."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=int, default=8815, show_default=True, help="0 takes a free one.")
@click.option("--port-file", metavar="FILE", help="Write the port there when calls are taken.")
@click.option(
    "--tokens", metavar="FILE", help="Who may call: a token in each line; nobody else may read the file."
)
@click.option("--tls-cert", metavar="FILE", help="Certificate (PEM).")
@click.option("--tls-key", metavar="FILE", help="Its private key (PEM).")
@click.option(
    "--trusted",
    multiple=True,
    metavar="KEY",
    help="A public key, its file or ed25519:...; a model that no such key has signed is refused. May be "
    "given several times.",
)
@click.option("--workers", type=int, default=1, show_default=True, help="Processes that answer calls.")
@click.option(
    "--max-batch-rows",
    type=int,
    default=200_000,
    show_default=True,
    help="Rows of a batch; more are refused.",
)
@click.option(
    "--max-in-flight",
    type=int,
    default=64,
    show_default=True,
    help="Calls at once of a worker; others are told to try again.",
)
@click.option(
    "--max-memory",
    type=int,
    default=4096,
    show_default=True,
    metavar="MB",
    help="Of a worker, enforced by the system: one that needs more ends and is started again.",
)
@click.option(
    "--idle-seconds",
    type=float,
    default=60.0,
    show_default=True,
    help="Time for a client to send or take a batch; then its connection is closed.",
)
@click.option(
    "--drain-seconds",
    type=float,
    default=30.0,
    show_default=True,
    help="Time for calls in progress after SIGTERM.",
)
@click.option("--insecure", is_flag=True, help="Serve other machines without tokens or TLS all the same.")
@click.option(
    "--log",
    "log_what",
    type=click.Choice(["calls", "events"]),
    default="calls",
    show_default=True,
    help="Log every call, or only starts, ends, reloads and bugs.",
)
def serve(
    models: str,
    host: str,
    port: int,
    port_file: str | None,
    tokens: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    trusted: tuple[str, ...],
    workers: int,
    max_batch_rows: int,
    max_in_flight: int,
    max_memory: int,
    idle_seconds: float,
    drain_seconds: float,
    insecure: bool,
    log_what: str,
) -> None:
    """Serve the models of a folder over Arrow Flight, until SIGTERM.

    Clients send record batches to the name of a model and get them back clean: see docs/howto/serving.md.
    Serving costs no budget and needs no reference. SIGHUP, or the action reload, reads the folder and the
    tokens again. Logs are JSON lines on standard error; no value of a client is in them.
    """
    from dpmd_fast.serve.calls import Limits
    from dpmd_fast.serve.options import ServeOptions
    from dpmd_fast.serve.supervisor import Supervisor

    limits = Limits(
        batch_rows=max_batch_rows,
        in_flight=max_in_flight,
        idle_seconds=idle_seconds,
        memory=max_memory << 20 if 0 < max_memory < 1 << 40 else max_memory,
    )
    options = ServeOptions(
        models=models,
        host=host,
        port=port,
        tokens=tokens,
        tls_cert=tls_cert,
        tls_key=tls_key,
        port_file=port_file,
        workers=workers,
        drain_seconds=drain_seconds,
        insecure=insecure,
        log_calls=log_what == "calls",
        trusted=_names_of(trusted),
        limits=limits,
    )
    Supervisor(options).run()


def _names_of(trusted: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the keys; a server without any does not load what reads them."""
    if not trusted:
        return ()
    from dpmd_fast.privacy.keys import trusted_names

    return tuple(sorted(trusted_names(trusted)))
