"""Packages that do not get along in one process."""

import importlib
import importlib.util

# bilby loads the distutils of Python 3.11. PyMC's compiler loads setuptools, which must be first.
if importlib.util.find_spec("pymc") and importlib.util.find_spec("bilby"):
    importlib.import_module("setuptools")
