"""Images that are added to a fitted model: the kernels that it asks for, and the time they take."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common import memory
from cnngp.common.arrays import DataError
from cnngp.common.devices import output_on
from cnngp.gp.inducing import Part

from .inducing_fit import kernel_parts
from .kernels import RecipeKernel
from .training_images import Images


class AddedImages:
    """New `images` with targets `Y`, for a model that answers by the images `X`; see `NewPoints`."""

    def __init__(
        self,
        images: NDArray[Any],
        Y: NDArray[np.float64],
        X: NDArray[Any],
        kernel: RecipeKernel,
        image_noise: NDArray[np.float64] | None = None,
        new_outputs: Sequence[int] = (),
    ) -> None:
        self.images = images
        self.Y = Y
        self.point_noise = image_noise
        self.new_outputs = new_outputs
        self._X = X
        self._kernel = kernel
        self._output = output_on(kernel.device)
        self._began = self.computed = time.perf_counter()
        """When the last kernel was there."""

    @property
    def kernel_seconds(self) -> float:
        return self.computed - self._began

    def with_points(self) -> Any:
        n = len(self._X) + len(self.images)
        memory.require(8 * n * n, f"{n:,} images together", self._kernel.device)
        K = self._kernel(self.images, self._X, output=self._output, progress=False)
        self.computed = time.perf_counter()
        return K

    def among_themselves(self) -> Any:
        K = self._kernel(self.images, output=self._output)
        self.computed = time.perf_counter()
        return K

    def parts(self) -> Iterator[Part]:
        if self.point_noise is not None:
            raise DataError("image_noise needs the exact model; fit without inducing=")
        images = Images(self.images, self.images.dtype)
        yield from kernel_parts(images, self._kernel, self._X, self.Y)
        self.computed = time.perf_counter()
