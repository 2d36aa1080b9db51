"""Launch configurations of depthwise kernels."""
