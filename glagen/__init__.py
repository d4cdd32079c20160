"""glagen: compiles short specs of gated linear recurrences to verified, readable, fast Triton kernels."""

__version__ = "0.1.0"
