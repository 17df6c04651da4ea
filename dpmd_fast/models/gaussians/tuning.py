"""Every tuned constant of the mixture, and where it comes from.

[recipe]  chosen together on NHANES markers (three splits, noise of half and one MAD) and factor models in
          R^8, R^15 and R^20 (two or three seeds) and R^60 (one), at epsilon = 1, delta = 0.1 and 1e-6.
[safety]  not tuned: keeps a number away from where something would break.

`dpmd-fast experiment mixture-factors` and `mixture-nhanes` measure the result on other models and seeds.
"""

from __future__ import annotations

FIRST_SHARE = 0.1  # of mu^2, for all records as one component [recipe]
ROUNDS = 8  # of all components; 10 perform equally, 6 are worse in R^8 [recipe]
GROWTH = 1.3  # share of a round over that of the round before: the last one is what is kept [recipe]
HOMOGENEOUS = 1.0  # c, the square of the homogeneous coordinate [recipe]
CLIP = (
    1.0  # tau over D + c, the mean squared length of a feature; .7 is better in R^8, 1.2 for t tails [recipe]
)
COMPONENT_SIGNAL = 10.0  # mass of a component over its noise that their number must leave [recipe]
MOST_COMPONENTS = 32  # [recipe]
START_VARIANCE = 0.7  # of each component at the start, in units of the whole [recipe]
START_DRAWS = 4000  # from the released normal, to place the components [recipe]
LEAST_SIGNAL = 15.0  # records over the noise of one component; with less, nothing is spent [recipe]
LEAST_VARIANCE = 1e-3  # of a component, over what it was before [recipe]
LEAST_OF_WHOLE = 1e-6  # variance of a component over that of all records, in any direction [safety]
LEAST_MASS = 3.0  # of a component, in deviations of its noise [safety]
MOST_GIVEN_COMPONENTS = 256  # [safety]
MOST_ROUNDS = 20  # [safety]
