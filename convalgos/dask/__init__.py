"""Dask's face on the same plans: convolutions of arrays in chunks, on threads or clusters, or out of memory.

Chunks split a convolution over images, space, filters and channels; neighbours exchange what windows read
over their border, and sums of several blocks are added in a tree. Nothing is computed until Dask is asked to.

Example:
    >>> import dask.array as da, numpy as np, convalgos.dask as cd
    >>> x = da.ones((1, 3, 64, 64), dtype="f4", chunks=(1, 3, 32, 32))
    >>> float(cd.conv(x, np.ones((4, 3, 3, 3), "f4")).max().compute())
    27.0
"""

from convalgos.dask import ndimage, signal
from convalgos.dask.forward import conv
from convalgos.dask.gradients import conv_backward_data, conv_backward_weights, conv_transpose
from convalgos.dask.pooling import avg_pool, max_pool
from convalgos.dask.splits import Interconnect, plan
from convalgos.dask.training import Classifier, ConvReLU, gradients, model_parallel, training_step

__all__ = [
    "avg_pool",
    "Classifier",
    "conv",
    "conv_backward_data",
    "conv_backward_weights",
    "conv_transpose",
    "ConvReLU",
    "gradients",
    "max_pool",
    "model_parallel",
    "Interconnect",
    "ndimage",
    "plan",
    "signal",
    "training_step",
]
