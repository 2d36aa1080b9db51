"""Convolution of +1 and -1: channels packed in bits, and the kernels that count them."""
