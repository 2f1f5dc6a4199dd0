"""Dask itself, or what to install."""

try:
    import dask
    import dask.array as da
    import distributed
    import sklearn  # noqa: F401
    from dask.base import annotate
    from dask.delayed import delayed
except ImportError as error:
    raise ImportError(
        "epfast.dask needs dask, distributed and scikit-learn: pip install 'epfast[dask]'"
    ) from error

__all__ = ["annotate", "da", "dask", "delayed", "distributed"]
