"""Jitkrittum et al. (2015), *Kernel-based just-in-time learning for passing EP messages*."""
