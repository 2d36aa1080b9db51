"""Check and time every GPU algorithm on the GPU at hand: `make gpu-check`.

A quick part of at most 150 seconds comes first (`--quick`: nothing else): what the GPU reaches without us,
what its driver encodes, all sources compiled while every algorithm computes one regular and one odd problem
in a process of its own, then three layers of each kind beside cuDNN. A full check goes on with awkward
problems, plans as users use them, all layers, gradients, NVIDIA's sanitizer over what failed, and times.

What touches the GPU runs in other processes: a kernel that crashes or hangs takes its process with it and is
named, the rest goes on, and an algorithm that was to blame twice is tried no more. The report, a JSON file
and a table in the folder of --out, is whole after every case; the last lines printed sum it up.

Needs NumPy and CuPy alone, no network, and less than eight minutes.
"""
