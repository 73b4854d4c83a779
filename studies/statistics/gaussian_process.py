"""Gaussian process of PB2, with a kernel that decays in time.

It uses scikit-learn on one thread and without random restarts, so equal data give bitwise equal results.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel
from threadpoolctl import threadpool_limits

from ...tasks.runtime.warning_filters import changed_filters

Array = NDArray[np.float64]
NOISE = 0.1  # initial noise variance, relative to that of the values


class OfPoint(RBF):  # type: ignore[misc]  # scikit-learn has no types
    """A squared-exponential kernel of all columns but the last."""

    def __call__(self, X: Array, Y: Array | None = None, eval_gradient: bool = False) -> Any:  # noqa: N803 - its names
        """Return the kernel matrix, in scikit-learn's form."""
        return super().__call__(X[:, :-1], None if Y is None else Y[:, :-1], eval_gradient)


class OfTime(Matern):  # type: ignore[misc]
    """A Matérn kernel of the last column."""

    def __call__(self, X: Array, Y: Array | None = None, eval_gradient: bool = False) -> Any:  # noqa: N803 - its names
        """Return the kernel matrix, in scikit-learn's form."""
        return super().__call__(X[:, -1:], None if Y is None else Y[:, -1:], eval_gradient)


class GaussianProcess:
    """Posterior of a function of points and time.

    Args:
        points: (N, D), the last column is the time.
        values: (N,) noisy values of the function.
    """

    def __init__(self, points: Array, values: Array):
        self.size, self._points, self._values = len(points), points, values
        # Matérn with nu = 1/2 is exp(-|t - t'| / length): (1 - omega)^(|t - t'| / 2) for length -2 / log(1 - omega).
        kernel = ConstantKernel(1.0, (0.01, 100.0)) * OfPoint(0.5, (0.05, 5.0))
        kernel = kernel * OfTime(10.0, (0.5, 1000.0), nu=0.5) + WhiteKernel(NOISE, (1e-4, 10.0))
        with _quietly():
            self._process = GaussianProcessRegressor(kernel, normalize_y=True).fit(points, values)

    def mean(self, points: Array) -> Array:
        """Return the posterior mean (M,) at points (M, D), standardized.

        It is relative to the mean and standard deviation of the values.
        """
        with _quietly():
            mean: Array = self._process.predict(points)
        return (mean - self._values.mean()) / (self._values.std() or 1.0)

    def deviation(self, pending: Array) -> Callable[[Array], Array]:
        """Return a function from points (M, D) to their posterior deviation (M,).

        The deviation assumes that the values at `pending` (K, D) are known, too; it does not depend on what they are.
        """
        points = np.concatenate([self._points, pending])
        kernel = self._process.kernel_
        with _quietly():
            process = GaussianProcessRegressor(kernel, optimizer=None).fit(points, np.zeros(len(points)))
        noise = float(np.exp(kernel.k2.theta[0]))

        def deviation(at: Array) -> Array:
            with _quietly():
                std: Array = process.predict(at, return_std=True)[1]
            return np.sqrt(np.maximum(std**2 - noise, 0.0))  # of the function, without the noise

        return deviation


@contextmanager
def _quietly() -> Iterator[None]:
    """Run on one thread, without scikit-learn's warnings.

    It warns of a length scale at its bound and of a variance rounded below zero.
    """
    with changed_filters(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        yield
