"""Rows under the components of a mixture: what is missing, how likely they are, what their noise hides."""
