"""Networks read from torch: operators of an exported graph become steps, or regions left to torch."""
