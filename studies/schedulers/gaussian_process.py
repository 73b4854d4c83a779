"""A Gaussian process that forgets, from scikit-learn: the surrogate of `pb2`.

On one thread, and without a random start, so that equal data are equal bits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel, Matern, WhiteKernel
from threadpoolctl import threadpool_limits

from ...tasks.runtime.warning_filters import changed_filters

Array = NDArray[np.float64]
NOISE = 0.1  # of the variance of what is learned, at first


class On(Kernel):  # type: ignore[misc]  # scikit-learn has no types
    """A kernel of some columns of the points."""

    def __init__(self, kernel: Any, columns: list[int]):
        self.kernel, self.columns = kernel, columns

    def __call__(self, X: Array, Y: Array | None = None, eval_gradient: bool = False) -> Any:  # noqa: N803 - its names
        """The kernel of all pairs, as scikit-learn wants it."""
        given = X[:, self.columns], None if Y is None else Y[:, self.columns]
        return self.kernel(*given, eval_gradient=eval_gradient)

    def diag(self, X: Array) -> Any:  # noqa: N803 - its names
        """The kernel of each point and itself."""
        return self.kernel.diag(X[:, self.columns])

    def is_stationary(self) -> bool:
        """Whether it depends on differences only."""
        return bool(self.kernel.is_stationary())

    @property
    def hyperparameters(self) -> Any:
        """Those of the kernel."""
        return self.kernel.hyperparameters

    @property
    def theta(self) -> Any:
        """The logarithms of the hyperparameters that are fitted."""
        return self.kernel.theta

    @theta.setter
    def theta(self, theta: Any) -> None:
        self.kernel.theta = theta

    @property
    def bounds(self) -> Any:
        """Those of theta."""
        return self.kernel.bounds


class Surrogate:
    """What is known of the values at points.

    Args:
        points: (N, D), the last column being the time.
        values: (N,).
    """

    def __init__(self, points: Array, values: Array):
        self.size, self._points, self._values = len(points), points, values
        *space, time = range(points.shape[1])
        # An exponential of the time is (1 - omega)^(|t - t'| / 2) with length 2 / -log(1 - omega).
        kernel = ConstantKernel(1.0, (0.01, 100.0)) * On(RBF(0.5, (0.05, 5.0)), space)
        kernel = kernel * On(Matern(10.0, (0.5, 1000.0), nu=0.5), [time]) + WhiteKernel(NOISE, (1e-4, 10.0))
        with _quietly():
            self._process = GaussianProcessRegressor(kernel, normalize_y=True).fit(points, values)

    def mean(self, points: Array) -> Array:
        """The expected values (M,), in deviations from the mean of all."""
        with _quietly():
            found: Array = self._process.predict(points)
        return (found - self._values.mean()) / (self._values.std() or 1.0)

    def deviation(self, pending: Array) -> Callable[[Array], Array]:
        """The deviation (M,) that is left at points once the values at the `pending` ones (K, D) are known, too."""
        points = np.concatenate([self._points, pending])
        kernel = self._process.kernel_
        with _quietly():
            process = GaussianProcessRegressor(kernel, optimizer=None).fit(points, np.zeros(len(points)))
        noise = float(np.exp(kernel.k2.theta[0]))

        def deviation(at: Array) -> Array:
            with _quietly():
                found: Array = process.predict(at, return_std=True)[1]
            return np.sqrt(np.maximum(found**2 - noise, 0.0))  # of what is learned, not of what is measured

        return deviation


@contextmanager
def _quietly() -> Iterator[None]:
    """On one thread, and without warnings of a length at its bound or of a variance that was rounded below zero."""
    with changed_filters(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        yield
