"""CuDNN: graphs, plans, cost, verification."""
