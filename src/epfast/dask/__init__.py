"""Dask's face: rows on a cluster, or on disk, as dask arrays and dataframes.

Needs the extra ``epfast[dask]``. DEP, DSEP and DAEP of :mod:`epfast.schedules`, with the rows where
they are. See :func:`fit_linear`.
"""

from epfast.dask.estimators import LinearClassifier, LinearRegressor
from epfast.dask.fit import fit_linear
from epfast.dask.prediction import predict, predict_latent, predict_proba

__all__ = [
    "LinearClassifier",
    "LinearRegressor",
    "fit_linear",
    "predict",
    "predict_latent",
    "predict_proba",
]
