"""Reaching a Dask cluster, whose workers can compute matrices, solves and searches: see `connect`."""

from cnngp.matrix.cluster.connection import ClusterError as ClusterError
from cnngp.matrix.cluster.connection import DaskUnavailable as DaskUnavailable
from cnngp.matrix.cluster.connection import connect as connect
