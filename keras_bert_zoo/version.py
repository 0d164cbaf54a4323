"""The version, apart, so that the build reads it without importing Keras."""

__version__ = "0.1.0"
