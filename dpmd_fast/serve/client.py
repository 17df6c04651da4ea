"""The client of a server of models.

    from dpmd_fast.serve import connect
    with connect("grpc://127.0.0.1:8815/knot", token=...) as knot:
        clean = knot.transform(table)

A transform has no effects, so a call that found no server, or lost it, is made again.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from dpmd_fast.arguments import shown
from dpmd_fast.columns import is_of
from dpmd_fast.errors import (
    UserOSError,
    UserPermissionError,
    UserRuntimeError,
    UserTypeError,
    UserValueError,
)
from dpmd_fast.serve.pieces import batches_of
from dpmd_fast.serve.sending import Sent, TableError, next_of, of_table, send_all

_SCHEMES = {"grpc": "grpc", "grpc+tcp": "grpc", "grpc+tls": "grpc+tls", "grpcs": "grpc+tls"}
_PORT = 8815
_LONGEST_HEADER = 2000  # characters; servers take 8,192 bytes of headers
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 2.0  # seconds

_T = TypeVar("_T")


def connect(
    uri: str,
    token: str | None = None,
    *,
    model: str | None = None,
    timeout: float = 300.0,
    patience: float = 30.0,
    tls_root: bytes | None = None,
) -> Client:
    """Return a client of a server of models.

    Parameters
    ----------
    uri : str
        ``grpc://HOST:PORT``, or ``grpc+tls://HOST:PORT``; a path names the model, as in
        ``grpc://127.0.0.1:8815/knot``.
    token : str, optional
        Sent with every call. Only send one over TLS, or on the machine itself.
    model : str, optional
        Name of the model, instead of the path. If there is neither, the server must have one model only.
    timeout : float
        Seconds that a call may take, with all attempts.
    patience : float
        Seconds for which a call is made again while there is no worker for it, from the first time that there
        was none. On two cores with a load of 20, a worker that was killed was back in 9 to 12 s
        (benchmarks/serve.py).
    tls_root : bytes, optional
        Certificates to trust, as PEM; by default those of the system.
    """
    return Client(uri, token, model=model, timeout=timeout, patience=patience, tls_root=tls_root)


class Client:
    """Cleans tables with a served model; threads may share it. Made by `connect`.

    Attributes
    ----------
    model : str or None
        Name of the model that calls use by default.
    repeated : int
        How often a call was made again, because there was no worker for it.
    """

    def __init__(
        self,
        uri: str,
        token: str | None = None,
        *,
        model: str | None = None,
        timeout: float = 300.0,
        patience: float = 30.0,
        tls_root: bytes | None = None,
    ) -> None:
        from pyarrow import flight

        location, named = _parsed(uri)
        self.model = model if model is not None else named
        self.timeout, self.patience, self.repeated = float(timeout), float(patience), 0
        if token is not None and (not isinstance(token, str) or not token.isascii() or not token.strip()):
            raise UserValueError("token: must be a text of ASCII characters")
        self._headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        # by default gRPC waits up to two minutes before it looks again for a server that was restarted
        options: dict[str, Any] = {"generic_options": [("grpc.max_reconnect_backoff_ms", 1000)]}
        if tls_root is not None:
            options["tls_root_certs"] = tls_root
        self._flight = flight.FlightClient(location, **options)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._flight.close()

    # Calls

    def transform(
        self,
        table: Any,
        noise: Any = None,
        *,
        model: str | None = None,
        on_missing: str | None = None,
        status_column: str | None = None,
        deviation_suffix: str | None = None,
    ) -> Any:
        """Return a table with its columns cleaned, as the model's own `transform` does, bit for bit.

        Parameters
        ----------
        table : pyarrow Table, RecordBatch or RecordBatchReader, pandas or polars DataFrame
            The result is of the same kind; of a reader it is a Table.
        noise : number, sequence or mapping, optional
            For a mixture, which needs it: see `Mixture.transform`.
        model : str, optional
            Name of the model; by default that of the connection.
        on_missing, status_column, deviation_suffix : str, optional
            See `transform_file`.

        Raises
        ------
        ValueError
            What the model refuses, in the words of the command line; or a model that is not served.
        PermissionError
            The token is missing or wrong.
        OSError
            There was no answer, also after several attempts.
        """
        settings = {
            "noise": _json_noise(noise),
            "on_missing": on_missing,
            "status_column": status_column,
            "deviation_suffix": deviation_suffix,
        }
        given = {name: value for name, value in settings.items() if value is not None}
        schema, batches, back = batches_of(table)
        once = is_of(table, "pyarrow", "RecordBatchReader")

        def call(left: float) -> Any:
            name = model or self.model or self._only_model(left)
            return back(self._exchange(name, schema, batches(), given, left))

        return self._repeated(call, 0.0 if once else self.patience)

    def models(self) -> dict[str, dict[str, Any]]:
        """Return what is served: guarantee, columns and verdict of each model, by its name."""
        return self._repeated(self._listed, self.patience)

    def health(self) -> dict[str, Any]:
        """Return the status of the worker that answers."""
        found: dict[str, Any] = json.loads(self._action("health"))
        return found

    def reload(self) -> dict[str, Any]:
        """Have the server read its models again; return the names that are served, new, gone and broken."""
        found: dict[str, Any] = json.loads(self._action("reload"))
        return found

    def metrics(self) -> str:
        """Return the counts of the server, as text for Prometheus."""
        return self._action("metrics")

    # How they are made

    def _exchange(
        self, name: str, schema: Any, batches: Iterator[Any], settings: Mapping[str, Any], left: float
    ) -> Any:
        import pyarrow as pa
        from pyarrow import flight

        headers, message = _carried(settings)
        options = self._options(left, headers)
        writer, reader = self._flight.do_exchange(flight.FlightDescriptor.for_path(name.encode()), options)
        sender, sent = None, Sent()
        try:
            first = next_of(batches)
            second = next_of(batches)

            def send(batch: Any) -> None:
                sent.rows += batch.num_rows
                writer.write_batch(batch)

            try:
                writer.begin(schema)
                if message is not None:
                    writer.write_metadata(message)
                if first is not None:
                    send(first)
            except (pa.ArrowException, flight.FlightError) as problem:  # the reader says what went wrong
                sent.problem, second = of_table(problem), None
            if second is None:
                with suppress(pa.ArrowException, flight.FlightError):
                    writer.done_writing()
            else:  # in a thread: whoever sends and does not read blocks the server
                sender = threading.Thread(
                    target=send_all, args=(send, second, batches, writer, sent), daemon=True
                )
                sender.start()
            clean = reader.read_all()
            if sender is not None:
                sender.join(left)
            if sent.problem is not None:
                raise sent.problem
            if clean.num_rows != sent.rows:
                raise UserOSError("the server has sent another number of rows than it got")
            return clean
        finally:
            with suppress(Exception):
                reader.cancel()
            with suppress(Exception):
                writer.close()
            if sender is not None:
                sender.join(5.0)

    def _only_model(self, left: float) -> str:
        names = list(self._listed(left))
        if len(names) != 1:
            raise UserValueError(
                f"model: must be given, the server has {len(names)}: {', '.join(map(repr, names[:20]))}"
            )
        self.model = names[0]
        return names[0]

    def _listed(self, left: float) -> dict[str, dict[str, Any]]:
        found = {}
        for info in self._flight.list_flights(options=self._options(left)):
            facts = json.loads(info.schema.metadata[b"dpmd-fast"])
            found[facts["name"]] = facts
        return found

    def _action(self, name: str) -> str:
        from pyarrow import flight

        def call(left: float) -> str:
            results = self._flight.do_action(flight.Action(name, b""), self._options(left))
            return b"".join(one.body.to_pybytes() for one in results).decode()

        return self._repeated(call, self.patience)

    def _options(self, left: float, headers: Iterable[tuple[bytes, bytes]] = ()) -> Any:
        from pyarrow import flight

        return flight.FlightCallOptions(timeout=left, headers=[*self._headers, *headers])

    def _repeated(self, call: Callable[[float], _T], patience: float) -> _T:
        """Make a call, and again while there is no worker for it."""
        from pyarrow import flight

        start, wait = time.monotonic(), _FIRST_WAIT
        away_since: float | None = None  # a long call that loses its worker at the end is made again, too
        while True:
            left = start + self.timeout - time.monotonic()
            try:
                return call(max(left, 0.001))
            except TableError as problem:
                raise problem.problem from None
            except flight.FlightUnavailableError as problem:
                now = time.monotonic()
                away_since = now if away_since is None else away_since
                if now - away_since >= patience or start + self.timeout - now <= wait:
                    raise _explained(problem) from None
            except Exception as problem:
                raise _explained(problem) from None
            self.repeated += 1
            time.sleep(wait * random.uniform(0.5, 1.5))  # not all clients at once
            wait = min(2.0 * wait, _LONGEST_WAIT)


def _parsed(uri: str) -> tuple[str, str | None]:
    """Return the location of a server and the model that the path of its URI names."""
    try:
        parts = urlsplit(uri)
        scheme, host, port = _SCHEMES[parts.scheme], parts.hostname, parts.port or _PORT
        model = unquote(parts.path.strip("/")) or None
        if not host or "/" in (model or ""):
            raise ValueError
    except (KeyError, ValueError, AttributeError, TypeError):
        raise UserValueError(
            f"uri = {shown(uri)}: must be grpc://HOST:PORT/MODEL or grpc+tls://HOST:PORT/MODEL"
        ) from None
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}", model


def _json_noise(noise: Any) -> Any:
    """Return a noise in JSON's types."""
    if noise is None or isinstance(noise, (int, float)):
        return noise
    if isinstance(noise, Mapping):
        return {str(name): _number(value) for name, value in noise.items()}
    if hasattr(noise, "tolist"):
        return noise.tolist()
    try:
        return [_number(one) for one in noise]
    except (TypeError, ValueError):
        raise UserTypeError(
            f"noise = {shown(noise)}: must be a number, a sequence or a mapping", argument="noise"
        ) from None


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UserTypeError(f"noise: {shown(value)} must be a number", argument="noise") from None


