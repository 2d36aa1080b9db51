"""Other libraries on the same problem, called as their users would: every claim of speed is relative to them.

A peer gets its own copy of the data in the layout that it likes best, as many threads as we have, and its
filter prepared once where it can do that. A library is imported when its peer is built. On a GPU the peer
`cudnn` is the fastest of all plans that cuDNN proposes, and torch uses cuDNN's own benchmark mode.
"""

from __future__ import annotations

from functools import partial

from convalgos.core.errors import Unsupported
from convalgos.core.near_names import did_you_mean
from convalgos.core.problem import LAYOUTS
from convalgos.tools.bench.cudnn_peer import cudnn_backward, cudnn_call, cudnn_refuses
from convalgos.tools.bench.onnxruntime_peer import onnxruntime_call
from convalgos.tools.bench.peer import Peer
from convalgos.tools.bench.scipy_peer import only_single_planes, scipy_call
from convalgos.tools.bench.torch_peer import (
    no_uneven_gradients,
    on_gpu,
    only_planes,
    torch_backward,
    torch_convolution,
)

_REFUSES = {"channels_first": no_uneven_gradients, "channels_last": only_planes}  # of torch, by layout

PEERS = (
    *(
        Peer(
            f"torch.{layout}",
            partial(torch_convolution, channels_last=layout == "channels_last"),
            refuses,
            backward=partial(torch_backward, channels_last=layout == "channels_last"),
        )
        for layout, refuses in _REFUSES.items()
    ),
    Peer("onnxruntime", onnxruntime_call, needs=("onnx",)),
    Peer("scipy", scipy_call, only_single_planes, direct=False),
)
GPU_PEERS = (
    *(
        Peer(
            f"cudnn.{layout}",
            cudnn_call(layout),
            cudnn_refuses(layout),
            backward=cudnn_backward(layout),
            on_gpu=True,
        )
        for layout in LAYOUTS
    ),
    *(
        Peer(
            f"torch.{layout}",
            on_gpu(torch_convolution, layout == "channels_last"),
            refuses,
            backward=on_gpu(torch_backward, layout == "channels_last"),
            on_gpu=True,
        )
        for layout, refuses in _REFUSES.items()
    ),
)


def choose_peers(words: str | None, device: str = "cpu") -> tuple[Peer, ...]:
    """The peers of a comma-separated list of names or packages; all that are installed for None.

    Args:
        device: "cpu", "cuda" or "cuda:N": only the peers that run there.

    Raises:
        ValueError: there is no such peer. Unsupported: it is not installed.
    """
    there = PEERS if device == "cpu" else GPU_PEERS
    if words is None:
        return tuple(peer for peer in there if not peer.missing())
    if words.strip() == "none":
        return ()
    chosen: dict[str, Peer] = {}
    for word in map(str.strip, words.split(",")):
        named = [peer for peer in there if word in (peer.name, peer.package)]
        if not named:
            known = list(dict.fromkeys(w for peer in there for w in (peer.package, peer.name)))
            raise ValueError(
                f"peers={word!r} must be none, or some of {', '.join(known)}{did_you_mean(word, known)}"
            )
        for peer in named:
            if reason := peer.missing():
                raise Unsupported(f"peer {word} {reason}")
            chosen[peer.name] = peer
    return tuple(chosen.values())
