"""Private records: where they are read, and the sums over them.

For records that an engine holds (Dask, Spark, or any other that maps batches): the engine makes partial sums
where the records are, `merge_sums` adds them up, and the noise is added once, in the process that asked for
the release. Workers see tasks made of public and released values, never a budget or entropy.
"""

from dpmd_fast.reference.sources.engine import arrow_batches, engine_reference
from dpmd_fast.reference.sources.mapped import preprocessed_records
from dpmd_fast.reference.tasks import PartialSums, merge_sums, partial_sums

__all__ = [
    "PartialSums",
    "arrow_batches",
    "engine_reference",
    "merge_sums",
    "partial_sums",
    "preprocessed_records",
]
