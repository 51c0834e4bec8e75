"""Images that are added to a fitted model: the kernels that it asks for, and the time they take."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common import memory
from cnngp.common.arrays import DataError
from cnngp.common.devices import output_on
from cnngp.gp.groups import with_new_groups
from cnngp.gp.posterior import Part

from .inducing_fit import kernel_parts
from .kernels import RecipeKernel
from .repeats import Codes, image_codes, is_repeated, left_out_together
from .training_images import Images

Array = NDArray[Any]


@dataclass
class AddedImages:
    """New `images` with targets `Y`, for a model that answers by the images `X`; see `NewPoints`."""

    images: Array
    Y: NDArray[np.float64]
    X: Array
    kernel: RecipeKernel
    point_noise: NDArray[np.float64] | None = None
    new_outputs: Sequence[int] = ()
    repeated: int = 0
    """Images that are there a second time or more, once `left_out` was asked for."""

    def __post_init__(self) -> None:
        self._began = self.computed = time.perf_counter()  # when the last kernel was there

    @property
    def kernel_seconds(self) -> float:
        return self.computed - self._began

    def with_points(self) -> Any:
        n = len(self.X) + len(self.images)
        memory.require(8 * n * n, f"{n:,} images together", self.kernel.device)
        return self._timed(self.kernel(self.images, self.X, output=output_on(self.kernel.device), progress=False))

    def among_themselves(self) -> Any:
        return self._timed(self.kernel(self.images, output=output_on(self.kernel.device)))

    def parts(self) -> Iterator[Part]:
        if self.point_noise is not None:
            raise DataError("image_noise needs the exact model; fit without inducing=")
        yield from kernel_parts(Images(self.images, self.images.dtype), self.kernel, self.X, self.Y)
        self._timed(None)

    def left_out(self, groups: Codes | None) -> Codes | None:
        """New images are groups of their own, but for those that equal others."""
        both = np.concatenate([self.X, self.images])
        codes = image_codes(Images(both, both.dtype))
        self.repeated = int(is_repeated(codes).sum())
        own = None if groups is None else groups.reshape(len(groups), -1)[:, 0]
        return left_out_together(with_new_groups(own, len(self.images)), codes)

    def _timed(self, K: Any) -> Any:
        self.computed = time.perf_counter()
        return K
