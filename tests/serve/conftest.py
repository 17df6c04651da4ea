"""Servers in this process that tests of several files share."""

import pytest
from pyarrow import flight
from serve.served import TOKEN, save_models

from dpmd_fast.serve import connect
from dpmd_fast.serve.calls import Limits
from dpmd_fast.serve.registry import Registry
from dpmd_fast.serve.server import ModelServer
from dpmd_fast.serve.tokens import Tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def models(folder):
    return save_models(folder)


@pytest.fixture(scope="module")
def server(folder, models):
    registry = Registry()
    assert registry.reload(str(folder)).broken == {}
    limits = Limits(batch_rows=100_000, in_flight=6)
    made = ModelServer(
        "grpc://127.0.0.1:0",
        registry,
        Tokens([TOKEN, "another token"]),
        limits,
        reload=lambda: registry.reload(str(folder)).to_dict(),
        log_calls=False,
    )
    yield made
    made.stop()


@pytest.fixture(scope="module")
def impatient(folder, models):
    registry = Registry()
    registry.reload(str(folder))
    made = ModelServer(
        "grpc://127.0.0.1:0", registry, limits=Limits(in_flight=6, idle_seconds=0.7), log_calls=False
    )
    yield made
    made.stop()


@pytest.fixture
def client(server):
    with connect(f"grpc://127.0.0.1:{server.port}/knot", TOKEN, timeout=30.0) as made:
        yield made


@pytest.fixture
def raw(server):
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as made:
        yield made
