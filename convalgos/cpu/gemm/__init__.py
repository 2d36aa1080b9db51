"""Cache blocking, packed panels."""
