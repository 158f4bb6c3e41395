"""Speculative decoding on both roles."""
