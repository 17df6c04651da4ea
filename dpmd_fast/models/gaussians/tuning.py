"""Every tuned constant of the mixture, and where it comes from.

[recipe]  chosen together on a prototype: NHANES markers, factor models in R^15, R^20 and R^60.
[safety]  not tuned: keeps a number away from where something would break.
"""

from __future__ import annotations

FIRST_SHARE = 0.2  # of mu^2, for all records as one component [recipe]
ROUNDS = 6  # of all components, with equal shares of the rest [recipe]
HOMOGENEOUS = 1.0  # c, the square of the homogeneous coordinate [recipe]
CLIP = 1.2  # tau over D + c, the mean squared length of a feature [recipe]
COMPONENT_SIGNAL = (
    10.0  # mass over the deviation of its noise that the number of components must leave [recipe]
)
MOST_COMPONENTS = 32  # [recipe]
START_VARIANCE = 0.7  # of each component at the start, in units of the whole [recipe]
START_DRAWS = 4000  # from the released normal, to place the components [recipe]
LEAST_SIGNAL = (
    15.0  # records over the deviation of the noise of one component, below which nothing is spent [recipe]
)
LEAST_VARIANCE = 1e-3  # of a component, over what it was before [recipe]
LEAST_MASS = 3.0  # of a component, in deviations of its noise [safety]
MOST_GIVEN_COMPONENTS = 256  # [safety]
MOST_ROUNDS = 20  # [safety]
