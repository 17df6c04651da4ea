"""Normal variates from a buffer of random words."""
