"""Released models behind Arrow Flight, for callers that do not embed Python.

    dpmd-fast serve --> supervisor --+--> worker: Flight server, models, kernels <--> clients
                                     +--> worker   (several: the supervisor hands connections on)

The supervisor (`supervisor`) holds the port, the files of the models and the tokens, and starts workers again
that die. A worker (`worker`) answers calls (`server`) with the models of its registry (`registry`), within
limits (`calls`, `connections`). `connect` is the client. Nothing here imports `reference` or `mechanisms`,
and a worker could not: it blocks both.
"""

from dpmd_fast.serve.client import Client, connect

__all__ = ["Client", "connect"]
