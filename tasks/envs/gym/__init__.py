"""Gymnasium environments, restored in the way that a self-test found exact.

Other ways to step them (processes, pools) have their own packages, behind the `Backend` protocol.
"""
