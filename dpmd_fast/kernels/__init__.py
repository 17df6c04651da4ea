"""Compiled kernels: arrays in, arrays out. No validation, no randomness policy, no privacy words.

::

    jit          compiler flags, cache switch, thread limits
    tiles        register tiles, bit masks, fixed-order sums (LLVM vectors)
      |
      +-- eigen -------- tridiagonal      top-d eigenvectors: certified iteration, or direct
      |
      +-- balls                           exact fixed-radius search: 64-point leaves, bit masks
            |
            +-- tangents                  local PCA at every reference point
            +-- projectors                kernel weights, means, averaged projectors at queries
                  |
                  +-- descent             gradient of |f|^2 and step halving
    normal       standard normal variates from a stream of words

A function with ``@kernel`` may be called from Python, one with ``@device`` only from kernels.
"""
