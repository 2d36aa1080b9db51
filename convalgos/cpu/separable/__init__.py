"""Depthwise convolution with the pointwise ones before and behind it, band by band of rows."""
