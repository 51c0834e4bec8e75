from . import calibration as calibration
from .solving import solve as solve
from .trained import trained_ensemble as trained_ensemble

__all__: list[str]
