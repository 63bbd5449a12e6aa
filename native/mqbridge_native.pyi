"""The compiled transcoder: `native/src/python`."""

__version__: str
