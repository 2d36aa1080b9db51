"""Other libraries on a whole ONNX model: each loads the file itself, and is called with the same arrays."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from convalgos.core.errors import Unsupported, missing

Feeds = Mapping[str, np.ndarray]
NetworkCall = Callable[[], list[np.ndarray]]
MEMORY_SECONDS = 60.0  # that a process may take to tell its memory


class NetworkPeer(NamedTuple):
    """One library: `load(path, feeds, threads)` gives the call to time."""

    name: str
    load: Callable[[Path, Feeds, int], NetworkCall]

    def missing(self) -> str | None:
        """What must be installed first, or None."""
        return missing(self.name)


def convalgos_network(path: Path, feeds: Feeds, threads: int) -> NetworkCall:
    """Ours, as a peer of itself: what is run where memory is told."""
    from convalgos.network.onnx_reader.graph import from_onnx

    network = from_onnx(path)

    def call() -> list[np.ndarray]:
        found = network(inputs=feeds)
        return list(found) if isinstance(found, tuple) else [found]

    return call


def onnxruntime_network(path: Path, feeds: Feeds, threads: int) -> NetworkCall:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, dict(feeds))


def openvino_network(path: Path, feeds: Feeds, threads: int) -> NetworkCall:
    import openvino

    core = openvino.Core()
    hints = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(str(path)), "CPU", hints)
    request = compiled.create_infer_request()

    def call() -> list[np.ndarray]:
        found = request.infer(dict(feeds), share_inputs=True)
        return [np.array(found[output]) for output in compiled.outputs]

    return call


def torch_network(path: Path, feeds: Feeds, threads: int) -> NetworkCall:
    """The steps of our graph by torch's functions, compiled by torch."""
    import torch

    from convalgos.network.onnx_reader.graph import from_onnx
    from convalgos.tools.bench.torch_steps import TorchSteps

    torch.set_num_threads(threads)
    graph = from_onnx(path).graph
    compiled = torch.compile(TorchSteps(graph).eval())
    tensors = [torch.from_numpy(feeds[name]) for name in graph.inputs]

    @torch.inference_mode()
    def call() -> list[np.ndarray]:
        return [y.numpy() for y in compiled(*tensors)]

    return call


PEERS = (
    NetworkPeer("onnxruntime", onnxruntime_network),
    NetworkPeer("openvino", openvino_network),
    NetworkPeer("torch", torch_network),
)
OURS = NetworkPeer("convalgos", convalgos_network)


def choose_network_peers(words: str | None) -> tuple[NetworkPeer, ...]:
    """The peers of a comma-separated list; all that are installed but torch, which compiles, for None.

    Raises:
        ValueError: there is no such peer. Unsupported: it is not installed.
    """
    if words is None:
        return tuple(peer for peer in PEERS if peer.name != "torch" and not peer.missing())
    chosen = []
    for word in () if words.strip() == "none" else map(str.strip, words.split(",")):
        peer = next((peer for peer in PEERS if peer.name == word), None)
        if peer is None:
            known = ", ".join(peer.name for peer in PEERS)
            raise ValueError(f"peers={word!r} must be none, or some of {known}")
        if reason := peer.missing():
            raise Unsupported(f"peer {word} {reason}")
        chosen.append(peer)
    return tuple(chosen)


MEASURE = """
import json, pathlib, re, sys
import numpy as np
from convalgos.tools.bench import network_peers as peers
asked = json.loads(sys.stdin.read())
peer = next(p for p in (*peers.PEERS, peers.OURS) if p.name == asked["peer"])
feeds = {name: np.ones(shape, dtype) for name, (shape, dtype) in asked["feeds"].items()}
__import__(peer.name)
if peer.name == "convalgos":
    import onnx, onnxruntime
    from convalgos.network import network
    from convalgos.network.onnx_reader import graph
def told_by_the_system(what):
    return 1024 * int(re.search(what + r":\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])
before = told_by_the_system("VmRSS")
call = peer.load(pathlib.Path(asked["path"]), feeds, asked["threads"])
for _ in range(2):
    call()
print(told_by_the_system("VmHWM") - before)
"""


def process_growth(peer: NetworkPeer, path: Path, feeds: Feeds, threads: int) -> int | None:
    """By how much the memory of a process grows that loads a model and runs it, at most; None: not told."""
    told = {
        "peer": peer.name,
        "path": str(path),
        "threads": threads,
        "feeds": {name: (x.shape, x.dtype.name) for name, x in feeds.items()},
    }
    try:
        done = subprocess.run(
            [sys.executable, "-c", MEASURE], input=json.dumps(told), capture_output=True, text=True,
            timeout=MEMORY_SECONDS,
        )  # fmt: skip
        return int(json.loads(done.stdout.strip().rpartition("\n")[2]))
    except (subprocess.TimeoutExpired, ValueError):
        return None