def _carried(settings: Mapping[str, Any]) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
    """Return settings as headers, or as a message if they are too long for that or not ASCII."""
    names = {
        "on_missing": b"on-missing",
        "status_column": b"status-column",
        "deviation_suffix": b"deviations",
    }
    texts = {name: json.dumps(value) if name == "noise" else str(value) for name, value in settings.items()}
    plain = all(
        text and text.isascii() and text.isprintable() and text.strip() == text for text in texts.values()
    )
    if plain and sum(map(len, texts.values())) <= _LONGEST_HEADER:
        return [(names.get(name, name.encode()), text.encode()) for name, text in texts.items()], None
    return [], json.dumps(dict(settings)).encode()


def _explained(problem: Exception) -> Exception:
    """Return an error of Flight as one of this package, with the server's own text where there is one."""
    import pyarrow as pa
    from pyarrow import flight

    if not isinstance(problem, (flight.FlightError, pa.ArrowException)):
        return problem
    try:
        told = json.loads(problem.extra_info)
        kind, text = str(told["kind"]), str(told["text"])
    except (AttributeError, ValueError, TypeError, KeyError):
        kind, text = "", " ".join(str(problem).partition(" gRPC client debug context")[0].split())
    if kind == "unauthenticated":
        return UserPermissionError(text)
    if kind in ("invalid", "not found", "unsupported"):
        return UserValueError(text)
    if kind == "internal":
        return UserRuntimeError(text)
    return UserOSError(f"no answer: {text}")
