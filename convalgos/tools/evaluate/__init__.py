"""Selectors judged on recorded tables."""
