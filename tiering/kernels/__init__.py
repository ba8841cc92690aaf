"""The compiled loops, each with a plain-Python codec as its oracle."""

#: Packages that numba does not find while it is loaded, as it would load them and our kernels never use them. Only who
#: has the process to itself says which, as the command line does: a program that opens a store may have kernels of its
#: own, and call C in them through cffi.
kept_from_numba: tuple[str, ...] = ()
