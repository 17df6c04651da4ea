"""Every tuned constant of the mixture, and where it comes from.

[recipe]  chosen together on NHANES markers (three splits, noise of half and one MAD) and factor models in
          R^8, R^15 and R^20 (two or three seeds) and R^60 (one), at epsilon = 1, delta = 0.1 and 1e-6.
[one]     one component on NHANES (two splits), factor models in R^5 and R^20 with 5,000 records, and in R^15
          with t tails and wrong scales (two seeds each), five releases of each.
[split]   R^60 (two seeds, two to five releases each), NHANES (two splits), R^8, R^15, R^20 (two seeds), also
          with unequal groups and with t tails, which are the one case that got worse (one seed of two).
[safety]  not tuned: keeps a number away from where something would break.

`dpmd-fast experiment mixture-factors` and `mixture-nhanes` measure the result on other models and seeds.
"""

from __future__ import annotations

FIRST_SHARE = 0.1  # of mu^2, for all records as one component, where there are more later [recipe]
FIRST_SHARE_OF_ONE = 0.2  # where there is one component; .1 is worse in R^20 with 5,000 records [one]
ROUNDS = 12  # of all components; 8 lose groups in R^60, elsewhere equal; 16 are worse on NHANES [split]
GROWTH = 1.15  # share of a round over that of the one before: the last one is what is kept [split]
HOMOGENEOUS = 1.0  # c, the square of the homogeneous coordinate [recipe]
CLIP = (
    1.0  # tau over D + c, the mean squared length of a feature; .7 is better in R^8, 1.2 for t tails [recipe]
)
FIRST_CLIP = 2.0  # the same, in public units, and for one component: best of 1 to 6 [one]
SPLIT_AFTER = (5, 7)  # rounds after which places of noise go to others; 3 as well loses small groups [split]
SPLIT_SIGNAL = 12.0  # mass of a component over its noise: its halves stay above theirs [split]
EVIDENCE_ROUNDS = 3  # whose masses together say that a component is noise; one loses groups of 3 % [split]
TRIAL = 2  # rounds after which the halves of a component are joined again, if they are still one [split]
HALF_NORMAL_MEAN = 0.8  # mean of the absolute value of a normal number: where the halves are put
# mass of a component over its noise that their number must leave: 10 with the 8 rounds of [recipe], and times
# sqrt(8 / 12) with 12, which gives the same number of components; not chosen anew
COMPONENT_SIGNAL = 8.2
MOST_COMPONENTS = 32  # [recipe]
START_VARIANCE = 0.7  # of each component at the start, in units of the whole [recipe]
START_DRAWS = 4000  # from the released normal, to place the components [recipe]
LEAST_VARIANCE = 1e-3  # of a component, over what it was before [recipe]
LEAST_OF_WHOLE = 1e-6  # variance of a component over that of all records, in any direction [safety]
LEAST_OF_LARGEST = 1e-12  # eigenvalue over the largest one of its matrix: rounding is 1e-16 of that [safety]
LEAST_CORRELATION = (
    1e-10  # eigenvalue of the correlations of a component; two equal columns get 1e-9 [safety]
)
LEAST_MASS = 3.0  # of a component, in deviations of its noise [safety]
MOST_GIVEN_COMPONENTS = 256  # [safety]
MOST_ROUNDS = 20  # [safety]

# Weights and widths, in deviations of the whole, of the normal distributions behind a mixture: of six choices
# the one with the least harm on baron_human cells (squared error 2.5 to .7 of raw, three releases), and the
# best for t tails in R^15 (.49 to .46); blood markers and other factor models do not change [recipe]
BACKGROUND = ((0.01, 2.0), (0.003, 4.0), (0.001, 10.0))
