"""The version of the library, which is noted with everything that is measured."""

__version__ = "0.1.0"
