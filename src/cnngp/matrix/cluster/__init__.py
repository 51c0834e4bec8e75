"""Computation on a Dask cluster: its workers (`cluster.py`), and the tiles that they fill (`filling.py`)."""
