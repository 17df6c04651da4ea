"""Compiled kernels: arrays in, arrays out. No validation, no randomness policy, no privacy words.

::

    jit          compiler flags, cache switch, thread limits
    lanes        vectors of four doubles: fixed-order sums, small moves
    bits         bit masks of 64 candidates
    integers     vectors truncated to the lattice
      |
      +-- tiles                           register tiles: Gram matrices, symmetric products
      |     |
      |     +-- eigen -- tridiagonal      top-d eigenvectors: certified iteration, or direct
      |
      +-- index -- balls                  64-point leaves and sketches; exact fixed-radius search
            |
            +-- tangents                  local PCA at every reference point
            +-- projectors                kernel weights, means, averaged projectors at queries
                  |
                  +-- descent             gradient of |f|^2 and step halving
            +-- moments                   clipped moments at locations, exact sums
            |     |
            |     +-- residuals           of what a map leaves over, at charts
            |     +-- features            of one vector per record
            +-- charts                    moving points with a field of charts: the atlas
    normal       standard normal variates from a stream of words
    exact_normal the normal rounded to integers, sampled exactly

A function with ``@kernel`` may be called from Python, one with ``@device`` only from kernels.
"""
