"""FFTs of whole planes and blocks: engines, blocking, cost."""
