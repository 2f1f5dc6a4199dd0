"""Dask itself, or what to install."""

try:
    import dask.array as da
    import distributed
    from dask.delayed import delayed
except ImportError as error:
    raise ImportError(
        "epfast.dask needs dask and distributed: pip install 'epfast[dask]'"
    ) from error

__all__ = ["da", "delayed", "distributed"]
