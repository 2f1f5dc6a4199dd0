"""Dask itself, or what to install."""

from epfast import _checks

with _checks.needs(
    "epfast.dask needs dask, distributed and scikit-learn: pip install 'epfast[dask]'",
    *("dask", "distributed", "sklearn"),
):
    import dask.array as da
    import distributed
    import sklearn  # noqa: F401
    from dask.base import annotate, compute
    from dask.delayed import delayed

__all__ = ["annotate", "compute", "da", "delayed", "distributed"]
