"""How good selectors are, on recorded tables."""
