"""The commands; `__main__.py` runs them."""
