"""What `run` and `track` measure of the forward pass, measured of the gradients, on few layers.

They are benchmarks of their own, so that what is recorded of the forward pass keeps its name. The modules are
imported whole: asv takes every class that it finds by name in a file.
"""

from . import run, track
from .common import DTYPES, THREADS, serving
from .layers import FEW


class RunBackwardData(run.Run):
    direction = "backward_data"
    params = (serving(direction), FEW, DTYPES, THREADS)
    rounds = 1


class RunBackwardWeights(run.Run):
    direction = "backward_weights"
    params = (serving(direction), FEW, DTYPES, THREADS)
    rounds = 1


class PickBackwardData(track.Pick):
    direction = "backward_data"
    params = (FEW, DTYPES, THREADS)
    track_percent_over_roofline = None


class PickBackwardWeights(track.Pick):
    direction = "backward_weights"
    params = (FEW, DTYPES, THREADS)
    track_percent_over_roofline = None


class PeersBackwardData(track.Peers):
    direction = "backward_data"
    params = (track.Peers.params[0], FEW, DTYPES, THREADS)


class PeersBackwardWeights(track.Peers):
    direction = "backward_weights"
    params = (track.Peers.params[0], FEW, DTYPES, THREADS)
