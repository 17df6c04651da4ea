"""What `dpmd-fast serve` is asked for, checked before anything starts."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import socket
import stat
from dataclasses import dataclass, field

from dpmd_fast.arguments import shown
from dpmd_fast.errors import UserOSError, UserValueError
from dpmd_fast.serve.calls import Limits
from dpmd_fast.serve.tokens import read_private, read_tokens

_MOST_WORKERS = 256
_LEAST_MEMORY = 2 << 30  # bytes: a message may take 288 MB before its connection is closed, batches a quarter


@dataclass(frozen=True)
class ServeOptions:
    """Settings of a server; arguments are the command line's options."""

    models: str
    host: str = "127.0.0.1"
    port: int = 8815
    tokens: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    port_file: str | None = None
    workers: int = 1
    drain_seconds: float = 30.0
    insecure: bool = False
    log_calls: bool = True
    trusted: tuple[str, ...] = ()  # names of keys; without any, unsigned models are served, too
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not os.path.isdir(self.models):
            raise UserValueError(
                f"models = {shown(self.models)}: must be a folder of .dpmd files", argument="models"
            )
        _whole("port", self.port, 0, 65535)
        _whole("workers", self.workers, 1, _MOST_WORKERS)
        _whole("max_batch_rows", self.limits.batch_rows, 1, 1 << 40)
        _whole("max_in_flight", self.limits.in_flight, 1, 1 << 20)
        _whole("max_memory", self.limits.memory >> 20, _LEAST_MEMORY >> 20, 1 << 30)
        for name, value in (
            ("drain_seconds", self.drain_seconds),
            ("idle_seconds", self.limits.idle_seconds),
        ):
            if not 0.0 <= value <= 86400.0:
                raise UserValueError(f"{name} = {value:g}: must be from 0 to 86400", argument=name)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UserValueError(
                "tls_cert and tls_key: must both be given, or neither of them", argument="tls_cert"
            )
        if self.insecure or self.is_loopback:
            return
        missing = [
            option
            for option, value in (("--tokens FILE", self.tokens), ("--tls-cert F --tls-key F", self.tls_cert))
            if value is None
        ]
        if missing:
            raise UserValueError(
                f"host = {shown(self.host)}: others than this machine can call, so {' and '.join(missing)} "
                "must be given; --insecure serves without",
                argument="host",
            )

    @property
    def address(self) -> tuple[socket.AddressFamily, str]:
        """Family and number of the host."""
        try:
            found = socket.getaddrinfo(self.host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (OSError, UnicodeError):
            raise UserOSError(
                f"host = {shown(self.host)}: must be an address of this machine", argument="host"
            ) from None
        family, *_, where = sorted(found, key=lambda one: one[0] != socket.AF_INET)[0]
        return family, str(where[0])

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can call."""
        return ipaddress.ip_address(self.address[1].partition("%")[0]).is_loopback

    def location(self, port: int) -> str:
        """Return the URI of the server."""
        family, number = self.address
        host = f"[{number}]" if family == socket.AF_INET6 else number
        return f"{'grpc' if self.tls_cert is None else 'grpc+tls'}://{host}:{port}"

    @property
    def inner_location(self) -> str:
        """Where a worker listens if connections are handed on to it."""
        return f"{'grpc' if self.tls_cert is None else 'grpc+tls'}://127.0.0.1:0"

    def read_tokens(self) -> list[str] | None:
        return None if self.tokens is None else read_tokens(self.tokens)

    def read_tls(self) -> tuple[str, str] | None:
        """Return certificate and key; a key that all users can read is refused."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        cert = read_private(self.tls_cert, "a certificate (PEM)", others=0)
        key = read_private(self.tls_key, "a private key (PEM)", others=stat.S_IRWXO)
        for path, data in ((self.tls_cert, cert), (self.tls_key, key)):
            if b"-----BEGIN " not in data:
                raise UserValueError(f"{path}: must be in PEM format")
        try:
            return cert.decode("ascii"), key.decode("ascii")
        except UnicodeDecodeError:
            raise UserValueError(f"{self.tls_cert}, {self.tls_key}: must be in PEM format") from None

    def limits_dict(self) -> dict[str, float]:
        return dataclasses.asdict(self.limits)


def _whole(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UserValueError(f"{name} = {value}: must be from {least:,} to {most:,}", argument=name)


def reserve(options: ServeOptions) -> tuple[socket.socket, int]:
    """Return a socket that holds the port, and its number.

    As long as it does not listen itself, a worker may, also one that is started later.
    """
    family, number = options.address
    held = socket.socket(family, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does
    try:
        held.bind((number, options.port))
    except OSError as problem:
        held.close()
        raise UserOSError(
            f"port = {options.port}: cannot be used on {options.host}: {problem.strerror}", argument="port"
        ) from None
    return held, int(held.getsockname()[1])
