"""Stands in for the standard library's `platform`, which this folder hides when the repository's root is first on path.

The standard module's own code runs in this namespace. So whoever imports `platform` (numpy, torch, pip) finds every
name, a patch reaches the module's own calls, and pickles can be read elsewhere. Nothing else belongs here: a
third-party import would break `python -m pip`, and a module of this folder with the name of a standard attribute would
hide that attribute.
"""

import os as _os
from importlib.machinery import PathFinder as _PathFinder

_standard = _PathFinder.find_spec(__name__, [_os.path.dirname(_os.__file__)])
exec(_standard.loader.get_code(__name__), globals())
del _os, _PathFinder, _standard
