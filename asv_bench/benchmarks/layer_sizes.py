"""Maps whose sizes come once: what a call takes that plans for its size, and then computes."""

import numpy as np

import convalgos as ca

LAYERS = {  # (shape of w, what else a call is given), of maps of 8 to 60 pixels along each axis
    "3x3": ((16, 8, 3, 3), {"padding": 1}),
    "3x3 depthwise": ((32, 1, 3, 3), {"padding": 1, "groups": 32}),
    "3x3 float64, dilated": ((8, 8, 3, 3), {"padding": 2, "dilation": 2}),
    "1-D of 9": ((16, 16, 9), {"padding": 4}),
}
SIZES = 64


class LayerSizes:
    params = (list(LAYERS),)
    param_names = ("layer",)

    def setup(self, layer):
        rng, (shape, self.given) = np.random.default_rng(0), LAYERS[layer]
        dtype = np.float64 if "float64" in layer else np.float32
        self.w = rng.standard_normal(shape).astype(dtype)
        channels = shape[1] * self.given.get("groups", 1)
        sizes = rng.integers(8, 60, (SIZES, len(shape) - 2))
        self.maps = [rng.standard_normal((1, channels, *size)).astype(dtype) for size in sizes]
        self.time_each_once(layer)

    def time_each_once(self, layer):
        """64 maps of as many sizes."""
        ca.forget_plans()
        for x in self.maps:
            ca.conv(x, self.w, **self.given)
