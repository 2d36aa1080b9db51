"""What papers claim of ways to convolve that are in this library, and the layers that the claims are of."""

from __future__ import annotations

from typing import NamedTuple

MKL = ("cpu.im2col.mkl", "cpu.im2col.blas")  # im2col and a library's product: the first that there is
RESNET = (
    "n1 c64 h56 w56 k64 r3 s3 p1",
    "n1 c128 h56 w56 k128 r3 s3 p1 stride2",
    "n1 c128 h28 w28 k128 r3 s3 p1",
    "n1 c256 h28 w28 k256 r3 s3 p1 stride2",
    "n1 c256 h14 w14 k256 r3 s3 p1",
    "n1 c512 h7 w7 k512 r3 s3 p1",
)
MIXED = (
    "n1 c3 h224 w224 k64 r7 s7 p3 stride2",
    "n1 c96 h27 w27 k256 r5 s5 p2",
    "n1 c64 h56 w56 k64 r3 s3 p1",
    "n1 c128 h28 w28 k128 r3 s3 p1",
    "n1 c256 h28 w28 k256 r3 s3 p1 stride2",
    "n1 c256 h14 w14 k256 r3 s3 p1",
)
VGG = (
    "n1 c64 h112 w112 k128 r3 s3 p1",
    "n1 c128 h112 w112 k128 r3 s3 p1",
    "n1 c128 h56 w56 k256 r3 s3 p1",
    "n1 c256 h56 w56 k256 r3 s3 p1",
    "n1 c256 h28 w28 k512 r3 s3 p1",
    "n1 c512 h14 w14 k512 r3 s3 p1",
)
LARGE = (
    "n1 c96 h27 w27 k256 r5 s5 p2",
    "n1 c64 h56 w56 k64 r7 s7 p3",
    "n1 c64 h56 w56 k64 r9 s9 p4",
    "n1 c128 h28 w28 k128 r7 s7 p3",
    "n1 c128 h28 w28 k128 r9 s9 p4",
    "n4 c64 h14 w14 k64 r9 s9 p4",
)
WHOLE_MAPS = (
    "n8 c32 h24 w24 k32 r5 s5",
    "n16 c64 h16 w16 k64 r7 s7 p3",
    "n1 c16 h96 w96 k16 r11 s11 p5",
    "n4 c3 h128 w128 k8 r31 s31",
    "n1 c8 h64 w64 k64 r15 s15 p7",
    "n2 c32 h48 w48 k32 r9 s9 p4",
)
DEPTHWISE = (
    "n1 c32 h112 w112 k32 r3 s3 p1 groups32",
    "n1 c144 h56 w56 k144 r3 s3 p1 groups144",
    "n1 c144 h56 w56 k144 r3 s3 p1 stride2 groups144",
    "n1 c384 h14 w14 k384 r3 s3 p1 groups384",
    "n1 c240 h28 w28 k240 r5 s5 p2 groups240",
    "n1 c960 h7 w7 k960 r3 s3 p1 groups960",
)


class Claim(NamedTuple):
    """That some algorithms, the fastest of which counts, take less time than others."""

    name: str
    source: str
    says: str
    ways: tuple[str, ...]
    against: tuple[str, ...]
    layers: tuple[str, ...]
    times: float = 1.0  # that they are at least as fast as these, as the geometric mean over the layers
    layout: str = "channels_first"
    dtype: str = "float32"


CLAIMS = (
    Claim(
        "indirect convolution", "Dukhan 2019, arXiv:1907.02129",
        "faster than im2col and GEMM, by up to 62 %, where that makes patches",
        ("cpu.indirect",), MKL, RESNET, layout="channels_last",
    ),
    Claim(
        "MEC", "Cho and Brand 2017, arXiv:1706.06873", "faster than im2col, with much less memory",
        ("cpu.mec",), MKL, MIXED,
    ),
    Claim(
        "kn2row", "Anderson et al. 2017, arXiv:1709.03395",
        "as fast as the best that lay patches out, with a fraction of their memory",
        ("cpu.kn2row",), MKL, MIXED,
    ),
    Claim(
        "im2win", "Lu, Chu and Liu 2023, arXiv:2306.14320",
        "3.6 times as fast as im2col, with 0.58 of its memory",
        ("cpu.im2win",), MKL, MIXED, times=3.6, layout="channels_last",
    ),
    Claim(
        "SMM-Conv", "Ofir and Ben-Artzi 2022, arXiv:2411.15659", "faster than im2col, with less memory",
        ("cpu.smm",), MKL, MIXED,
    ),
    Claim(
        "Winograd's F(4, 3)", "Lavin and Gray 2015, arXiv:1509.09308",
        "4 times fewer products make 3x3 layers faster than direct sums can be",
        ("cpu.winograd.f4x3",), ("cpu.direct", "cpu.direct.pixels"), VGG,
    ),
    Claim(
        "symbolic Fourier convolution", "He et al. 2024, arXiv:2407.02913",
        "fewer products than F(2, 3), which has no larger error",
        ("cpu.symbolic_fourier.f6x3",), ("cpu.winograd.f2x3",), VGG,
    ),
    Claim(
        "tiled FFTs", "Zlateski et al. 2018, arXiv:1809.07851",
        "on modern CPUs FFTs are faster than Winograd's algorithm",
        ("cpu.fft_tiles.t16", "cpu.fft_tiles.t20", "cpu.fft_tiles.t24"),
        ("cpu.winograd.f4x3", "cpu.winograd.f6x3"), VGG,
    ),
    Claim(
        "Gauss's products", "Zlateski et al. 2018, arXiv:1809.07851",
        "three real products for each complex one instead of four",
        ("cpu.fft.gauss",), ("cpu.fft.fftw",), WHOLE_MAPS,
    ),
    Claim(
        "nested Winograd", "Jiang et al. 2021, arXiv:2102.13272",
        "fewer products than direct sums on large kernels, without the errors of large tiles",
        ("cpu.winograd.nested.f6x5", "cpu.winograd.nested.f6x7", "cpu.winograd.nested.f6x9"),
        ("cpu.direct", "cpu.direct.pixels"), LARGE,
    ),
    Claim(
        "int8 Winograd", "Li et al. 2021, LoWino", "faster than direct products of bytes",
        ("cpu.winograd.int8.f4x3",), ("cpu.dot.vnni",), VGG, dtype="uint8",
    ),
    Claim(
        "depthwise", "Zhang, Lo and Lu 2020, AAAI", "direct depthwise kernels are faster than im2col",
        ("cpu.depthwise.rows", "cpu.depthwise.channels"), MKL, DEPTHWISE,
    ),
)  # fmt: skip
