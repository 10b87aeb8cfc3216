"""Processes that train, seen from their parent: how they start, what they answer, and how they end.

May not import torch. Start with `isolation`.
"""
