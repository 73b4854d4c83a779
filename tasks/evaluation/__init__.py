"""Evaluation: returns of episodes on seeds that training never uses.

By default, all tasks are measured on the same seeds and in their own environment. Evaluation changes no state.
"""
