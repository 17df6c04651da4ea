"""What the released mixture is compared with: other private methods, and methods without privacy.

The private ones are written for experiments: they sum in floating point and draw floating-point noise from a
seeded generator, so their guarantee holds on paper only. Never release anything with them.
"""
