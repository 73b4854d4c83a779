"""Gymnasium environments, restored in the way that a self-test found exact.

Other ways to step them (processes, pools) belong into packages of their own, behind the `Backend` protocol.
"""
