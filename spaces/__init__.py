"""The search-space language: ranges, priors and defaults of hyperparameters.

This package has dimensions, conditions, the text form of priors, and the validation of values: of hyperparameters, and
of arguments of Python's interface. Only `drivers` knows Optuna and Orion, and nothing here imports torch.
"""

from .custom_priors import with_priors as with_priors
from .dimension import Dimension as Dimension
from .dimensions import categorical as categorical
from .dimensions import curve as curve
from .dimensions import entry as entry
from .dimensions import fidelity as fidelity
from .dimensions import fixed as fixed
from .dimensions import integer as integer
from .dimensions import log_real as log_real
from .dimensions import lognormal as lognormal
from .dimensions import maybe as maybe
from .dimensions import near_one as near_one
from .dimensions import normal as normal
from .dimensions import ordinal as ordinal
from .dimensions import real as real
from .dimensions import sizes as sizes
from .errors import MissingParameter as MissingParameter
from .errors import OutOfRange as OutOfRange
from .errors import SpaceError as SpaceError
from .errors import UnknownParameter as UnknownParameter
from .errors import WrongType as WrongType
from .space import Space as Space
from .values import REQUIRED as REQUIRED
from .values import flatten as flatten
from .values import unflatten as unflatten
