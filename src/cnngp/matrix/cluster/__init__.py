"""Work on the machines of a Dask cluster.

Dask starts the work. What is to be done follows from a store or a study that all workers see, so that nothing is lost
with a worker, a client or a scheduler.

    connection.py  reaching the scheduler
    cluster.py     which workers take part, and the two ways to use them
    filling.py     the tiles of a matrix
"""
