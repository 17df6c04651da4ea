"""Check that all records of a private reference are valid."""

from __future__ import annotations

from dpmd_fast.arguments import checked
from dpmd_fast.columns import DROP
from dpmd_fast.errors import UserValueError
from dpmd_fast.reference.sources.base import ReferenceSource
from dpmd_fast.reference.tasks import ValidTask

_DROP = f"pass {DROP} to leave such records out, or clean the reference"


def check_valid(source: ReferenceSource, most: float, advice: str = _DROP, *, missing: bool = False) -> None:
    """Refuse a reference that holds values which are not finite or exceed `most` in size; make one pass.

    With `missing`, NaN stands for a missing value and is valid.
    """
    most = checked("most", most, positive=True)
    if not source.rereadable:
        raise UserValueError(
            "reference is a stream that can be read only once, so its values cannot be checked first: pass "
            f"{DROP}, or give a table or Parquet files"
        )
    if source.run(ValidTask(most, missing)).values.any():
        raise UserValueError(
            f"reference contains {'infinite' if missing else 'non-finite'} or too large values: all must be "
            f"finite{' or missing' if missing else ''} and at most {most:g} in size; {advice}"
        )
