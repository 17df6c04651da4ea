"""Top-d eigenvectors of many small symmetric matrices."""
