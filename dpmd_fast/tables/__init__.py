"""Public points in and out: tables in memory, files, AnnData, and what Dask and Spark hold."""

from dpmd_fast.tables.anndata import denoise_anndata
from dpmd_fast.tables.files import read_points, transform_file
from dpmd_fast.tables.lazy import transform_batches

__all__ = ["denoise_anndata", "read_points", "transform_batches", "transform_file"]
