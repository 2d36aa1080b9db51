"""What is convolved, the contract of algorithms and plans, and what every room shares.

That is the machine's figures, arrays and memory, files in the cache folder, and exact Cook-Toom matrices.
"""
