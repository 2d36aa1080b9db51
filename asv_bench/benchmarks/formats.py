"""What `run` and `track` measure in float32, measured of bfloat16 and of integers, on few layers.

They are benchmarks of their own, so that what is recorded of float32 keeps its name. Of integers x and y are
uint8 and filters int8. The modules are imported whole, as in `gradients`.
"""

from . import run, track
from .common import ALGORITHMS, THREADS
from .layers import FEW
from .library import module

FORMATS = ["bfloat16", "uint8"]
try:
    PEERS = module("convalgos.tools.bench.peers").peers_on("cpu")
except (ImportError, AttributeError):  # a version that compares in float32 only
    PEERS = track.PEERS


class RunFormats(run.Run):
    params = (ALGORITHMS, FEW, FORMATS, THREADS)
    rounds = 1


class PickFormats(track.Pick):
    params = (FEW, FORMATS, THREADS)
    track_percent_over_roofline = None


class PeersFormats(track.Peers):
    known = PEERS
    params = ([peer.name for peer in PEERS] or ["none"], FEW, FORMATS, THREADS)
