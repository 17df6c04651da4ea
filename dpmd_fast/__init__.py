"""Differentially private manifold denoising on compiled CPU kernels."""
