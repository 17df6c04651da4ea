"""Compiled kernels: arrays in, arrays out. No validation, no randomness policy, no privacy words.

::

    jit            the only caller of numba.njit: flags, cache, thread limits
    late           Numba, imported only if something is to be compiled
    saved          compiled kernels as machine code, for processes without Numba
    compiler       Numba's compiler, with every kernel optimised once
    lock           Python's lock, kept for a few rows and given up for many
    layer          threads of Numba, asleep while they wait
    parallel       loops on these threads: a free one takes the next iteration
    width          doubles in a vector, by the processor that is compiled for
    signatures     types of all arguments and kernels of all routes, to compile ahead
    rows           rows that do not depend on each other, shared among threads of our own
    borrow         arguments whose references are not counted
    scratch        memory of which only a part is used
    linear         small products and factors in a fixed order, in NumPy

    vector/        micro-kernels in LLVM, with NumPy twins
      lanes        groups of four doubles in vectors: fixed-order sums, small moves
      panels       rows packed vector by vector, for tiles
      tiles        register tiles: Gram matrices, symmetric products
      rows         products of chosen rows and their squares, in fixed order
      elementary   exponential and logarithm, with the same bits everywhere
      bits         bit masks of 64 candidates
      gather       neighbours in one leaf: who they are, what they add up to
      fours        one record and four places at a time: distances, integer checks
      sketches     sketches, boxes and leaves of the search
      integers     vectors truncated to the lattice
      quads        charts, four at a time: coordinates of records
      weighted_rows  charts as affine maps, for few columns
      planes       a chart and the points near it, for many columns
      few_points   a point and the charts near it, with the same bits
      runs         64 points that are compared with a leaf and its charts
        |
        +-- mixture/       rows under the components of a mixture, block by block
        |     components   prepared for one noise
        |     missing      expected values of what is missing
        |     blocks       rows and what is missing in them
        |     densities    log densities, shares of the components
        |     moments      means and deviations
        |       |
        |       +-- posterior      clean points given noisy and incomplete ones
        |
        +-- eigen/         top-d eigenvectors
        |     iteration    from a good start, with a certificate
        |     tridiagonal  of any matrix
        |     spectra      all eigenvectors, with the same bits everywhere
        |
        +-- search/        exact fixed-radius search
              index        points in leaves of 64, sketches, boxes
              balls        the points of a ball, as bits
                |
                +-- tangents       local PCA at every reference point
                +-- projectors     kernel weights, means, averaged projectors at queries
                |     +-- descent  gradient of |f|^2 and step halving
                +-- charts         points moved by a field of charts: the atlas
                |     +-- narrow_charts  few columns: many charts are near a point
                |     +-- wide_charts    many columns: few are
                |     |     +-- wide_search  which these are
                |     +-- chart_blocks   blocks of points that go through the charts together
                +-- sums/          exact integer sums over records
                      clip         the bound on what one record adds
                      pairs        pairs (record, location) of a block, sorted by location
                      moments      clipped moments at locations
                      residuals    of what a map leaves over, at charts
                      features     of one vector per record
                      responsibilities  which components of a mixture count for a record
                      mixtures     clipped moments in the frames of components
                      exact        the sums themselves, block by block

    noise/         normal variates from a buffer of random words
      normal       in floating point
      exact_normal rounded to integers, sampled exactly

A function with ``@kernel`` may be called from Python, one with ``@device`` only from kernels.
"""
