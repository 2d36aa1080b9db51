"""Other libraries on the same problem, called as their users would: every claim of speed is relative to them.

A peer gets its own copy of the data in the layout that it likes best, as many threads as we have, and its
filter prepared once where it can do that. A library is imported when its peer is built. On a GPU the peer
`cudnn` is the fastest of all plans that cuDNN proposes, and torch uses cuDNN's own benchmark mode.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from convalgos.core.element_types import DTYPES, INTEGERS
from convalgos.core.errors import Unsupported
from convalgos.core.near_names import did_you_mean
from convalgos.core.problem import LAYOUTS
from convalgos.tools.bench.cudnn_peer import cudnn_backward, cudnn_call, cudnn_refuses
from convalgos.tools.bench.onnxruntime_peer import only_served_types, onnxruntime_call
from convalgos.tools.bench.openvino_peer import only_requantised, openvino_call
from convalgos.tools.bench.peer import Peer
from convalgos.tools.bench.scipy_peer import only_single_planes, scipy_call
from convalgos.tools.bench.torch_peer import (
    no_uneven_gradients,
    on_gpu,
    only_planes,
    torch_backward,
    torch_convolution,
)
from convalgos.tools.bench.torch_quantized_peer import only_uint8_by_int8, torch_quantized_call

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
    Peer(
        "onnxruntime",
        onnxruntime_call,
        only_served_types,
        needs=("onnx",),
        dtypes=(*(d for d in DTYPES if d != "bfloat16"), *INTEGERS),
    ),
    Peer("scipy", scipy_call, only_single_planes, direct=False),
)
INTEGER_PEERS = (
    *(
        Peer(
            f"torch.{engine}",
            partial(torch_quantized_call, engine=engine),
            only_uint8_by_int8,
            dtypes=INTEGERS,
        )
        for engine in ("x86", "onednn")
    ),
    Peer("openvino", openvino_call, only_requantised, needs=("onnx",), dtypes=INTEGERS),
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


def peers_on(device: str) -> tuple[Peer, ...]:
    """All that run on a device."""
    return (*PEERS, *INTEGER_PEERS) if device == "cpu" else GPU_PEERS


def choose_peers(
    words: str | None, device: str = "cpu", dtypes: Iterable[str] = ("float32",)
) -> tuple[Peer, ...]:
    """The peers of a comma-separated list of names or packages; all that are installed for None.

    Args:
        device: "cpu", "cuda" or "cuda:N": only the peers that run there.
        dtypes: of x in the problems: only the peers that are compared on one of them. Beside integers None
            stands for all peers: the results then say which are not installed.

    Raises:
        ValueError: there is no such peer. Unsupported: it is not installed.
    """
    asked = set(dtypes)
    there = tuple(peer for peer in peers_on(device) if asked & set(peer.dtypes))
    if words is None:
        told = bool(asked & set(INTEGERS))
        return tuple(replace(p, absent=p.missing()) for p in there if told or not p.missing())
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
