"""Every tuned constant of the atlas, and where it comes from.

[recipe]  chosen together: the best of about 60 variants of a prototype on six shapes (circle, torus with two
          noise levels, Swiss roll, spheres in R^20 and R^100) at epsilon = 1, delta = 0.1 and 1e-6, with
          four seeds.
[rule]    fitted to the errors of this code on the same six shapes, when the rule that chooses the bandwidth
          was made.
[fit]     least squares to the logarithms of errors of this code at six bandwidths on circle, torus, Swiss
          roll and wavy sheet, at the best of one to three rounds, at both deltas.
[start]   chosen by hand from such errors and from bandwidths that the rule then took, on all shapes but the
          sphere in R^100: wavy sheet, ellipse, figure eight and helix are not held out from it.
[safety]  not tuned: keeps a number away from where something would break.

`python benchmarks/accuracy.py` measures the six shapes and four others. S / s is the median mass of an
anchor over the deviation of its noise.
"""

from __future__ import annotations

# Moments and charts

HOMOGENEOUS = 0.1  # c, the square of the homogeneous coordinate [recipe]
OCCUPIED = 3.0  # kappa: least mass of an occupied location, in deviations of its noise [recipe]
CLIP_SHARE = 0.2  # tau over the norm of a record at an anchor; .5 to .02 perform equally [recipe]
PROJECTION_PASSES = 3  # of the field of round 1 [recipe]
CORRECTION_REACH = 1.5  # squared reach beyond h, over the squared distance to the nearest chart [safety]

# Rounds

FIRST_SHARE = 0.35  # share of round 1 in the budget of three rounds [recipe]
SPLITS = {1: (1.0,), 2: (0.4, 0.6), 3: (FIRST_SHARE, 0.3, 0.35)}  # shares by number of rounds [recipe]
TWO_ROUNDS = 50.0  # S / s of round 1 that they need; with less they hurt [recipe]
# S / s that three rounds need: 90 where the public points scatter by up to a tenth of the bandwidth, in
# proportion to the scatter above that, up to 200 [start]
THREE_ROUNDS, WIDE_SCATTER, MOST_THREE = 90.0, 0.1, 200.0
RESIDUAL_BANDWIDTH = 0.7  # bandwidth of residual rounds over that of round 1 [recipe]
NORMAL_DEVIATIONS = 3.0  # h_N, up to which residuals count, in their deviations [recipe]
LEAST_NORMAL = 0.15  # least h_N in bandwidths; without it h_N can collapse and discard every record [safety]
ATTENUATION, MOST_ATTENUATION = 4.0, 0.6  # of residuals by the kernel across a chart [recipe]
REGRESSION_FLOOR = 0.5  # least eigenvalue of a Gram matrix, in deviations of the noise [recipe]
SMALLEST_SHARE = 0.01  # of the budget, for any release [safety]
MOST_ROUNDS = 20  # [safety]

# Subspace

LEAST_COLUMNS = 8  # with fewer, charts live in all of R^D [recipe]
FIND_SHARE, REFINE_SHARE = 0.08, 0.12  # of the total mu^2 [recipe]
SUBSPACE_SPREAD = 1.5  # R over the rms radius of the public points [recipe]
# Largest spread of a flat tail of eigenvalues: so many noise edges plus this share of its mean [recipe]
FLAT_EDGES, FLAT_SHARE = 2.2, 0.5

# Bandwidth

ENOUGH_SIGNAL = 300.0  # S / s of round 1 beyond which a smaller bandwidth is better [recipe]
ENOUGH_RECORDS = 0.0165  # sampling error over the bandwidth, up to which a smaller one is better [rule]
BANDWIDTH_STEP = 1.12  # ratio of successive bandwidths to try [rule]
SHRINK = 0.65  # smaller bandwidth over the current one [rule]
LEAST_SIGNAL = 60.0  # S / s that the smaller bandwidth must have [rule]
BIAS_LEFT = 0.45  # share of the bias of round 1 that residual rounds leave [rule]
BIAS_ORDER = 2.0  # power of the bandwidth with which bias grows on smooth manifolds
SCATTER_LEFT = 0.9  # scatter at the smaller bandwidth over that at the current one: part is curvature [rule]
MAP_NOISE, NOISY_SIGNAL = 0.7, 60.0  # noise of the map in h s / S, and S / s at which it is twice that [rule]
WORTH_SHRINKING = 0.97  # start over if the predicted error is below this share of the current one [rule]
# S / s of round 1, and shares of the first two rounds at which the bias is still visible [rule]
BIAS_TESTS = ((250.0, (0.13, 0.13)), (150.0, (0.2, 0.2)), (0.0, (FIRST_SHARE, 0.3)))
MOST_ATTEMPTS = 3  # [safety]

# Error of a finished map, predicted before the spend

FINAL_NOISE, FINAL_SIGNAL = 0.53, 37.0  # noise in h s / S, and S / s at which it is twice that [fit]
FINAL_SAMPLING = 0.34  # of a local regression on records that scatter as public points do: too much [fit]
FINAL_BIAS = 0.5  # error over the bias of a public map, after two or three rounds; the fit gives .29 [start]
FIRST_BIAS = 1.4  # the same after one round: wavy sheet and Swiss roll at large bandwidths [start]
PUBLIC_BIAS_ORDER = 3.0  # power of the bandwidth with which it grows; 3.3 on the wavy sheet [start]
BIAS_RATIO = 0.6  # smaller bandwidth of the two that are compared; no other was tried
BIAS_AT = (0.8, 1.0)  # bandwidths at which they are, over the largest; no others were tried
BIAS_SPLITS = 3  # ways to halve the public points [start]
BIAS_NOISE = 0.05  # share of the energy without bias that gets into the estimate, at 1,000 points [start]
BIAS_POINTS = 1000  # that are used [safety]
# Begin with a smaller bandwidth if its predicted error is below this share; .98 follows noise [start]
WORTH_LESS = 0.9
# Smallest bandwidth to begin with for that reason, over the largest: below, predictions are far off [safety]
LEAST_START = 0.5
LEAST_RATIO = 1e-3  # smallest bandwidth to try over the largest [safety]

# Public points

FEWEST_PUBLIC, MOST_PUBLIC = 200, 4000  # number to smooth and cover; more are thinned first [safety]
FEWEST_AROUND = 3  # others around a public point that stands for a density of records [safety]
PUBLIC_BYTES = 1 << 31  # memory for their moments [safety]
PUBLIC_HOMOGENEOUS = 0.2  # c of the moments of public points around one another [recipe]
SMOOTHING_PASSES = 2  # [recipe]


def rounds_for(signal: float, scatter: float) -> int:
    """Return the number of rounds that a predicted S / s of round 1 supports.

    `scatter` is that of the public points in bandwidths: the noise of a residual round grows with it.
    """
    three = min(MOST_THREE, THREE_ROUNDS * max(1.0, scatter / WIDE_SCATTER))
    return 3 if signal >= three else 2 if signal >= TWO_ROUNDS else 1


def shares_of(rounds: int) -> tuple[float, ...]:
    """Return the shares of the budget for a number of rounds."""
    if rounds in SPLITS:
        return SPLITS[rounds]
    return (FIRST_SHARE, *[(1.0 - FIRST_SHARE) / (rounds - 1)] * (rounds - 1))
