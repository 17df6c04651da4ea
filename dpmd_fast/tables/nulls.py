"""Missing values that the statistics of a Parquet file tell of, before its rows are moved."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from dpmd_fast.columns import arrow_block
from dpmd_fast.tables.formats import format_of
from dpmd_fast.tables.protocol import InvalidValueError, RowCleaner, check_rows, takes_missing

_WIDE = np.dtype(np.float64)


def refuse_nulls(path: str, cleaner: RowCleaner) -> None:
    """Refuse a Parquet file with nulls in the columns of a cleaner that refuses missing values.

    pandas and Arrow write missing values as nulls, which every row group counts, so that a file of millions
    of rows need not be read up to the first of them. NaN is not counted: it is found when its row is read.
    """
    if takes_missing(cleaner) or format_of(path) != "Parquet":
        return
    try:
        _look(path, cleaner)
    except InvalidValueError:
        raise
    except Exception:  # of a file that cannot be read: whoever reads it says why
        return


def _look(path: str, cleaner: RowCleaner) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, pre_buffer=False) as file:
        names = list(cleaner.column_names or file.schema_arrow.names)
        start = 0
        for number in range(file.num_row_groups):
            next(file.iter_batches(1, row_groups=[number], columns=names))  # complains about a damaged footer
            group = file.metadata.row_group(number)
            if any(_nulls(group.column(place)) for place in _places(group, names)):
                first = start
                for batch in file.iter_batches(row_groups=[number], columns=names):
                    block = arrow_block(batch.select(names).columns, _WIDE)
                    check_rows(cleaner, path, block, first)
                    first += len(batch)
            start += group.num_rows


def _places(group: Any, names: list[str]) -> list[int]:
    wanted = set(names)
    return [place for place in range(group.num_columns) if group.column(place).path_in_schema in wanted]


def _nulls(column: Any) -> int:
    with suppress(AttributeError):  # without statistics
        return int(column.statistics.null_count or 0)
    return 0
