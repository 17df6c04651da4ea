"""Micro-kernels written in LLVM, so that a sum is fast and has one order on every machine."""
