"""Means and deviations of a stream of rows, in float64, without keeping the rows."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor


@dataclass
class Moments:
    """Count, mean and sum of squared deviations of each column, merged batch by batch.

    The parallel form of Chan, Golub and LeVeque: deviations are taken from the batch's own mean, so
    a mean far from 0 costs no digits.
    """

    width: int
    device: torch.device
    count: int = 0
    _mean: Tensor = field(init=False)
    _squares: Tensor = field(init=False)

    def __post_init__(self) -> None:
        """Begin with nothing."""
        self._mean = torch.zeros(self.width, dtype=torch.float64, device=self.device)
        self._squares = torch.zeros_like(self._mean)

    def add(self, rows: Tensor) -> None:
        """Add `[rows, width]`."""
        new = len(rows)
        if new == 0:
            return
        exact = rows.to(torch.float64, copy=True)
        mean = exact.mean(0)
        exact -= mean
        squares = exact.square_().sum(0)
        total = self.count + new
        apart = mean - self._mean
        self._squares += squares + apart * apart * (self.count * new / total)
        self._mean += apart * (new / total)
        self.count = total

    def mean(self) -> np.ndarray:
        """Return float64 `[width]`; zeros when there were no rows (U-53)."""
        return self._mean.cpu().numpy()

    def deviation(self) -> np.ndarray:
        """Return the population deviation, float64 `[width]`; zeros when there were no rows."""
        return (self._squares / max(1, self.count)).sqrt().cpu().numpy()


class LayerStatistics:
    """What is told of one Layer over every position but the first of each prompt (C-506)."""

    def __init__(self, width: int, device: torch.device) -> None:
        self.moments = Moments(width, device)
        self._norms = 0.0

    def add(self, rows: Tensor, contents: Tensor, counted: Tensor) -> bool:
        """Add one batch; False when some number of the stream is not finite.

        `rows` is the stream `[tokens, hidden]`, `contents` what the files hold of it
        `[tokens, width]` before it is rounded, `counted` int64: the rows that count.
        """
        norms = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float64)
        self._norms += float(norms[counted].sum())
        self.moments.add(contents[counted])
        return bool(torch.isfinite(norms).all())

    @property
    def mean_norm(self) -> float:
        """Mean length of the stream's counted rows; 0 when there are none."""
        return self._norms / max(1, self.moments.count)
