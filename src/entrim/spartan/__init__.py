"""SPARTAn: regression that is linear in boxes and sparse in features, for scikit-learn.

Imported on its own, because scikit-learn is optional: `pip install ".[spartan]"` in a checkout.
"""

from entrim.errors import MissingExtraError

try:
    import scipy  # noqa: F401
    import sklearn  # noqa: F401
except ImportError as error:
    raise MissingExtraError("entrim.spartan", "scipy scikit-learn", "spartan") from error

from entrim.spartan.classifier import eSPAClassifier
from entrim.spartan.regressor import SPARTAnRegressor
from entrim.spartan.selector import SPARTAnSelector

__all__ = ["SPARTAnRegressor", "SPARTAnSelector", "eSPAClassifier"]
