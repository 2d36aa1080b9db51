"""Settings of every test.

What the tests compile and measure goes to the user's cache folder (or to CONVALGOS_CACHE_DIR), as it does
for users, so that a second run is fast. Tests that test caches use folders of their own.
"""

from hypothesis import settings

# The same few examples every time; `pytest --hypothesis-profile=explore` looks for new ones.
settings.register_profile("repeatable", derandomize=True, max_examples=8, deadline=None, database=None)
settings.register_profile("explore", max_examples=300, deadline=None)
settings.load_profile("repeatable")
