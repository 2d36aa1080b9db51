"""Speed over commits."""
