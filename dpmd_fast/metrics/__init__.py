"""Measure how denoising changed points: neighbours, clusters, and the ranking of risks.

None of this is private: a metric of points is a function of them. Use public or released points, and a
private reference only where the result never leaves the trusted zone.
"""

from dpmd_fast.metrics.concordance import (
    ConcordanceComparison,
    Interval,
    compare_concordance,
    concordance_index,
)
from dpmd_fast.metrics.scores import (
    EXACT_PAIRS,
    NEIGHBORS,
    ClusterScores,
    clustering_accuracy,
    clustering_scores,
    distortion,
    jaccard,
    knn_distance,
    knn_distortion,
    knn_jaccard,
    nearest_neighbors,
    neighborhood_purity,
)

__all__ = [
    "EXACT_PAIRS",
    "NEIGHBORS",
    "ClusterScores",
    "ConcordanceComparison",
    "Interval",
    "clustering_accuracy",
    "clustering_scores",
    "compare_concordance",
    "concordance_index",
    "distortion",
    "jaccard",
    "knn_distance",
    "knn_distortion",
    "knn_jaccard",
    "nearest_neighbors",
    "neighborhood_purity",
]
